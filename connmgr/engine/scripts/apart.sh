# For channels with separate streams of output and errors. A command that makes its output non-blocking (asyncio)
# affects all processes that share the open file. Reopening yields another open file. This works for pipes on Linux, but
# not for sockets or pipes of another user, and not where a terminal would become the controlling one. It is tried in a
# subshell first, because a failing `exec` would end some shells.
if (@renewal@);then _cm_renew(){ @renewal@||:;};else _cm_renew(){ :;};fi
_cm_end(){ _cm_say "$2 $1" >&8;_cm_say "$2" >&9;hash -r;_cm_renew;}
_cm_done(){ _cm_say "$2 $1";_cm_say "$2" >&2;}
