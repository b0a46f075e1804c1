# Runs the command on descriptor 7, and prints the state after it.
read -lz __cm_q </dev/fd/7;set -e __cm_q[2]
# `eval` itself does not report a redirection that fails.
eval "$__cm_q
;set __cm_r \$status";set __cm_s $status
set -q __cm_r;or set __cm_r $__cm_s;set -eg fish_trace CONNMGR_COMMAND
builtin printf ":%s@directory@\n" @nonce@;builtin pwd
if builtin test -d /proc/@supervisor@/cwd;and not builtin test . -ef /proc/@supervisor@/cwd 2>/dev/null
    builtin printf ":%s@moved@\n" @nonce@;builtin test . -ef "$PWD";or /bin/pwd -P;or builtin echo /dev/null
end
builtin printf ":%s@variables@\n" @nonce@;@env@ -0
builtin printf ":%s@rest@\n" @nonce@;builtin exit $__cm_r
