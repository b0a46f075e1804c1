"""docs/CONTAINERS.md, verbatim, against a real daemon and real containers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.components import program
from tests.conftest import StartDaemon
from tests.containers.host import ContainerHost
from tests.plugins.places import Places, ssh_fields
from tests.transcripts import sit_down, transcripts, typed

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ANY = "3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11"


@pytest.mark.needs("machine", "busybox", "sshd", "bash", "podman", "docker", "lxc", "nspawn", "cgroups", "kubectl")
def test_the_page_is_what_a_terminal_shows(
    container_host: ContainerHost,
    ways: Places,
    start_daemon: StartDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in ("docker", "lxc", "nspawn", "kubernetes"):
        container_host.has(kind)
    daemon = start_daemon()
    daemon.client.connection.add("server", {"type": "ssh", **ssh_fields(ways.sshd, "root")})
    sit_down(daemon, monkeypatch)
    blocks = transcripts("CONTAINERS.md")
    if program("lxd"):
        container_host.has("lxd")
    else:
        blocks = [block for block in blocks if "add lxd" not in block]
    expected = "".join(blocks)
    shown = typed(re.sub(r"\bguest\b", container_host.name, expected), tmp_path)
    assert _comparable(shown, container_host.name) == _comparable(expected, container_host.name)


def _comparable(text: str, name: str) -> list[str]:
    """Return lines without variable parts: uuids, the containers' name, the width of columns."""
    return [re.sub(" +", " ", UUID.sub(ANY, line)).replace(name, "guest") for line in text.splitlines()]
