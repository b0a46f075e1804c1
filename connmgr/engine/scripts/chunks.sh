# Reads chunks from the channel, each after a line with its size, until a size of 0. More data follow on the channel, so
# nothing may read beyond a chunk. If dd cannot be limited exactly, each chunk is acknowledged on descriptor 5, and the
# next one is sent only then.
if dd count=0 iflag=fullblock; then exact=exact; else exact=; fi </dev/null >/dev/null 2>&1
chunk() {
  if [ ! "$exact" ]; then head -c "$1"; return; fi
  [ "$1" -lt "$block" ] || dd bs="$block" count=$(($1 / block)) iflag=fullblock || return
  [ $(($1 % block)) = 0 ] || dd bs=$(($1 % block)) count=1 iflag=fullblock
}
chunks() {
  while read -r n && [ "$n" != 0 ]; do
    chunk "$n" || exit
    [ "$exact" ] || say ok >&5 || exit
  done
}
