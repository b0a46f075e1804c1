# Runs the command on descriptor 7.
read -lz __cm_q </dev/fd/7;set -e __cm_q[2]
if set -q CONNMGR_CWD
    set -g __cm_cwd $CONNMGR_CWD;set -e CONNMGR_CWD
    function __cm_end --on-event fish_exit;builtin pwd -P >$__cm_cwd;end
end
# `eval` itself does not report a redirection that fails.
eval "$__cm_q
;set __cm_r \$status";set __cm_s $status
set -q __cm_r;or set __cm_r $__cm_s;builtin exit $__cm_r
