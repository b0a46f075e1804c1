#!/bin/sh
# Run a process with its streams in a WebSocket, which curl cannot use: a client in some thirty lines of Python.
set -eu
. "$(dirname "$0")/request.sh"

python3 - "$url" "$state/headers" "$(cat "$state/connection")" <<'END'
import base64, json, os, socket, struct, sys, urllib.parse

url, headers, connection = sys.argv[1:]
at = urllib.parse.urlsplit(url)
stream = socket.create_connection((at.hostname, at.port), 30)
token = next(line for line in open(headers) if line.startswith("Authorization")).strip()
key = base64.b64encode(os.urandom(16)).decode()
stream.sendall(
    f"GET /shell/pipe HTTP/1.1\r\nHost: {at.netloc}\r\n{token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
)
received = stream.makefile("rb")
assert received.readline().startswith(b"HTTP/1.1 101 ")
while received.readline().strip():
    pass


def send(opcode, content):
    # Of a client's frame all bytes are combined with a mask, here one of zeros.
    assert len(content) < 126
    stream.sendall(bytes((0x80 | opcode, 0x80 | len(content), 0, 0, 0, 0)) + content)


send(1, json.dumps({"connection": connection, "command": "tr a-z A-Z; exit 3"}).encode())
send(2, b"\0hello from a pipe\n")
send(2, b"\4")
while True:
    opcode, length = received.read(2)
    if length > 125:
        length = int.from_bytes(received.read(2 if length == 126 else 8), "big")
    frame = received.read(length)
    if opcode == 0x82 and frame[0] == 0:
        print(frame[1:].decode(), end="")
    elif opcode == 0x82 and frame[0] in (5, 6):
        print(f"exit status {struct.unpack('>i', frame[1:])[0]}" if frame[0] == 5 else frame[1:].decode())
        break
END
