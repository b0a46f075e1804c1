p=$1
grep -qszF "CONNMGR_BOOT=$2" "/proc/$p/environ" && kill -KILL "$p" || exit
resume
