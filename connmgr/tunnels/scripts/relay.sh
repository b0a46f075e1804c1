# Joins its standard streams with a TCP connection to $2 port $3, or without $3 to the Unix socket $2, by the program $1.
case $2 in *:*) bracketed="[$2]";; *) bracketed=$2;; esac
case $1 in
  nc)
    # OpenBSD's nc ends the connection at the end of its input only with -N, and otherwise never exits.
    if nc -h 2>&1 | grep '^[[:space:]]*-N' >/dev/null; then ends=-N; else ends=; fi
    if [ -z "${3-}" ]; then exec nc ${ends:+-N} -U "$2"; fi
    exec nc ${ends:+-N} "$2" "$3";;
  # When one direction has ended, socat gives the other one a second: a reader of the end then waits no longer.
  socat)
    if [ -z "${3-}" ]; then exec socat -t 1 STDIO "UNIX-CONNECT:$2"; fi
    exec socat -t 1 STDIO "TCP:$bracketed:$3,nodelay";;
  # bash cannot end one direction alone: when the input ends, the connection stays open until the other side ends it.
  bash) exec bash -c '
exec 3<>"/dev/tcp/$1/$2" 4<&0 || exit 1
cat <&4 >&3 4<&- &
cat <&3
kill "$!" 2>/dev/null
exit 0
' bash "$2" "$3";;
  # Each line is a statement, because the indentation is removed before sending.
  python3) exec python3 -c '
import collections, os, socket, sys, threading
is_port = len(sys.argv) > 2
there = socket.create_connection((sys.argv[1], int(sys.argv[2]))) if is_port else socket.socket(socket.AF_UNIX)
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) if is_port else there.connect(sys.argv[1])
each = lambda take, read: collections.deque(map(take, iter(lambda: read(65536), b"")), 0)
ended = lambda: (each(there.sendall, lambda size: os.read(0, size)), there.shutdown(socket.SHUT_WR))
threading.Thread(target=ended, daemon=True).start()
each(lambda data: (sys.stdout.buffer.write(data), sys.stdout.flush()), there.recv)
os._exit(0)
' "$2" ${3:+"$3"};;
esac
exit 127
