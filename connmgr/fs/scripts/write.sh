# Another user with access to the directory may at any moment replace our file, the target or the directory by a file, a
# link or a directory. So the directory is entered before anything in it is examined. The new file is received beside
# its target, and reached only by its open descriptor until it is complete and on disk. Then it is renamed, and compared
# with the file of that name. A target that must be written in place is written by the descriptor of the file that was
# examined. Files of a killed writer are removed by the next one (litter.sh).
mode=$2 block=$4 stamp=$5 replaces=$6 large=$7 owner=$8
{ read -r host </proc/sys/kernel/hostname || host=$(uname -n); } 2>/dev/null
unchanged() {
  case $replaces in
    "") ;;
    nothing) if [ -e "$p" ] || [ -L "$p" ]; then no file_exists; fi;;
    *) [ -f "$p" ] || no file_changed
      still "$p" "$replaces";;
  esac
}
dated() { [ ! "$stamp" ] || why=$(TZ=UTC0 touch -m -t "$stamp" "$1" 2>&1) || because "$why"; }
# GNU's sync(1) flushes one file since coreutils 8.24; busybox has fsync(1) for that. Otherwise everything is flushed.
flush() { why=$(sync -- "$1" 2>&1) || unflushed "$1"; }
unflushed() {
  ! disk_failed || because "$why"
  fsync "$1" 2>/dev/null || sync
}
disk_failed() { case ${why##*: } in *"o space left"*|*"uota exceeded"*|*"nput/output error"*) ;; *) return 1;; esac; }
# A file of $large portions is read back and flushed while more of it arrives, so that little is left to do at its end.
# It is read from what the file system has, and to its end: the sum is that of the file. If it differs, or nothing here
# sums up what it is given, the whole file is read once more.
follow() {
  at=0 left=$large
  # Not every sync(1) can flush a single file.
  case $(sync --help 2>&1) in *FILE*) early=1;; *) early=;; esac
  while read -r n && [ "$n" != 0 ]; do
    chunk "$n" >&3 || { echo /broken/ >&2; return; }
    wait
    left=$((left - 1))
    [ "$left" -gt 0 ] || continue
    n=$((n / block))
    dd if="$f" bs="$block" skip="$at" count="$n" iflag=fullblock 2>/dev/null &
    { [ ! "$early" ] || flush_early; } >/dev/null &
    at=$((at + n))
  done
  { [ "$early" ] && flush_early && echo /flushed/ >&2; } >/dev/null &
  dd if="$f" bs="$block" skip="$at" 2>/dev/null
  wait
}
# A failure of the disk is told only once: whoever opens the file and flushes it afterwards hears nothing of it.
flush_early() {
  why=$(sync -- "$f" 2>&1) && return
  ! disk_failed || printf '%s\n/broken/\n' "$why" >&2
  return 1
}
receive_and_follow() {
  why=$( { follow 2>&9 | summed; } 9>&1 )
  case $why in */broken/*) because "${why%%/broken/*}";; esac
  followed=$why
}
# Prints the SHA-256 of its input, by whichever of these is here, the fastest first; nothing without any.
summed() {
  for o in "openssl dgst -sha256" sha256sum "shasum -a 256" "sha256 -q"; do
    if command -v "${o%% *}" >/dev/null; then $o; return; fi
  done
  cat >/dev/null
} 2>/dev/null
verify_and_flush() {
  case $followed in
    ?*"$sum"*) case $followed in */flushed/*) ;; *) flush "$f";; esac; return;;
  esac
  found=$(echo "/sum/$(checksum "$f")." & why=$(sync -- "$f" 2>&1) && why=done; wait; echo "/sync/$why")
  case $found in
    *"$sum"*) ;;
    /sum/.*) [ "$(wc -c <"$f")" -eq "$size" ] || no transfer_failed;;
    *) no transfer_failed
  esac
  why=${found##*/sync/}
  [ "$why" = done ] || unflushed "$f"
}
# Opened for reading where that will do: to append would make a file where a link leads that somebody has put there.
overwrite() {
  if [ "$gated" ] || { [ "$readable" ] && [ -e /proc/self/fd ]; }; then in_place 4<"$p"; else in_place 4>>"$p"; fi 2>/dev/null
  no permission_denied
}
in_place() {
  is_open 4 "$found_at" || swapped
  to=/proc/self/fd/4; [ -e "$to" ] || { [ ! "$gated" ] || unsafe /proc; to=$p; }
  # First, because others may be able to read the file.
  if [ "$owner" ] && [ "$mode" ]; then why=$(chmod -- "$mode" "$to" 2>&1) || because "$why"; fi
  why=$( { cat <"$f" >"$to"; } 2>&1) || because "$why"
  dated "$to"
  flush "$to"; tidy; say ok; exit 0
}
attributes() { cp --attributes-only --preserve="mode,xattr$labels" -- "$1" "$f"; }
same_attributes() { [ "$(identity <&4)" != "$found_at" ] || attributes /proc/self/fd/4; }
copy_attributes() {
  labels=; [ ! -e /sys/fs/selinux/enforce ] || labels=,context
  if [ "$gated$pinned" ] && [ -e /proc/self/fd ]; then same_attributes 4<"$p"; else attributes "$p"; fi 2>/dev/null
}
give() { chown $nofollow "$1" "$f" 2>/dev/null; }
# The owner before the mode and both before the name, so that no content is ever set-id for another user than its own.
# Where that user cannot get the file back, it is not set-id any more. The copied attributes have a mode, too; what they
# have of capabilities is cleared by the second change of the owner.
give_back() {
  case $kept in
    "") umask "$mask";;
    unknown) overwrite;;
    *) mode=${mode:-${kept%% *}}
      give "$owner"
      copy_attributes;;
  esac
  case $kept in
    *" $owner") give "$owner" || overwrite;;
    *) give "$owner" || {
        case $mode in [1357]???) mode=1${mode#?};; ????) mode=0${mode#?};; esac
        [ ! "$kept" ] || give "${kept#* }" || overwrite
      };;
  esac
  why=$(chmod -- "${mode:-=rw}" "$f" 2>&1) || because "$why"
}
# Whether the file that is open as $1 is $2, as far as anything here tells.
is_open() { found=$(identity <&"$1") || found=$2; [ "$found" = "$2" ]; }
arrived() {
  if [ "$f" = "$t" ]; then is_open 3 "$(named "$p")" && return
  else [ "$f" -ef "$p" ] && return; fi
  # It may have arrived, and been replaced by the next writer.
  o=$(readlink "$f"); o=${o%" (deleted)"}
  [ "${o##*/}" = "$b" ]
} 2>/dev/null
receive() {
  set +C
  f=/proc/self/fd/3 nofollow=
  [ -e "$f" ] || { [ ! "$gated" ] || unsafe /proc; f=$t nofollow=-h; }
  receiving=1
  say ok "$exact" || exit
  if [ "$large" ] && [ "$exact" ]; then receive_and_follow; else why=$( { chunks >&3; } 2>&1) || because "$why"; fi
  read -r n size sum && [ "$n" = end ] || no transfer_failed
  verify_and_flush
  unchanged
  if [ "$owner" ]; then give_back
  else case $kept in
    "") umask "$mask"; why=$(chmod "${mode:-=rw}" "$f" 2>&1) || because "$why";;
    unknown) overwrite;;
    *) case $kept in [2-7]???" "*) give "${kept#* }";; esac
      copy_attributes
      give "${kept#* }" || overwrite
      why=$(chmod "${kept%% *}" "$f" 2>&1) || because "$why";;
  esac; fi
  dated "$f"
  [ ! -d "$p" ] || no wrong_file_type
  replace "$t" "$p" || case ${why##*: } in *busy*) overwrite;; *) because "$why";; esac
  arrived || swapped
  flush .; say ok; exit 0
}
exec 5>&1
reach "$1" file write
if [ ! "$gated$pinned" ] && [ -L "$p" ]; then
  [ "$replaces" != nothing ] || no file_exists
  p=$(readlink -f -- "$p" && echo x) || no no_such_directory; p=${p%??}
