# Unpacks everything into a directory of its own inside the target directory. When all has arrived, the members are
# moved to their places: a new tree in one step, members of an existing directory one by one. Each directory is entered
# before anything in it is examined, and left again if a link has led elsewhere, so nothing passes through a link below
# the caller's directory. The directory of its own is reached by its descriptor, because another user may replace it or
# put a link in its place. Before anything is unpacked it must be empty and open to nobody else: a link in it would lead
# what is unpacked elsewhere.
block=$3
unpack() (
  cd -P "$staged" && [ "$(physical)" = "$root/$t" ] && tar -x -p -o -f - && s=0 || s=$?
  cat >/dev/null
  exit $s
)
# An access list that the directory above hands down may let others in.
close_staged() {
  chmod 0700 "$staged/." 2>/dev/null
  if [ ! -O "$staged/." ] && owners_count; then swapped; fi
  for n in "$staged"/* "$staged"/.[!.]* "$staged"/..?*; do ! exists "$n" || swapped; done
}
# Whether a new file belongs to who has made it, as on most file systems.
owners_count() {
  (set -C; is_ours 9>"./$t.owner") 2>/dev/null
  set -- $?
  rm -f -- "./$t.owner"
  return "$1"
}
is_ours() { if [ -e /proc/self/fd/9 ]; then [ -O /proc/self/fd/9 ]; else [ -O "./$t.owner" ]; fi; }
is_directory() { [ -d "$1" ] && [ ! -L "$1" ]; }
exists() { [ -e "$1" ] || [ -L "$1" ]; }
failed() { why=${2##*: }; printf '%s %s/%s' "$mark" "${why%%/*}" "$1"; }
merge() {
  staged=$1 below=$2
  where=$(physical && echo x); where=${where%??}; [ "$where" != / ] || where=
  set --
  for n in "$staged"/* "$staged"/.[!.]* "$staged"/..?*; do
    b=${n##*/}
    if is_directory "$n"; then
      if is_directory "./$b"; then (descend); continue; fi
      if exists "./$b"; then failed "$below$b" "There is something else than a directory"; continue; fi
    elif ! exists "$n"; then continue
    elif is_directory "./$b"; then failed "$below$b" "There is a directory"; continue
    fi
    set -- "$@" "$n"
    [ $# -lt 100 ] || { put "$@"; set --; }
  done
  [ $# = 0 ] || put "$@"
}
descend() {
  if cd -P "./$b" 2>/dev/null; then
    there=$(physical && echo x)
    [ "${there%??}" = "$where/$b" ] || { failed "$below$b" "Somebody replaced the directory by a link"; return; }
    merge "$n" "$below$b/"
  else failed "$below$b" "Permission denied"; fi
}
put() {
  why=$(mv -f -- "$@" . 2>&1) && return
  for n; do ! exists "$n" || failed "$below${n##*/}" "$why"; done
}
reach "$1" tree fill; trim
[ ! "$gated" ] || removes_safely
[ "$tar" ] || no tar_missing
if [ ! -d "$p" ]; then
  parent
  exists "$p" && no wrong_file_type
  why=$(mkdir -- "$p" 2>&1) || [ -d "$p" ] || because "$why"
fi
if [ "$gated" ]; then
  [ "$p" = . ] || go_in
  root=$h
else
  cd -P "$p" 2>/dev/null || no permission_denied
  root=$(physical && echo x); root=${root%??}
fi
[ "$root" != / ] || root=
{ read -r host </proc/sys/kernel/hostname || host=$(uname -n); } 2>/dev/null
[ "$gated" ] || clear_litter
{ read -r self n </proc/self/stat || self=$(exec sh -c 'echo $PPID'); } 2>/dev/null
t=.connmgr-$self-$host-$2
tidy() { rm -rf -- "./$t"; }
trap tidy EXIT
trap 'exit 1' HUP INT TERM PIPE
mask=$(umask); umask 077
why=$(mkdir -- "./$t" 2>&1) || because "$why"
unpacked() {
  staged=/proc/self/fd/8
  if [ -d "$staged" ]; then
    there=$(readlink "$staged" && echo x)
    [ "${there%??}" = "$root/$t" ] || swapped
  else
    [ ! "$gated" ] || unsafe /proc
    staged=$root/$t
  fi
  close_staged
  receiving=1
  exec 5>&1
  say ok "$mask" "$exact" || exit
  why=$(chunks 2>/dev/null | unpack 2>&1) && bad= || bad=1
  read -r n || exit 1
  receiving=0
  [ "$n" = end ] || no transfer_failed
  [ ! "$bad" ] || because "${why%%"$newline"*}"
  say ok
  merge "$staged" ""
  tidy
  printf '%s end' "$mark"
  exit 0
}
unpacked 8<"./$t"
no permission_denied
