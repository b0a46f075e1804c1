"""Files larger than the daemon's memory may grow."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.wire import LOCAL, address
from tests.conftest import StartDaemon
from tests.fs.wire import Caller

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.needs("linux")]

MEBIBYTE = 1 << 20
SIZE = 160 * MEBIBYTE
GROWTH = 32 * MEBIBYTE
ANSWER_SECONDS = 300.0


def memory(pid: int, what: str) -> int:
    """Return a line of /proc/PID/status in bytes: ``VmRSS`` is the resident memory, ``VmHWM`` its peak."""
    line = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert line
    return int(line[1]) * 1024


def content() -> Iterator[bytes]:
    for number in range(SIZE // MEBIBYTE):
        yield number.to_bytes(8, "big") * (MEBIBYTE // 8)


def test_a_large_file_up_and_down_costs_little_memory(start_daemon: StartDaemon, tmp_path: Path) -> None:
    expected = hashlib.sha256()
    for piece in content():
        expected.update(piece)
    daemon = start_daemon()
    caller = Caller(daemon)
    caller.start()
    assert caller.read("/proc/version").status == caller.write(tmp_path / "small", b"x").status == 200
    before = memory(daemon.pid, "VmRSS")

    connection = http.client.HTTPConnection(*address(daemon.url), timeout=ANSWER_SECONDS)
    connection.request("POST", "/fs/blob", content(), {**caller.headers, "Content-Length": str(SIZE)})
    blob = json.loads(connection.getresponse().read())["blob"]
    headers = {**caller.headers, "Content-Type": "application/json"}
    fields = {"connection": LOCAL, "path": str(tmp_path / "large")}
    connection.request("POST", "/fs/write", json.dumps({**fields, "blob": blob}), headers)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())) == (200, {})

    connection.request("POST", "/fs/read", json.dumps(fields), headers)
    response = connection.getresponse()
    assert response.headers["Content-Length"] == str(SIZE)
    received = hashlib.sha256()
    while piece := response.read(MEBIBYTE):
        received.update(piece)
    connection.close()
    assert received.digest() == expected.digest()
    grown = memory(daemon.pid, "VmHWM") - before
    assert grown < GROWTH, f"the daemon grew by {grown / MEBIBYTE:.1f} MiB"
