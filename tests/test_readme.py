"""The README's first session, verbatim, against a real daemon."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.paths import DEFAULT_PORT
from tests.conftest import StartDaemon
from tests.daemon import READY
from tests.deadlines import DEADLINE_SECONDS
from tests.transcripts import home_with_hosts, sit_down, typed

README = Path(__file__).parent.parent / "README.md"
SESSION = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

VARIABLE = {
    r"\S+@\S+:\d+": "…",
    r"os_name='[^']*'": "os_name=…",
    r"temp='[^']*'": "temp=…",
    r"has no address: .*": "has no address: …",
    r"127\.0\.0\.1:\d+": "127.0.0.1:…",
    r"CPython [\d.]+": "CPython …",
    r"web\d(  ok +)[\d.]+ s": r"web…\1… s",
    r"in [\d.]+ s: ": "in … s: ",
}
"""What differs from machine to machine."""


def _without_what_varies(text: str) -> str:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    return text


class _Checker(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(_without_what_varies(want), _without_what_varies(got), optionflags)


def _python(text: str, names: dict[str, Any]) -> str:
    """Run the interactive session ``text`` with the variables ``names``, and return its deviations."""
    test = doctest.DocTestParser().get_doctest(text, names, "README.md", str(README), 0)
    assert test.examples
    report: list[str] = []
    doctest.DocTestRunner(_Checker()).run(test, out=report.append, clear_globs=False)
    names.update(test.globs)
    return "".join(report)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Path]:
    """A home directory with an SSH configuration for the README's machines, which are all this one."""
    jump = "Host web1 web2\nHost db\n  ProxyJump web1\n"
    with home_with_hosts(tmp_path / "home", jump, "web1 web2 db") as home:
        yield home


@pytest.mark.needs("bash", "linux", "sshd")
def test_the_first_session_is_as_written(
    hosts: Path, start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=hosts, environment={"SHELL": "/bin/bash"})
    sit_down(daemon, monkeypatch)
    blocks = SESSION.findall(README.read_text())
    assert {language for language, _ in blocks} == {"console", "python"}
    names: dict[str, Any] = {}
    try:
        for language, text in blocks:
            if language == "python":
                problem = _python(text, names)
                assert not problem, problem
            else:
                assert _without_what_varies(typed(text, README.parent)) == _without_what_varies(text)
    finally:
        if "client" in names:
            names["client"].close()
    assert daemon.process.wait(DEADLINE_SECONDS) == 0, daemon.stderr()


def test_the_ready_line_shows_the_default_address() -> None:
    assert f"\n{READY}http://127.0.0.1:{DEFAULT_PORT}\n" in README.read_text()
