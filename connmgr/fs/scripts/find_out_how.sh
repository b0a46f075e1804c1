# GNU find takes half the time of stat.
if find / -prune -printf ""; then how=find
elif stat -c %n /; then how=-c
elif stat -f %N /; then how=-f
else how=; fi </dev/null >/dev/null 2>&1
