# Variables for all calls of one helper. The prefix job_ avoids the names of other programs.
job_mask=$(umask)
job_home=${XDG_STATE_HOME:-${HOME:+$HOME/.local/state}}
case $job_home in /*) job_home=$job_home/connmgr/jobs;; *) job_home=;; esac
job_uid=$(id -u)
job_top=${TMPDIR:-/tmp}/connmgr-$job_uid
job_spare=$job_top/jobs
# Whether only this user may use the directory. One look shows kind, mode and owner: between two looks, somebody who may
# write to the directory above could replace a link by a directory. Afterwards its sticky bit prevents that.
job_top_is_ours() {
  job_line=$(ls -ldn -- "$job_top" 2>/dev/null)
  set -- $job_line
  case $1 in drwx------*) [ "$3" = "$job_uid" ];; *) false;; esac
}
# Nothing is read, made or removed through what somebody else has put there.
job_look_at_top() {
  if [ -e "$job_top" ] || [ -L "$job_top" ]; then job_top_is_ours || job_spare=/dev/null/jobs; fi
}
job_look_at_top
job_boot=
{ read -r job_boot </proc/sys/kernel/random/boot_id || job_boot=$(sysctl -n kern.boottime); } 2>/dev/null
job_boot=${job_boot#*sec = } job_boot=${job_boot%%,*} job_boot=${job_boot:-unknown}
job_apart=
! command -v setsid >/dev/null 2>&1 || job_apart=setsid
# A login manager may end all processes of a login with it (logind.conf(5)). The costly checks are made only in the
# scope of such a login.
job_around= job_warning=
job_login() {
  session=${1##*/session-} session=${session%%.scope*}
  kills= only= excluded=
  while IFS='=' read -r name value; do
    case $name in KillUserProcesses) kills=$value;; KillOnlyUsers) only=$value;; KillExcludeUsers) excluded=$value;; esac
  done <<EOF
$(loginctl show-session -p KillUserProcesses -p KillOnlyUsers -p KillExcludeUsers)
EOF
  [ "$kills" = yes ] || return
  user=$(loginctl show-session "$session" -p Name)
  user=${user#Name=}
  case " $excluded " in *" $user "*) return;; esac
  case " $only " in "  "|*" $user "*) ;; *) return;; esac
  job_warning=ends_with_login
  if [ "$(id -u)" = 0 ]; then job_around="systemd-run --scope --quiet"
  else
    case $(loginctl show-user "$user" -p Linger) in Linger=yes) ;; *) return;; esac
    job_around="systemd-run --user --scope --quiet"
  fi
  if $job_around true </dev/null; then job_warning=; else job_around=; fi
}
job_group=
while read -r job_group; do
  case $job_group in */session-*.scope*) break;; esac
done 2>/dev/null </proc/self/cgroup
# Not in the loop, whose standard input is the list.
case $job_group in */session-*.scope*) job_login "$job_group" 2>/dev/null;; esac
