# Takes from the channel what comes in chunks, each after a line with its size; after the last one there is a 0. More
# follows on the channel, so that nothing may read beyond a chunk. Where dd cannot be told to, each chunk is
# acknowledged on descriptor 5, and the next one is not sent before that.
if dd count=0 iflag=fullblock; then exact=exact; else exact=; fi </dev/null >/dev/null 2>&1
chunk() {
  if [ ! "$exact" ]; then head -c "$1"; return; fi
  [ "$1" -lt "$block" ] || dd bs="$block" count=$(($1 / block)) iflag=fullblock || return
  [ $(($1 % block)) = 0 ] || dd bs=$(($1 % block)) count=1 iflag=fullblock
}
chunks() {
  while read -r n && [ "$n" != 0 ]; do
    chunk "$n" || exit
    [ "$exact" ] || say ok >&5
  done
}
