"""A compound command counts as its parts only where every shell would read them alike; else it is judged whole."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.rights.programs import MAX_PARTS, as_argv, as_compound
from connmgr.rights.rules import Decision, of_parts
from tests.components import program
from tests.deadlines import DEADLINE_SECONDS
from tests.rights.test_argv import SHELLS

READ = {
    "a && b": ([["a"], ["b"]], ["&&"]),
    "a -x|b 'c d';e": ([["a", "-x"], ["b", "c d"], ["e"]], ["|", ";"]),
    "a||b||c": ([["a"], ["b"], ["c"]], ["||", "||"]),
    "  a  ;  b  ": ([["a"], ["b"]], [";"]),
    "a '&&' b && c \"|\" \\;": ([["a", "&&", "b"], ["c", "|", ";"]], ["&&"]),
    "/bin/a x; /bin/b y | c": ([["/bin/a", "x"], ["/bin/b", "y"], ["c"]], [";", "|"]),
}

# Another grammar, another precedence, another process, or another meaning in one of the shells.
WHOLE = r"""
a
a &
a & b
a && b &
a &&
&& a
a ;
; a
a ;; b
a | | b
a |& b
a &| b
a &! b
a &&& b
a ||| b
a && || b
a && b || c
a || b ; c && d
a |
! a && b
a && ! b
a && (b)
(a; b)
{ a; b; }
a && { b; }
a; if b; then c; fi
a && cd /
cd / && a
export A=b; c
A=b c; d
a && A=b c
a > f && b
a && b 2>&1
a < f | b
a && b $x
a && $(b)
a && `b`
a && "$b"
a && b *
a && ~/b
a && =b
a && %1
time a && b
exec a; b
a; exec b
. f; a
source f && a
eval a; b
a; exit
a && set -e
a; and b
a; or b
not a; b
begin; a; end
a; end
repeat 2 a; b
foreach x (a); b
a:; b
a # b; c
a && 'cd' /
a && c'd' /
a && b!
a && !!
a; ^b^c
a; @ x
a; b {c,d}
a && ''
'' ; a
"""


@pytest.mark.parametrize("text", READ)
def test_simple_commands_with_operators_are_parts(text: str) -> None:
    parts, operators = READ[text]
    found = as_compound(text)
    assert found is not None
    assert [list(part) for part in found.parts] == parts
    assert list(found.operators) == operators


@pytest.mark.parametrize("text", [line for line in WHOLE.split("\n") if line])
def test_anything_else_is_one_whole(text: str) -> None:
    assert as_compound(text) is None


@pytest.mark.parametrize("control", ["\n", "\r", "\r\n", "\t", "\0", "\x0b", "\u2028", "\u00a0", "\\\n"])
def test_other_ends_of_commands_are_no_operators(control: str) -> None:
    for text in (f"a;{control}b", f"a{control}b; c", f"a &&{control}b", f"a && b{control}", f"{control}a; b"):
        assert as_compound(text) is None, text


def test_their_number_is_limited() -> None:
    assert as_compound(";".join(["a"] * MAX_PARTS)) is not None
    assert as_compound(";".join(["a"] * (MAX_PARTS + 1))) is None


def test_a_part_behind_a_pipe_alone_reads_it() -> None:
    found = as_compound("a && b | c; d")
    assert found is not None
    assert [found.reads_pipe(part) for part in range(4)] == [False, False, True, False]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that notes its name, and exits with the code that it is given."""
    path = tmp_path_factory.mktemp("compound") / "step"
    path.write_text('#!/bin/sh\necho "$1" >>log\nexit "$2"\n')
    path.chmod(0o755)
    return path


def ran(argv: Sequence[str], place: Path) -> tuple[list[str], int]:
    """Run a program in ``place``; return which steps it ran, and its exit code."""
    log = place / "log"
    log.write_text("")
    done = subprocess.run(argv, cwd=place, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.stderr == b"", (argv, done.stderr)
    return log.read_text().split(), done.returncode


def check(step: Path, operators: Sequence[str], codes: Sequence[int]) -> None:
    """Check that what runs for a text is what every shell would have run, with the same exit code."""
    parts = [f"{step} {number} {code}" for number, code in enumerate(codes)]
    text = "".join(f"{part} {operator} " for part, operator in zip(parts, (*operators, ""), strict=True)).strip()
    compound = as_compound(text)
    assert compound is not None
    argv = of_parts(compound, [Decision("allow", argv=part, exact=True) for part in compound.parts]).argv
    assert argv is not None
    steps, code = ran(argv, step.parent)
    for shell in SHELLS:
        if program(shell.split()[0]) is not None:
            theirs, status = ran([*shell.split(), "-c", text], step.parent)
            # For csh a pipeline has failed if any part of it has, for others if the last one has; sh is what runs it.
            if not (shell.startswith("tcsh") and "|" in operators):
                # The parts of a pipe begin at once.
                assert (sorted(theirs), status) == (sorted(steps), code), f"{shell}: {text}"


def test_each_operator_means_the_same_in_every_shell(step: Path) -> None:
    for operator, codes in itertools.product(("&&", "||", ";", "|"), itertools.product((0, 3), repeat=2)):
        check(step, [operator], codes)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["&&", "||"]).flatmap(
        lambda chosen: st.lists(
            st.tuples(st.sampled_from([chosen, ";", "|"]), st.sampled_from([0, 3])), min_size=2, max_size=4
        )
    ),
    st.sampled_from([0, 3]),
)
def test_chains_mean_the_same_in_every_shell(step: Path, joined: list[tuple[str, int]], last: int) -> None:
    check(step, [operator for operator, _ in joined], [*(code for _, code in joined), last])


def test_the_programs_are_run_and_no_builtin_of_their_name() -> None:
    compound = as_compound("echo a && test b")
    assert compound is not None
    decisions = [Decision("allow", argv=part, exact=True, path="/usr/bin:/bin") for part in compound.parts]
    assert of_parts(compound, decisions).argv == (
        "/bin/sh",
        "-c",
        "/usr/bin/env PATH=/usr/bin:/bin echo a && /usr/bin/env PATH=/usr/bin:/bin test b",
    )


def test_one_denied_part_denies_the_whole() -> None:
    compound = as_compound("a; b; c")
    assert compound is not None
    for effects in (("allow", "deny", "allow"), ("ask", "allow", "deny")):
        assert of_parts(compound, [Decision(one) for one in effects]).effect == "deny"
    assert of_parts(compound, [Decision("allow"), Decision("ask"), Decision("allow")]).effect == "ask"


def test_a_single_command_is_no_compound() -> None:
    assert as_compound("a b") is None
    assert as_argv("a b") == ("a", "b")
