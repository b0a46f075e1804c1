"""The README's first session, held against a real daemon to the letter."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from connmgr.paths import DEFAULT_PORT
from tests.conftest import StartDaemon
from tests.daemon import READY

README = Path(__file__).parent.parent / "README.md"

VARIABLE = {
    r"'osName': '[^']*'": "'osName': …",
    r"'temp': '[^']*'": "'temp': …",
    r"has no address: .*": "has no address: …",
}
"""What differs from machine to machine."""


class _Checker(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        for pattern, replacement in VARIABLE.items():
            want, got = re.sub(pattern, replacement, want), re.sub(pattern, replacement, got)
        return super().check_output(want, got, optionflags)


@pytest.mark.needs("bash", "linux")
def test_the_first_session_goes_as_it_is_written(start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = start_daemon(environment={"SHELL": "/bin/bash"})
    monkeypatch.setenv("CONNMGR_PORT", daemon.url.rpartition(":")[2])
    monkeypatch.setenv("CONNMGR_AUTH_FILE", str(daemon.auth_file))
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README.md", str(README), 0)
    assert len(test.examples) > 10
    report: list[str] = []
    doctest.DocTestRunner(_Checker()).run(test, out=report.append, clear_globs=False)
    test.globs["daemon"].close()
    assert not report, "".join(report)


def test_the_ready_line_is_the_one_of_the_default_address() -> None:
    assert f"\n{READY}http://127.0.0.1:{DEFAULT_PORT}\n" in README.read_text()
