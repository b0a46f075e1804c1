# For channels with one stream of output, which both descriptors use. A command may change the terminal's modes; in its
# usual modes the terminal would echo and cut envelopes. What kills a command may take the first stty behind it for a
# part of it: a status of three digits (ksh93: 265) tells, and another stty follows, up to ten.
exec 9>&8;eval "_cm_raw(){ $(command -v stty||echo :) raw -echo||case \"\$?.\$#\" in [12]??.?)_cm_raw \"\$@\" x;;esac;}"
_cm_renew(){ :;}
_cm_end(){ _cm_raw <&8;_cm_say "$2 $1" >&8;hash -r;}
_cm_done(){ _cm_raw <&1;_cm_say "$2 $1";}
