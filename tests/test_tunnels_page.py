"""docs/TUNNELS.md, verbatim, against a real daemon, an sshd and a web server."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.deadlines import eventually
from tests.transcripts import sit_down, transcripts, typed

PORT = 8017


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[None]:
    """The web server of the page."""
    directory = tmp_path / "web"
    directory.mkdir()
    (directory / "greeting").write_text("hello\n")
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(directory), str(PORT)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(
                lambda: urllib.request.urlopen(f"http://127.0.0.1:{PORT}/greeting", timeout=20).close() is None,
                "the web server does not start",
                ignoring=urllib.error.URLError,
            )
            yield
        finally:
            process.kill()


@pytest.mark.needs("bash", "curl", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    ssh_home: Path, start_daemon: StartDaemon, web_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=ssh_home, environment={"SHELL": "/bin/bash"})
    daemon.client.connection.add("web1", {"type": "ssh", "host": "web1"})
    sit_down(daemon, monkeypatch)
    for text in transcripts("TUNNELS.md"):
        shown = "".join(line for line in typed(text, tmp_path).splitlines(keepends=True) if not _is_added(line))
        assert shown == text


def _is_added(line: str) -> bool:
    """Whether a line is the uuid that ``connmgr add`` prints."""
    return re.fullmatch(r"[0-9a-f-]{36}\n", line) is not None
