"""An argv is executed unchanged: no shell reads its words, in any session and shell."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connmgr.engine.envelope import Command
from connmgr.engine.running import Result
from connmgr.engine.session import Session
from connmgr.errors import CommandTimeout
from tests.engine.shells import ALL, POSIX, assert_usable, local_session, out, run
from tests.recorder import Recorded, recorded, write_recorder

WORDS = [
    "",
    "a b",
    " ",
    "it's",
    '"',
    "''",
    "\\",
    "\\'",
    "a\\nb",
    "new\nline",
    "\n",
    "tab\there",
    "\r",
    "\x01\x1b[31m\x7f",
    "$HOME",
    "${x:?no}",
    "$(exit 1)",
    "`exit 1`",
    "$'a'",
    "*",
    "[a-z]?",
    "{a,b}",
    "~",
    "~root",
    "A=b",
    "=ls",
    "-",
    "--",
    "-n",
    "!!",
    "^a^b",
    "#",
    "%1",
    ";",
    "&",
    "|",
    ">/nowhere/x",
    "<<EOF",
    "(",
    "if",
    "ä€😀",
    "\u2028\u00a0",
]
# Program names that are builtins, reserved words, options or expanded by some shells.
NAMES = ["cd", "echo", "true", "exec", "command", "builtin", "export", "eval", "set", ":", "[", "if", "print", "whence"]
NAMES += ["noglob", "time", "-", "-x", "A=b", "@x", "%1", "=x", "a b", "it's", "new\nline", "ä"]


def execute(session: Session, *argv: str, timeout: float = 60, **options: object) -> Result:
    command = Command(argv=tuple(word.encode() for word in argv), **options)  # type: ignore[arg-type]
    return session.exec(command, timeout)


def record(session: Session, *argv: str, **options: object) -> Recorded:
    result = execute(session, *argv, **options)
    assert (result.exit_code, bytes(result.stderr)) == (0, b"")
    return recorded(result.stdout)


def check_own_argv(result: Result, name: str) -> None:
    """Check that ``name``, a copy of cat, was executed under its own name and printed its argv."""
    first, *others = bytes(result.stdout).split(b"\0")
    # A name like an option is called by its path.
    called = first.rpartition(b"/")[2] if name.startswith("-") else first
    assert (result.exit_code, called, others) == (0, name.encode(), [b"--", b"/proc/self/cmdline", b""])


def exporting(session: Session, name: str, value: str) -> str:
    """Return the command that exports a variable in the session's shell."""
    return f"setenv {name} '{value}'" if session.info.shell_dialect == 7 else f"export {name}='{value}'"


def test_every_byte_of_each_word_arrives(any_shell: Session, recorder: Path) -> None:
    assert record(any_shell, str(recorder), *WORDS).words == tuple(word.encode() for word in WORDS)
    assert_usable(any_shell)


def test_many_words_arrive(any_shell: Session, recorder: Path) -> None:
    words = ["x" * 50, "it's\n"] * 1000
    assert record(any_shell, str(recorder), *words).words == tuple(word.encode() for word in words)


def test_the_shell_s_own_words_do_not_shadow_a_program(any_shell: Session, tmp_path: Path) -> None:
    cat = shutil.which("cat")
    assert cat
    for name in NAMES:
        (tmp_path / name).symlink_to(cat)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for name in NAMES:
        result = execute(any_shell, name, "--", "/proc/self/cmdline", environment=path)
        check_own_argv(result, name)
    run(any_shell, exporting(any_shell, "PATH", path["PATH"]))
    for name in NAMES:
        result = execute(any_shell, name, "--", "/proc/self/cmdline")
        check_own_argv(result, name)
    run(any_shell, exporting(any_shell, "PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"))


