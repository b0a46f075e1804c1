# During a redirection, bash saves the replaced descriptor near the number of the copied one; these copies keep it away
# from the numbers that scripts use.
# shellcheck shell=bash
if { exec 254>&8;} 2>&-;then exec 254>&-;_cm_streams=(248 249 248 249)
_cm_hold(){ exec 248>&8 249>&9;};_cm_free(){ exec 8>&- 9>&- 248>&- 249>&-;}
else _cm_streams=(8 9 - -);_cm_hold(){ :;};_cm_free(){ :;};fi
