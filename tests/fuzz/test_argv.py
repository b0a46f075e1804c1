"""Whatever text rights read as an argv, every shell executes as exactly that argv."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import strategies as st

from connmgr.rights.programs import as_argv
from tests.engine.shells import ALL, local_session, run
from tests.fuzz.rounds import fuzz

RECORDER = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >>"$CONNMGR_TEST_ARGVS"
printf '\\1' >>"$CONNMGR_TEST_ARGVS"
"""

NAMES = [
    "program",
    "0",
    "2",
    "1x",
    "a.b",
    "x-y",
    "x+",
    "_",
    "_x",
    "A",
    "g++",
    "ls~",
    "a:b",
    "é",
    "a b",
    "it's",
    "%1",
    "-x",
]
"""Programs in the PATH, among them those whose names a shell could take for something else."""

LETTERS = "ab1_./:@%+,=-~^ *?[]{}()<>$;&|#\\'\"!`é\u00a0\t\n"
PIECES = [
    *(
        "''",
        '""',
        "=",
        "==",
        "=ls",
        "~",
        "~root",
        "~+",
        "%1",
        "%self",
        "--",
        "x=",
        "--x=",
        ":",
        "@",
        "!!",
        "!$",
        "^a^b",
    ),
    *("#", "{a,b}", "{}", "$x", "${x}", "$(ls)", "`ls`", "<(ls)", ">(ls)", "(ls)", "*(.)", "[a]", "*", "?", "&&", "||"),
    *(";", "&", "|", "2>x", "<<E", "$'x'", '$"x"', "\\ ", "\\'", "\\\\", "\\\n", "\\!", "'!'", '"!"', "'\\'", '"\\"'),
    *("a", "b", "'a b'", '"a b"', "'a\\n'", "\u00a0", "\u2028", "\ufeff", "\r", "\x0b", "\x0c", "\x1b", "\x7f", "😀"),
    *(
        "then",
        "do",
        "in",
        "if",
        "and",
        "or",
        "not",
        "begin",
        "end",
        "-x",
        "+x",
        "1-2",
        "<1-3>",
        "a#b",
        "a^b",
        "%",
        "@x",
    ),
]
WORD = st.lists(
    st.one_of(
        st.sampled_from(PIECES),
        st.text(st.sampled_from("ab1_./:@%+,=-~"), max_size=4),
        st.text(st.sampled_from(LETTERS.replace("'", "")), max_size=4).map("'{}'".format),
        st.text(st.sampled_from(LETTERS.replace('"', "")), max_size=4).map('"{}"'.format),
        st.sampled_from(LETTERS).map("\\{}".format),
        st.text(max_size=2).map("'{}'".format),
    ),
    min_size=1,
    max_size=4,
).map("".join)
NAME = st.sampled_from(NAMES).flatmap(
    lambda name: st.sampled_from([name, f"'{name}'", f'"{name}"', f"''{name}", f'{name}""', f"\\{name}", f" {name}"])
)
TEXT = st.one_of(
    st.builds(" ".join, st.builds(lambda name, words: [name, *words], NAME, st.lists(WORD, max_size=5))),
    st.builds(" ".join, st.lists(WORD, min_size=1, max_size=3)),
    st.builds("program {}".format, st.text(st.sampled_from(LETTERS), max_size=10)),
)

Execute = Callable[[Sequence[str]], list[list[bytes]]]


@pytest.fixture(scope="module", params=ALL)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Execute]:
    """A function that runs texts, one a line, in a session's shell, and returns the argvs of the programs that ran."""
    here = tmp_path_factory.mktemp("argv")
    for name in NAMES:
        (here / name).write_text(RECORDER)
        (here / name).chmod(0o755)
    argvs, environment = here / "argvs", {"PATH": f"{here}:{os.environ['PATH']}"}
    environment["CONNMGR_TEST_ARGVS"] = str(argvs)
    with ExitStack() as stack:
        session = stack.enter_context(local_session(request.param))

        def execute(texts: Sequence[str]) -> list[list[bytes]]:
            argvs.write_bytes(b"")
            run(session, "\n".join(texts), environment=environment, directory=bytes(_empty(here)))
            return [ran.split(b"\0")[:-1] for ran in argvs.read_bytes().split(b"\1")[:-1]]

        yield execute


def _empty(here: Path) -> Path:
    empty = here / "empty"
    empty.mkdir(exist_ok=True)
    return empty


@fuzz(examples=12, texts=st.lists(TEXT, min_size=5, max_size=25))
def test_every_shell_executes_the_argv_that_is_read(executed: Execute, texts: list[str]) -> None:
    # Those that name no program of this test are not run: they could name one of this machine's.
    read = [(text, argv) for text in texts if (argv := as_argv(text)) and argv[0] in NAMES]
    assert executed([text for text, _ in read]) == [[word.encode() for word in argv] for _, argv in read]
