"""Separate shells: ``--session``, ``CONNMGR_SESSION`` and ``--fresh``."""

from __future__ import annotations

import pytest

from tests.cli.program import CommandLine

pytestmark = pytest.mark.needs("bash")


def sessions(connmgr: CommandLine) -> list[str | None]:
    return [one.status.session for one in connmgr.daemon.client.shell.list()]


def test_two_sessions_have_two_directories(clean_connmgr: CommandLine) -> None:
    connmgr = clean_connmgr
    one, two = {"CONNMGR_SESSION": "one"}, {"CONNMGR_SESSION": "two"}
    connmgr("exec", "local", "--", "cd /usr; export ODD=1", environment=one)
    connmgr("exec", "local", "--", "cd /etc", environment=two)
    assert connmgr("exec", "local", "--", 'pwd; echo "$ODD"', environment=one).output == "/usr\n1\n"
    assert connmgr("exec", "local", "--", 'pwd; echo "$ODD"', environment=two).output == "/etc\n\n"
    assert connmgr("cp", "local:passwd", "-", environment=two).output.startswith("root:")
    assert connmgr("shell", "local", stdin="pwd\n", environment=one).output == "/usr\n"
    assert connmgr("exec", "--session", "two", "local", "--", "pwd", environment=one).output == "/etc\n"
    assert sorted(map(str, sessions(connmgr))) == ["one", "two"], "a shell without a name was started"


def test_a_fresh_shell_leaves_nothing(clean_connmgr: CommandLine) -> None:
    connmgr, home = clean_connmgr, str(clean_connmgr.daemon.home)
    connmgr("exec", "local", "--", "cd /usr")
    named = {"CONNMGR_SESSION": "one"}
    for environment in ({}, named):
        done = connmgr("exec", "--fresh", "local", "--", "pwd; cd /etc; exit 3", code=3, environment=environment)
        assert done.output == f"{home}\n"
    assert connmgr("exec", "--fresh", "--json", "local", "--", "pwd").json["stdout"] == home
    assert connmgr("exec", "--fresh", "--all", "local*", "--json", "--", "pwd").json["stdout"] == home
    assert connmgr("shell", "--fresh", "local", stdin="pwd\ncd /etc\npwd\n").output == f"{home}\n/etc\n"
    connmgr("shell", "--fresh", "local", stdin="kill -9 $$\n", code=1)
    job = connmgr("exec", "--fresh", "--detach", "local", "--", "pwd").output.strip()
    assert sessions(connmgr) == [None]
    assert connmgr("job", "logs", "-f", job).output == f"{home}\n"
    assert connmgr("exec", "local", "--", "pwd").output == "/usr\n"


def test_one_says_either(clean_connmgr: CommandLine) -> None:
    for command, code in (
        (("exec", "--fresh", "--session", "one", "local", "--", "true"), 125),
        (("shell", "--fresh", "--session", "one", "local"), 2),
    ):
        assert "Give --session or --fresh." in clean_connmgr(*command, code=code).errors
