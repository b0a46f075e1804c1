# Sends HUP to all processes with CONNMGR_STREAM=$1 in their environment, and to all below them. A login shell that runs
# the command of a stream itself has the mark in its argv. The brackets keep grep from finding its own argv.
carried=CONNMGR_STREAM=$1 spoken="CONNMGR_[S]TREAM='$1'" root=- spared=
descendants
[ -z "$found" ] || kill -HUP $found 2>/dev/null
