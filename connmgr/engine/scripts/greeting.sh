# Turns a new shell into a supervisor, which then describes itself. The words between two @ are filled in from the
# shell's dialect. Envelopes call _cm_gone, _cm_dump and _cm_put; _cm_exec of execute.sh; _cm_hold and _cm_free of
# hold_*.sh; and _cm_end, _cm_done and _cm_renew of apart.sh or merged.sh. The last argument of each is the envelope's
# nonce.
unset CONNMGR_BOOT
@preparation@
@hold@
# If the shell's user may not enter the current directory, such as that of the caller of sudo, use the home directory.
case "$PWD" in /*) @builtin@ [ -x . ]&&@builtin@ [ . -ef "$PWD" ];; *) ! :;; esac||@builtin@ cd||@builtin@ cd /
# Signals that a command sends to $$ run an empty trap. If they were ignored, every command would ignore them too.
trap : HUP INT QUIT TERM USR1 USR2 ALRM
_cm_gone(){ @builtin@ echo ":$2$1" >&8;}
# The directory is compared by device and inode where there is /proc, else by name: redirecting a symbolic link moves
# no session. ksh93 and mksh know their directory only while it exists. ksh93 reports 256 + N if signal N ended a command; `exit`
# would reduce that to N.
_cm_dump(){ @plainly@||:;@builtin@ set +x;@untrap@;@raw@;{ @builtin@ unset CONNMGR_COMMAND
@builtin@ echo ":$2@directory@";@builtin@ pwd||@builtin@ echo "$PWD"
if @builtin@ [ -d /proc/$$/cwd ]&&! @builtin@ [ . -ef /proc/$$/cwd ];then
@builtin@ echo ":$2@moved@";@builtin@ [ . -ef "$PWD" ]||/bin/pwd -P||@builtin@ echo /dev/null;fi
@builtin@ echo ":$2@variables@";@exports@;@builtin@ echo ":$2@rest@";} >&8
exec >&8 2>&9 8>&- 9>&-;@builtin@ exit "$(($1>256?$1-128:$1))";}
_cm_put(){ @put@;}
_cm_say(){ @builtin@ echo ":$1"||{ sleep 1;@builtin@ echo ":$1";};}
@execute@
@streams@
(@fork@@builtin@ echo "facts @nonce@ $$" >&8
{ @builtin@ read -r os </proc/sys/kernel/ostype||os=$(uname -s);@builtin@ echo "$os";} >&8
# Only the first line: nl is a newline, the last character of IFS.
# shellcheck disable=SC1091
{ os=$(. /etc/os-release&&@builtin@ echo "$PRETTY_NAME");nl=${IFS#??}
case "$os" in ?*) ;; *) os=$(uname -sr);; esac;@builtin@ echo "${os%%"${nl%"${nl#?}"}"*}";} >&8
@family@ >&8
@builtin@ echo "${TMPDIR:-/tmp}" >&8
@builtin@ echo "${XDG_STATE_HOME:-${HOME:+$HOME/.local/state}}" >&8
{ @functions@
:;} >&8
_cm_dump 0 @nonce@)
@unknown@
_cm_end 0 @nonce@
