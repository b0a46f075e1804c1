# Follows the command in one script, and prints the state after it. A word that is quoted to avoid an alias is not a
# builtin for csh: it runs a program from PATH.
set _cm_r=$status
unalias *
unset echo verbose
set echo_style=bsd
unsetenv CONNMGR_COMMAND
echo -n :;echo @nonce@@directory@;echo $cwd:q
if ( $?tcsh && -d /proc/@supervisor@/cwd ) then
    if ( -F . != -F /proc/@supervisor@/cwd ) then
        echo -n :;echo @nonce@@moved@
        if ( -F . != -F $cwd:q ) /bin/pwd -P || echo /dev/null
    endif
endif
echo -n :;echo @nonce@@variables@;@env@ -0;echo -n :;echo @nonce@@rest@
exit $_cm_r
