"""Reading the state after a command takes time in proportion to its size, whatever the state."""

from __future__ import annotations

import pytest

from connmgr.engine.envelope import STATE_BYTES
from connmgr.engine.state import State, parse_exports
from tests.hostile import fill, quickly

DUMPS = [
    ("export A=", "$'a'", "("),
    ("export A=", '"a"', "("),
    ("export A=", "''", "("),
    ("export A=", "\\a", "("),
    ("export A=", "$", ""),
    ("export A=(", " a", ""),
    ("export A=(", "()", ""),
    ('export A="', "\\a", ""),
    ("export A=$'", "\\'", ""),
    ("export", " -a", ""),
    ("export ", "a", ""),
    ("", "export A\n", ""),
    ("", "export A=\n", ""),
    ("", "\0", ""),
    ("", "A=\0", ""),
]


@pytest.mark.parametrize("from_env", [False, True], ids=["sh", "env"])
@pytest.mark.parametrize(("begin", "middle", "end"), DUMPS)
def test_variables_are_read_in_linear_time(begin: str, middle: str, end: str, from_env: bool) -> None:
    dump = begin.encode() + fill(middle.encode(), STATE_BYTES - len(begin) - len(end) - 1) + end.encode()
    with quickly():
        State().update(b"/", dump, from_env=from_env)


def test_the_least_exponential_variable_is_refused_at_once() -> None:
    with quickly():
        assert parse_exports(b"export A=" + b"$'a'" * 24 + b"(") is None
