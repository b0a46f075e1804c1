"""The engine's cases over every way to a shell, in pairs instead of all combinations.

A case is a test with one set of its other parameters. It runs in each shell on this machine, and here once by each way:
case ``index`` of a test runs by way ``number`` in shell ``index + offset + number``, counted around, where ``offset``
is the place of the test among all. Because the shells of the next case are shifted by one, all cases together meet
every way with every shell. Nothing is random: the same cases make the same runs.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.engine.shells import SESSIONS

Test = Callable[..., None]


def cases_of(*modules: types.ModuleType) -> dict[str, Test]:
    """Return the tests of ``modules`` with a session fixture and without the mark ``local``, by name."""
    return {
        name: test
        for module in modules
        for name, test in vars(module).items()
        if name.startswith("test_") and session_of(test) and not any(mark.name == "local" for mark in marks_of(test))
    }


def session_of(test: Test) -> str | None:
    """Return the name of ``test``'s session fixture, or None."""
    return next((name for name in inspect.signature(test).parameters if name in SESSIONS), None)


def marks_of(test: Test) -> list[pytest.Mark]:
    """Return the marks on the function ``test``."""
    return list(getattr(test, "pytestmark", []))


def over(ways: Mapping[str, Sequence[str]], tests: Mapping[str, Test]) -> dict[str, Test]:
    """Return copies of ``tests`` with a way and a shell for the session fixture.

    :param ways: the components that each way needs, by its name.
    """
    return {name: _spread(test, ways, offset) for offset, (name, test) in enumerate(tests.items())}


def _spread(test: Test, ways: Mapping[str, Sequence[str]], offset: int) -> Test:
    session = session_of(test)
    assert session
    shells = list(SESSIONS[session])
    names: list[str] = []
    tables = []
    for mark in reversed([mark for mark in marks_of(test) if mark.name == "parametrize"]):
        if mark.args[0] == session:
            shells = list(mark.args[1])
        else:
            wanted, values = mark.args[0], mark.args[1]
            several = [name.strip() for name in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
            names += several
            tables.append(_parameters(list(values), mark.kwargs.get("ids"), several))
    runs = [
        pytest.param((way, shell.values[0]), *values, id="-".join([way, str(shell.id), *ids]), marks=marks)
        for way, shell, values, ids, marks in _runs(itertools.product(*tables), ways, shells, offset)
    ]
    copy = types.FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    functools.update_wrapper(copy, test)
    others = [mark for mark in marks_of(test) if mark.name != "parametrize"]
    copy.pytestmark = [*others, pytest.mark.parametrize((session, *names), runs, indirect=[session]).mark]
    return copy


def _runs(cases: Iterator[Any], ways: Mapping[str, Sequence[str]], shells: list[Any], offset: int) -> Iterator[Any]:
    for index, case in enumerate(cases):
        values = [value for parameter in case for value in parameter.values]
        ids = [parameter.id for parameter in case]
        own = [mark for parameter in case for mark in parameter.marks]
        for number, (way, needed) in enumerate(ways.items()):
            shell = shells[(index + offset + number) % len(shells)]
            yield way, shell, values, ids, [*shell.marks, *own, pytest.mark.needs(*needed)]


def _parameters(values: list[Any], ids: Any, names: list[str]) -> list[Any]:
    """Return a mark's parameters for ``names``, each as pytest.param with an id."""
    given = [ids(value) for value in values] if callable(ids) else ids or [None] * len(values)
    parameters = []
    for value, id in zip(values, given, strict=True):
        if hasattr(value, "values") and hasattr(value, "marks"):
            label = value.id or "-".join(map(repr, value.values))
            parameters.append(pytest.param(*value.values, id=label, marks=value.marks))
        else:
            parts = [value] if len(names) == 1 else list(value)
            parameters.append(pytest.param(*parts, id=str(id or "-".join(map(repr, parts)))))
    return parameters
