# find changes names that it prints on a terminal, so its output never goes to one directly.
case $how in
  find) format="$mark %m=%y:%s:%T@:%U:%G:%u:%g:/%p\n";;
  -c) format="$mark %f:%s:%Y:%u:%g:%U:%G:/%n";;
  -f) format="$mark %Xp:%z:%m:%u:%g:%Su:%Sg:/%N";;
  *) no file_operation_failed "stat is not installed there.";;
esac
say ok
if [ -t 1 ]; then describe | cat; else describe; fi 2>/dev/null
finish
