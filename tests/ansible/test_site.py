"""A playbook of what people do, over the daemon's connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ansible.ways import DAEMON, SITE, inventories, sources
from tests.fleet import Fleet, recap, tree

HOSTS = ("web1", "web2")
"""Two hosts suffice for work in parallel."""

LARGE = "web2"
"""The host that gets, and gives back, a file of 20 MB."""

ALONE = "web1"
"""The host that does what each does as if it were alone."""

ONCE = ("--skip-tags", "alike", "-e", f"alone={ALONE}")
"""Options that leave out tasks which reach a host in the same way as others."""

BYTES = ("file", 0o600, bytes(range(256)))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.needs("linux", "sshd")]


def test_a_playbook_does_what_it_says_and_nothing_when_it_checks(fleet: Fleet, tmp_path: Path) -> None:
    source = sources(tmp_path / "sources", large=20)
    inventory = inventories(fleet, tmp_path, source, [LARGE], HOSTS)[DAEMON]
    done = fleet.run("ansible-playbook", *ONCE, "-i", inventory, SITE)
    assert "WARNING" not in done.stderr
    counted = recap(done.stdout)
    assert set(counted) == set(HOSTS)
    assert {counts["failed"] + counts["unreachable"] for counts in counted.values()} == {0}
    assert counted[ALONE]["ignored"] == 1
    made = tree(tmp_path / DAEMON)
    # Files to which the playbook gives no mode have that of the umask.
    mode, large = (source / "bytes").stat().st_mode & 0o777, (source / "large").read_bytes()
    assert made == {
        "fetched": ("directory", source.stat().st_mode & 0o777, b""),
        **_on_each(LARGE, mode),
        f"{LARGE}/site/large": ("file", 0o644, large),
        f"fetched/large-{LARGE}": ("file", 0o644, large),
        **_on_each(ALONE, mode),
        f"{ALONE}/site/bytes": BYTES,
        f"fetched/{ALONE}": BYTES,
        f"{ALONE}/site/page": ("file", 0o644, f"# {ALONE}\nport = 443\n".encode()),
        f"{ALONE}/scripted": ("file", mode, b"a b, 2\n"),
        f"{ALONE}/later": ("file", mode, b"done\n"),
    }

    options = ("--check", "--diff", "--tags", "check", "-l", ALONE)
    done = fleet.run("ansible-playbook", *ONCE, *options, "-i", inventory, SITE)
    assert "-port = 443\n" in done.stdout, "a template would be written anew"
    assert recap(done.stdout)[ALONE]["changed"] == 1
    assert tree(tmp_path / DAEMON) == made


def _on_each(host: str, mode: int) -> dict[str, tuple[str, int, bytes]]:
    return {
        f"met-{host}": ("file", mode, f"{host}\n".encode()),
        host: ("directory", 0o750, b""),
        f"{host}/handled": ("file", 0o600, b"handled\n"),
        f"{host}/site": ("directory", 0o750, b""),
        f"{host}/site/text": ("file", 0o640, f"host {host}\n".encode()),
    }
