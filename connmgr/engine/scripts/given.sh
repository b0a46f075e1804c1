# Sets the variables that the next line of standard input sets, whose words stand for newlines by $_cm_newline: the words of
# a process can be read by every user of its machine (ps(1)), and its input by none.
_cm_newline='
'
IFS= read -r _cm_given || exit
eval "$_cm_given"
unset _cm_given _cm_newline