fi
parent
case $b in ""|.|..) no wrong_file_type;; esac
enter "$d" || no permission_denied
p=./$b
[ ! -L "$p" ] || swapped
kept= found_at= followed= readable=
if [ -e "$p" ]; then
  [ -f "$p" ] || no wrong_file_type
  [ -w "$p" ] || { [ "$owner" ] && [ -O "$p" ]; } || no permission_denied
  [ ! -r "$p" ] || readable=1
  kept=$( { stat -c '%a %u:%g %d:%i' -- "$p" || stat -f '%Mp%Lp %u:%g %d:%i' -- "$p"; } 2>/dev/null) || kept=unknown
  [ ! "$gated" ] || [ "$kept" != unknown ] || unsafe stat
  case $kept in *:*:*) found_at=${kept##* } kept=${kept% *};; esac
fi
unchanged
[ "$gated" ] || clear_litter
{ read -r self n </proc/self/stat || self=$(exec sh -c 'echo $PPID'); } 2>/dev/null
t=./.connmgr-$self-$host-$3
tidy() { rm -f -- "$t"; }
trap '[ ! -e "$t" ] || tidy' EXIT
trap 'exit 1' HUP INT TERM PIPE
mask=$(umask); umask 077; set -C
receive 3>"$t" 2>/dev/null
why=$( { : 3>"$t"; } 2>&1); because "$why"
