"""A daemon in a container may run as a user id that no /etc/passwd lists."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNLISTED = 54_321
PROGRAM = f"""
import os
from contextlib import suppress

from connmgr_local.transport import LocalTransport
from connmgr_ssh.config import local_user

os.setgid({UNLISTED})
os.setuid({UNLISTED})
transport = LocalTransport()
channel = transport.open_channel(["/bin/sh", "-c", 'pwd; echo "$HOME $SHELL"'], timeout=20)
said = b""
with suppress(EOFError):
    while True:
        said += channel.recv(20)[0]
transport.close()
print(said.decode() + local_user())
"""


@pytest.mark.needs("root")
def test_an_unlisted_user_has_local_shells_and_a_name_for_ssh() -> None:
    argv = [sys.executable, "-c", PROGRAM]
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["/", "/ /bin/sh", str(UNLISTED)], done.stderr
