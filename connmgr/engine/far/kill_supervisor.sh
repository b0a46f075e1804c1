grep -qsF "CONNMGR_BOOT=$2" "/proc/$1/environ" && kill -KILL "$1"
