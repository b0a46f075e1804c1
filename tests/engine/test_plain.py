"""The state is requested after every command except those that cannot change it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connmgr.engine.envelope import HARMLESS, INSTANT, MAX_COMMAND_BYTES, SHELLS_OWN, is_plain, is_single
from connmgr.engine.session import Session
from connmgr.errors import CommandTimeout
from tests.engine.shells import POSIX, assert_usable, local_session, out, run

PLAIN = [
    "true",
    "  /bin/true  ",
    "ls -la /tmp",
    "uname -s; hostname;",
    "ps aux | grep ssh | wc -l",
    "cat /etc/hosts 2>/dev/null >/tmp/x 2>&1",
    'echo "$HOME and $USER" \'a;b\' "it\'s" a=b $PATH',
    "a && b || c",
    "one\ntwo",
    "[ -d /tmp ] && echo yes",
    "ls *.log [a-z]?",
    "echo 'cd /'",
    "grep -c 'it''s' file",
]
NOT_PLAIN = [
    "",
    "cd /",
    "true; cd /",
    "true && cd /",
    "x||cd /",
    "one\ncd /",
    "echo x | read Y",
    "X=1",
    "X=1 env",
    "command cd /",
    "'cd' /",
    'c"d" /',
    "\\cd /",
    "$x cd /",
    ">x cd /",
    "2>x cd /",
    "<x cd /",
    "{ cd /; }",
    "(cd /)",
    "! cd /",
    "time cd /",
    "true &",
    "true & true",
    "x|&y",
    "a;;b",
    "|x",
    "x |",
    "x &&",
    "echo ${X:=1}",
    'echo "${X:=1}"',
    "echo $a[b=1]",
    "echo $((x=1))",
    'echo "$(cd /)"',
    "echo `x`",
    'echo "a\\"; cd /"',
    "x \\\ncd /",
    "x <(y)",
    "x {a,b}",
    "cat <<E\nE",
    "cat 0<&3",
    "echo 'open",
    'echo "open',
    "f(){ cd /; }; f",
    "trap x EXIT",
    "set -e; x",
    "exit 3",
    ". ./x",
    "echo \u00e9",
    "true\r",
    "echo a\0b",
    "x" * (MAX_COMMAND_BYTES + 1),
]

SINGLE = ["true", " /bin/true\n", "echo a=b", "systemctl is-active ssh.service", "x --level=3 a:b,c@d%e+f ../g", "pwd"]
NOT_SINGLE = ["", "a; b", "a | b", "a\nb", "a >b", "a *", "a [b]", "a ~", "a $b", "a 'b'", 'a "b"', "a =b", "a {b,c}"]
NOT_SINGLE += [
    "true\r",
    "true\x0c",
    "cd /",
    "test -f /x",
    "[ -f /x ]",
    "cat x",
    "sleep 1",
    "a &",
    "a=b c",
    "a `b`",
    "a \\b",
    "-",
    "a\0",
]

# The shells' own lists of words, one a line.
WORDS = {
    "bash": "compgen -bk",
    "zsh": "unalias run-help which-command; print -rl -- ${(k)builtins} $reswords ${(k)aliases}",
    "ksh93": "builtin; alias | sed 's/=.*//'",
    "mksh": "alias | sed 's/=.*//'",
    "busybox ash": "help | grep -v ^Built-in | tr ' \\t' '\\n\\n'; alias",
}

TOKENS = [
    "cd",
    "/",
    "export",
    "A=1",
    "unset",
    "B",
    "eval",
    ".",
    "true",
    "X",
    "$B",
    "'x'",
    "/dev/null",
    *"\"'$(){}[];|&>!=\\`#~*-",
    "&&",
    "||",
]


@pytest.mark.parametrize("text", PLAIN)
def test_programs_with_words_are_plain(text: str) -> None:
    assert is_plain(text.encode())


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_whatever_else_is_not(text: str) -> None:
    assert not is_plain(text.encode())


@pytest.mark.parametrize("text", SINGLE)
def test_one_program_with_simple_words_is_single(text: str) -> None:
    assert is_single(text.encode())


@pytest.mark.parametrize("text", NOT_SINGLE)
def test_builtins_that_may_block_the_supervisor_are_not_single(text: str) -> None:
    assert not is_single(text.encode())


@pytest.mark.parametrize(
    ("shell", "listing"), [pytest.param(*pair, marks=pytest.mark.needs(pair[0].split()[0])) for pair in WORDS.items()]
)
def test_every_word_of_a_shells_own_is_known(shell: str, listing: str) -> None:
    printed = subprocess.run([*shell.split(), "-c", listing], capture_output=True, text=True, check=False).stdout
    words = {line.rpartition("/")[2] for line in printed.split("\n") if line and not line.endswith(("-", ":"))}
    assert shell == "busybox ash" or words
    assert {word for word in words if is_plain(word.encode())} <= {word.decode() for word in HARMLESS}


def test_a_word_is_either_harmless_or_not() -> None:
    assert not HARMLESS & SHELLS_OWN
    assert INSTANT <= HARMLESS


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
@settings(max_examples=150, deadline=None)
@example(text="true ' ; cd / '")
@given(text=st.lists(st.sampled_from([*TOKENS, *" \n\n"]), max_size=8).flatmap(lambda words: st.just(" ".join(words))))
def test_a_plain_command_changes_nothing(shell: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not is_plain(text.encode()):
        return
    script = 'eval "$1" >/dev/null; pwd; trap; export -p'

    def state_after(command: str) -> bytes:
        environment = {"PATH": "/usr/bin:/bin", "B": "b"}
        arguments = [shell, "-c", script, shell, command]
        return subprocess.run(
            arguments, env=environment, cwd=tmp_path_factory.getbasetemp(), capture_output=True, check=False
        ).stdout

    assert state_after(text) == state_after("true")


def test_directory_and_variables_are_there_for_a_plain_command(posix: Session) -> None:
    run(posix, "cd /usr/bin; export GREETING='hello there'")
    assert out(posix, "pwd") == "/usr/bin\n"
    assert out(posix, 'echo "$GREETING"') == "hello there\n"
    assert out(posix, "env | grep GREETING") == "GREETING=hello there\n"
    run(posix, "cd ..")
    assert out(posix, "pwd") == "/usr\n"


def test_a_plain_command_that_kills_its_shell_has_that_status(posix: Session, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nkill -9 $PPID\n")
    program.chmod(0o755)
    result = run(posix, f"{program}; true")
    assert result.exit_code == 137
    assert_usable(posix)


def test_a_program_that_has_moved_is_found_again(posix: Session, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "program").write_text(f"#!/bin/sh\necho {directory.name}\n")
        (directory / "program").chmod(0o755)
    run(posix, f"export PATH={first}:{second}:$PATH")
    assert out(posix, "program") == "first\n"
    (first / "program").unlink()
    assert out(posix, "program") == "second\n"


def test_a_single_program_that_ends_by_a_signal_has_its_status(posix: Session, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nkill -$1 $$\n")
    program.chmod(0o755)
    for name, number in {"INT": 2, "TERM": 15, "HUP": 1, "KILL": 9, "SEGV": 11}.items():
        assert run(posix, f"{program} {name}").exit_code == 128 + number
        assert_usable(posix)


def test_a_single_program_reads_nothing_and_keeps_to_its_streams(posix: Session, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(
        '#!/bin/sh\ncat; echo "$# $CONNMGR_COMMAND" | cut -c 1-4; echo oops >&2; ls /proc/self/fd | wc -l\n'
    )
    program.chmod(0o755)
    result = run(posix, f"{program} a b")
    count, descriptors = bytes(result.stdout).decode().splitlines()
    assert (result.exit_code, count[:2], bytes(result.stderr)) == (0, "2 ", b"oops\n")
    assert int(descriptors) <= 4, "the session's own descriptors are seen by programs"


def test_a_single_program_that_takes_too_long_is_killed(posix: Session, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\ntrap '' TERM INT HUP\necho here\nwhile :; do sleep 100; done\n")
    program.chmod(0o755)
    with pytest.raises(CommandTimeout) as caught:
        run(posix, str(program), timeout=0.5)
    assert bytes(caught.value.stdout) == b"here\n"
    assert_usable(posix)


def test_a_plain_command_that_fails_or_is_unknown_has_its_status(posix: Session) -> None:
    assert run(posix, "false").exit_code == 1
    assert run(posix, "no-such-command-at-all").exit_code == 127
    assert run(posix, "true | false").exit_code == 1
    assert run(posix, "cat /nowhere").stderr
    assert_usable(posix)


@pytest.mark.needs("bash")
def test_functions_that_a_shell_is_started_with_keep_their_effects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "start").write_text("module() { export LOADED=$2; cd /usr; }\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "start"))
    with local_session("bash") as session:
        run(session, "module load gcc")
        assert out(session, 'echo "$LOADED"; pwd') == "gcc\n/usr\n"


@pytest.mark.parametrize("shell", [case for case in POSIX if case.id in {"ksh93", "mksh"}])
def test_functions_that_are_loaded_when_called_keep_their_effects(shell: str, tmp_path: Path) -> None:
    (tmp_path / "wander").write_text("function wander { cd /usr; }\n")
    with local_session(shell) as session:
        run(session, f"export FPATH={tmp_path}")
        run(session, "wander")
        assert out(session, "pwd") == "/usr\n"
