# Joins its standard streams with a TCP connection to $2 port $3, by the program $1.
case $2 in *:*) bracketed="[$2]";; *) bracketed=$2;; esac
case $1 in
  nc)
    # The nc of OpenBSD ends what it sends with its input only when it is told to.
    if nc -h 2>&1 | grep '^[[:space:]]*-N' >/dev/null; then exec nc -N "$2" "$3"; fi
    exec nc "$2" "$3";;
  # Where one direction has ended, the other may take a day.
  socat) exec socat -t 86400 STDIO "TCP:$bracketed:$3,nodelay";;
  bash) exec bash -c 'exec 3<>"/dev/tcp/$1/$2" || exit 1; cat <&3 & cat >&3; wait' bash "$2" "$3";;
  python3) exec python3 -c '
import os, socket, sys, threading
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def send():
    while data := os.read(0, 65536):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := there.recv(65536):
    while data:
        data = data[os.write(1, data):]
os._exit(0)
' "$2" "$3";;
esac
exit 127
