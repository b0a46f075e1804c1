# Sends HUP to all processes with CONNMGR_STREAM=$1 in their environment, and to all below them.
carried=CONNMGR_STREAM=$1 root=- spared=
descendants
[ -z "$found" ] || kill -HUP $found 2>/dev/null