def test_directory_and_variables_are_the_sessions(any_shell: Session, recorder: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    run(any_shell, f"cd {tmp_path}; {exporting(any_shell, 'GREETING', 'hello  there')}")
    found = record(any_shell, str(recorder))
    assert (found.directory, found.environment[b"GREETING"]) == (bytes(tmp_path), b"hello  there")
    assert record(any_shell, "./recorder", "x").words == (b"x",)
    assert record(any_shell, "../recorder", directory=b"place").directory == bytes(tmp_path / "place")
    found = record(any_shell, str(recorder), environment={"GREETING": "it's\n$x", "ONE": "1"})
    assert (found.environment[b"GREETING"], found.environment[b"ONE"]) == (b"it's\n$x", b"1")
    assert record(any_shell, str(recorder)).environment[b"GREETING"] == b"hello  there"
    unset = "unsetenv" if any_shell.info.shell_dialect == 7 else "unset"
    run(any_shell, f"cd /; {unset} GREETING")


def test_an_argv_leaves_the_session_unchanged(any_shell: Session) -> None:
    run(any_shell, "cd /usr")
    assert execute(any_shell, "cd", "/").exit_code in {0, 127}, "the system may have a program of that name"
    assert out(any_shell, "pwd") == "/usr\n"
    run(any_shell, "cd /")


def test_a_program_that_is_not_there_or_not_executable_has_a_shells_status(any_shell: Session, tmp_path: Path) -> None:
    (tmp_path / "not-executable").write_text("no program")
    (tmp_path / "directory").mkdir()
    merged = any_shell.info.tty_state == "merged"
    cases = [("no-such-program", 127), (str(tmp_path / "none"), 127), (str(tmp_path / "not-executable"), 126)]
    cases += [(str(tmp_path / "directory"), 126), ("not-executable", 126), ("-none", 127)]
    for program, status in cases:
        result = execute(any_shell, program, "x", environment={"PATH": f"/usr/bin:/bin:{tmp_path}"})
        assert result.exit_code == status, program
        assert Path(program).name.encode() in (result.stdout if merged else result.stderr), program
    assert execute(any_shell, "").exit_code in {126, 127}
    assert execute(any_shell, "unset", "PATH").exit_code in {0, 127}
    assert_usable(any_shell)


def test_an_argv_reads_its_own_input_alone(any_shell: Session) -> None:
    data = bytes(range(256)) * 200
    assert bytes(execute(any_shell, "cat", stdin=data).stdout) == data
    assert bytes(execute(any_shell, "cat", stdin=b"small\0").stdout) == b"small\0"
    assert bytes(execute(any_shell, "cat").stdout) == b""


def test_an_argv_has_three_descriptors(any_shell: Session) -> None:
    assert len(bytes(execute(any_shell, "ls", "/proc/self/fd").stdout).split()) <= 4, "0, 1, 2 and that of the listing"
    found = bytes(execute(any_shell, "ls", "/proc/self/fd", environment={"A": "b"}).stdout).split()
    assert len(found) <= 4, "0, 1, 2 and that of the listing"


def test_an_argv_is_killed_after_its_timeout(any_shell: Session, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\ntrap '' TERM INT HUP\necho here\nwhile :; do sleep 100; done\n")
    program.chmod(0o755)
    for options in ({}, {"environment": {"A": "b"}}):
        with pytest.raises(CommandTimeout) as caught:
            execute(any_shell, str(program), timeout=0.5, **options)
        assert bytes(caught.value.stdout).startswith(b"here\n"), "on a terminal the shell adds that it was killed"
    assert_usable(any_shell)


def test_a_signal_is_its_status(any_shell: Session) -> None:
    assert execute(any_shell, "sh", "-c", "kill -9 $$").exit_code == 137
    assert execute(any_shell, "sh", "-c", "kill -TERM $$", environment={"A": "b"}).exit_code == 143
    assert_usable(any_shell)


@pytest.mark.local("what a session was told before stays in it")
def test_earlier_commands_of_the_session_do_not_affect_an_argv(
    any_shell: Session, recorder: Path, tmp_path: Path
) -> None:
    before = ["echo hi", exporting(any_shell, "IFS", "/e 12"), exporting(any_shell, "FPATH", str(tmp_path))]
    if any_shell.info.shell_dialect < 6:
        names = ("recorder", "exec", "command", "builtin", "printf", "echo")
        before += [f"{name}() {{ /bin/echo function; }}; export {name}; :" for name in names]
        before += ["alias recorder='echo alias' exec=false; :", "set -f; set -u; set -e; :", "trap 'echo trap' EXIT; :"]
    for text in before:
        run(any_shell, text)
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        assert record(any_shell, "recorder", "*", "a/1 2e", "$x", environment=path).words == (b"*", b"a/1 2e", b"$x"), (
            text
        )
        assert record(any_shell, str(recorder), "*", "a/1 2e").words == (b"*", b"a/1 2e"), text


@pytest.mark.needs("bash")
@pytest.mark.parametrize("name", ["recorder", "exec", "command", "export", "[", "command_not_found_handle", "_cm_exec"])
def test_functions_from_bash_env_do_not_shadow_programs(
    monkeypatch: pytest.MonkeyPatch, recorder: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "start").write_text(f"{name}() {{ echo function; return 7; }}\nshopt -s expand_aliases execfail\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "start"))
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with local_session("bash") as session:
        assert record(session, "recorder", "a b", environment=path).words == (b"a b",)
        assert record(session, str(recorder), "a b").words == (b"a b",)
        (tmp_path / "-x").symlink_to(recorder)
        assert record(session, "-x", "a b", environment=path).words == (b"a b",)
        assert execute(session, "no-such-program").exit_code == 127
        assert_usable(session)


@pytest.mark.parametrize("shell", ["bash", "dash", "ksh93", "mksh", "zsh", "busybox"])
def test_an_sh_of_any_kind_takes_no_builtin_for_a_program(tmp_path: Path, shell: str) -> None:
    if not (found := shutil.which(shell)):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "sh").symlink_to(found)
    cat = shutil.which("cat")
    assert cat
    for name in ("cd", "echo", "[", "-x"):
        (tmp_path / name).symlink_to(cat)
    with local_session(str(tmp_path / "sh")) as session:
        for name in ("cd", "echo", "[", "-x"):
            result = execute(session, name, "--", "/proc/self/cmdline", environment={"PATH": f"{tmp_path}:/bin"})
            assert bytes(result.stdout).endswith(name.encode() + b"\0--\0/proc/self/cmdline\0"), name


@pytest.fixture(scope="module", params=ALL)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Recorded]]:
    """A recorder of argvs in a session that many examples share."""
    recorder = write_recorder(tmp_path_factory.mktemp("argv") / "recorder")
    with ExitStack() as stack:
        session = stack.enter_context(local_session(request.param))
        run(session, "cd /usr")
        yield lambda *words, **options: record(session, str(recorder), *words, **options)


@settings(max_examples=20, deadline=None)
@example(words=WORDS, stdin=b"", value="")
@given(
    words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), max_size=6),
    stdin=st.binary(max_size=3),
    value=st.text(st.sampled_from("ab'\"\\ \n$*~=ä"), max_size=6),
)
def test_whatever_argv_is_sent_is_executed(
    kept: Callable[..., Recorded], words: list[str], stdin: bytes, value: str
) -> None:
    for options in ({}, {"stdin": stdin, "environment": {"VALUE": value}}):
        found = kept(*words, **options)
        assert found.words == tuple(word.encode() for word in words)
        assert found.directory == b"/usr"
    assert found.environment[b"VALUE"] == value.encode()


@pytest.mark.parametrize("shell", POSIX)
def test_probes_of_a_shell_leave_no_trace(shell: str) -> None:
    with local_session(shell) as session:
        assert "_cm_" not in out(session, "env")
        assert b"_cm_" not in bytes(execute(session, "env").stdout)
