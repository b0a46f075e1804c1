# Becomes the program $1 of PATH with the words "$@". Used where `exec` would read the name as a builtin, as mksh does,
# or as an option.
_cm_exec(){ _cm_name="$1" _cm_rest="${PATH-/usr/bin:/bin}:" _cm_why="not found" _cm_status=127;shift
while case "$_cm_rest" in "") ! :;; esac;do
_cm_at="${_cm_rest%%:*}";_cm_rest="${_cm_rest#*:}";_cm_at="${_cm_at:-.}/$_cm_name"
if @builtin@ [ -f "$_cm_at" ];then
if @builtin@ [ -x "$_cm_at" ];then @by_path@ "$_cm_at" "$@";fi
_cm_why="not executable" _cm_status=126;fi;done
@builtin@ echo "$_cm_name: $_cm_why" >&2;@builtin@ exit "$_cm_status";}
