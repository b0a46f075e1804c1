# During a redirection, the shell saves the replaced descriptor in the first free number from 10 on, which scripts use.
# Occupying these numbers makes it use higher ones. Not every sh accepts numbers of two digits.
# shellcheck disable=SC2261,SC3023
if (exec 19>&8);then
_cm_hold(){ exec 10>&8 11>&8 12>&8 13>&8 14>&8 15>&8 16>&8 17>&8 18>&8 19>&8;}
_cm_free(){ exec 10>&- 11>&- 12>&- 13>&- 14>&- 15>&- 16>&- 17>&- 18>&- 19>&-;};else _cm_hold(){ :;};_cm_free(){ :;};fi
