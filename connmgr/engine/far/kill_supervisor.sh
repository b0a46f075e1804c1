p=$1
grep -qsF "CONNMGR_BOOT=$2" "/proc/$p/environ" && kill -KILL "$p" || exit
resume
