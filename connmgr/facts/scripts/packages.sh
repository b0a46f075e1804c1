# A line for each installed package: its name, and its version.
if has dpkg-query; then
  # shellcheck disable=SC2016 # dpkg-query fills these in
  dpkg-query -W -f '${db:Status-Abbrev}:${Package}=${Version}\n' 2>/dev/null | sed -n 's/^.i.*:\([^:=]*=.*\)/\1/p'
elif has rpm; then rpm -qa --qf '%{NAME}=%{VERSION}-%{RELEASE}\n' 2>/dev/null
elif [ -r /lib/apk/db/installed ]; then
  while IFS=: read -r key value; do
    case $key in P) name=$value;; V) echo "$name=$value";; esac
  done </lib/apk/db/installed
elif has pacman; then pacman -Q 2>/dev/null | sed 's/ /=/'
fi
