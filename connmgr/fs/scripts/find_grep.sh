# Finds out whether grep ends the name of a file with NUL, and whether cut passes NUL on; busybox does neither.
separates= cuts=
case $(printf 'x\n' | grep -H --null -F x 2>/dev/null | tr '\0' /) in */x) separates=1;; esac
case $(printf 'x\0y\n' | LC_ALL=C cut -b 1-3 2>/dev/null | tr '\0' /) in x/y) cuts=1;; esac
