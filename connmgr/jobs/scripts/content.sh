# Prints the part of each stream after its first blocks, after a mark.
job_content() {
  say
  if [ "$state" != gone ] && [ "$blocks" != 0 ] && job_file "$1" && [ -s "$1" ]; then
    dd bs=4096 skip="$2" count="$blocks" <"$1" 2>/dev/null
  fi
}
job_content "$d/out" "$out_block"
job_content "$d/err" "$err_block"
blocks=1
job_content "$d/cwd" 0
true
