# Where output and errors have a stream each. A command that makes its output non-blocking (asyncio) does so for all who
# share it. Opened anew, it is another; that goes with pipes in Linux, but not with sockets, with pipes of another user,
# or where a terminal would get an owner. A failing `exec` alone would end some shells.
if (@renewal@);then _cm_renew(){ @renewal@||:;};else _cm_renew(){ :;};fi
_cm_end(){ _cm_say "$2 $1" >&8;_cm_say "$2" >&9;hash -r;_cm_renew;}
_cm_done(){ _cm_say "$2 $1";_cm_say "$2" >&2;}
