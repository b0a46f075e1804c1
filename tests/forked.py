"""Stands for ``connmgr`` where another program starts it: it is forked (tests/spawner.py) with the streams of this one.

Its arguments: the spawner's address, then those of the program, whose exit code becomes its own.
"""

import json
import os
import socket
import struct
import sys

address, *arguments = sys.argv[1:]
program = sys.executable.rpartition("/")[0] + "/connmgr"
told, tells = os.pipe()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as spawner:
    spawner.connect(address)
    cwd = os.getcwd()  # noqa: PTH109 - loading pathlib would take as long as all else
    words = json.dumps([[program, *arguments], dict(os.environ), cwd, os.umask(0), False, False, False])
    socket.send_fds(spawner, [words.encode()], [0, 1, 2, tells])
    spawner.recv(32)
for descriptor in (0, 1, 2, tells):
    os.close(descriptor)
(status,) = struct.unpack("i", os.read(told, 4))
os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
