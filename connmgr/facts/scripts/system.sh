type=$(uname -s) release=$(uname -r)
echo "arch=$(uname -m)"
echo "kernel=$release"
echo "host.name=$(uname -n)"
id= version= name=
for file in /etc/os-release /usr/lib/os-release; do
  [ -r "$file" ] || continue
  while IFS='=' read -r key value || [ "$key" ]; do
    case $value in \"*\") value=${value#\"} value=${value%\"};; \'*\') value=${value#\'} value=${value%\'};; esac
    case $key in ID) id=$value;; VERSION_ID) version=$value;; PRETTY_NAME) name=$value;; esac
  done <"$file"
  break
done
if [ ! "$id" ] && has sw_vers; then id=macos version=$(sw_vers -productVersion) name="macOS $version"; fi
echo "os.type=$type"
echo "os.id=${id:-$type}"
echo "os.version=${version:-$release}"
echo "os.name=${name:-$type $release}"
cpus=$(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null)
echo "cpu.count=$cpus"
if [ -r /proc/meminfo ]; then
  # A K for the daemon, because some shells count with 32 bits.
  while read -r key value _; do
    case $key in
      MemTotal:) echo "memory.total=${value}K";;
      MemAvailable:) echo "memory.available=${value}K";;
      SwapTotal:) echo "swap.total=${value}K";;
      SwapFree:) echo "swap.free=${value}K";;
    esac
  done </proc/meminfo
elif has sysctl; then echo "memory.total=$(sysctl -n hw.memsize 2>/dev/null || sysctl -n hw.physmem 2>/dev/null)"
fi
if [ -r /proc/uptime ]; then
  read -r uptime _ </proc/uptime
  echo "uptime=${uptime%%.*}"
elif has sysctl; then
  boot=$(sysctl -n kern.boottime 2>/dev/null) boot=${boot#*sec = } boot=${boot%%,*}
  now=$(date +%s)
  case $boot in ""|*[!0-9]*) ;; *) echo "uptime=$((now - boot))";; esac
fi
# Without -l it asks network file systems, whose servers may be away; POSIX does not have -l.
{ df -P -k -l 2>/dev/null || df -P -k 2>/dev/null; } | while read -r device total _ free _ mount; do
  case $mount in
    /) echo "disk.total=${total}K"; echo "disk.free=${free}K";;
    /*) case $device in /dev/*) echo "disk.$mount.total=${total}K"; echo "disk.$mount.free=${free}K";; esac;;
  esac
done
