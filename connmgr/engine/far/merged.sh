# Where the channel has but one stream of output, which both descriptors are. A command may set the terminal as it
# likes; in its usual mode frames would be echoed, and cut.
exec 9>&8;eval "_cm_raw(){ $(command -v stty||echo :) raw -echo||:;}"
_cm_renew(){ :;}
_cm_end(){ _cm_raw <&8;_cm_say "$2 $1" >&8;hash -r;}
_cm_done(){ _cm_raw <&1;_cm_say "$2 $1";}
