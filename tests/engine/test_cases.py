"""Commands that break naive shell engines: each has the right result, and the session stays usable.

Each test gets its session of a fixture, and so runs over every transport too (tests/engine/test_transports.py), or is
marked ``local`` with the reason.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connmgr.engine.script import quote
from connmgr.engine.session import Session
from connmgr.errors import ShellLost
from tests.engine.shells import assert_usable, local_session, only, out, run

ANY = None
FAILS = "non-zero"

# Bash 5.2 loops forever if it is interrupted just before it waits for a subshell.
ASLEEP = 'until read -r s </proc/$$/stat; case ${s##*") "} in S*) ;; *) false; esac; do :; done'

POSIX_CASES = {
    "plain": ("echo hi", 0, b"hi\n"),
    "several lines": ("echo a\necho b", 0, b"a\nb\n"),
    "empty": ("", 0, b""),
    "comment": ("# comment", 0, b""),
    "false": ("false", 1, b""),
    "unknown command": ("no-such-command-at-all", 127, b""),
    "cat reads EOF": ("cat", 0, b""),
    "read reads EOF": ('read x; echo "[$x]"', 0, b"[]\n"),
    "open quote": ("echo 'open", FAILS, b""),
    "open double quote": ('echo "open', FAILS, b""),
    "open parenthesis": ("(echo a", FAILS, b""),
    "open substitution": ("echo $(", FAILS, b""),
    "open brace": ("{ echo a", FAILS, b""),
    "open if": ("if", FAILS, b""),
    "stray parenthesis": ("echo a)", FAILS, b""),
    "open heredoc": ("cat <<EOF\nhi", ANY, ANY),
    "complete heredoc": ("cat <<EOF\nhi\nEOF", 0, b"hi\n"),
    "trailing ampersand": ("true &", 0, b""),
    "exit": ("exit 3", 3, b""),
    "exit beyond a byte": ("exit 300", 44, b""),
    "exec": ("exec true", 0, b""),
    "exec of a redirection": ("exec >/dev/null; echo lost", 0, b""),
    "closed stdout": ("exec >&-; echo lost 2>/dev/null", ANY, b""),
    "noexec": ("set -n", 0, b""),
    "nounset": ('set -u; echo "$no_such_variable"', FAILS, b""),
    "noglob": ("set -o noglob; echo *", 0, b"*\n"),
    "printf is a function": ("printf(){ :; }; echo(){ :; }; true", 0, b""),
    "builtins are functions": ("command(){ :; }; pwd(){ :; }; true", 0, b""),
    "descriptors 3 to 9 are free": ("exec 9>/dev/null 8>/dev/null 3>/dev/null; echo there", 0, b"there\n"),
    "exit trap": ("trap 'echo bye' EXIT; echo hi", 0, b"hi\nbye\n"),
    "positional parameters": ("set -- a b; echo $#", 0, b"2\n"),
    "no positional parameters": ("echo $#", 0, b"0\n"),
    "empty path": ("PATH=; echo hi", 0, b"hi\n"),
    "no file may be written": ("ulimit -f 0; echo hi", 0, b"hi\n"),
    "killed subshell": ("sh -c 'kill -9 $PPID'", 137, b""),
    "terminates its own shell": (f"kill -TERM $$; kill -HUP $$; {ASLEEP}; kill -INT $$; echo alive", 0, b"alive\n"),
    "binary output": (r"printf 'a\000b\377'", 0, b"a\0b\xff"),
    "no final newline": ("printf hi", 0, b"hi"),
    "many newlines": (r"printf '\n\nhi\n\n'", 0, b"\n\nhi\n\n"),
    "background job holds stdout": ("sleep 60 & echo $! >/dev/null; echo hi; kill $!", 0, b"hi\n"),
    # ksh93 waits only for the last program; messages of the others may come later.
    "pipeline": ("yes 2>/dev/null | head -c 10000000 | wc -c", 0, ANY),
    "field separator": ("IFS=0123456789; export IFS; true", 0, b""),
    "locale": ("LC_ALL=C; export LC_ALL; true", 0, b""),
    "large command": ("echo " + "x" * 200_000 + " | wc -c", 0, ANY),
    "stderr becomes stdout": ("exec 2>&1; echo oops >&2", 0, b"oops\n"),
}


def check(session: Session, text: str, status: int | str | None, stdout: bytes | None) -> None:
    """Run ``text`` and compare; on a terminal, a shell's messages arrive in stdout."""
    result = run(session, text)
    merged = session.info.tty_state == "merged"
    if status == FAILS:
        assert result.exit_code != 0
        assert result.stdout if merged else result.stderr, "the shell says what is wrong"
    elif status is not ANY:
        assert result.exit_code == status, bytes(result.stderr)
    if stdout is not ANY and merged and status != 0:
        assert stdout in bytes(result.stdout)
    elif stdout is not ANY:
        assert bytes(result.stdout) == stdout
    assert_usable(session)


@pytest.mark.parametrize("case", POSIX_CASES)
def test_posix_shell(posix: Session, case: str) -> None:
    check(posix, *POSIX_CASES[case])


@pytest.mark.parametrize("posix", only("ksh93"), indirect=True)
@pytest.mark.local("the race is within the shell")
def test_a_signal_to_the_shell_right_after_the_fork_ends_no_command_early(posix: Session) -> None:
    for _ in range(200):
        assert out(posix, "kill -TERM $$; echo alive") == "alive\n"


def test_stopped_by_itself_is_woken(posix: Session) -> None:
    waker = "until grep -q ') T ' /proc/$$/stat; do sleep 0.01; done; kill -CONT $$"
    check(posix, f"({waker}) & kill -STOP $$; echo on", 0, b"on\n")
    # sudo and su stop themselves with their shell, and nothing continues them: the last case of a session.
    posix.stop(0.5)


INTERPRETED_CASES = {
    "plain": ("echo hi", 0, b"hi\n"),
    "several lines": ("echo a\necho b", 0, b"a\nb\n"),
    "empty": ("", 0, b""),
    "comment": ("# comment", 0, b""),
    "false": ("false", 1, b""),
    "cat reads EOF": ("cat", 0, b""),
    "open quote": ("echo 'open", FAILS, b""),
    "open parenthesis": ("(echo a", FAILS, b""),
    "open substitution": ("echo $(", FAILS, b""),
    "stray parenthesis": ("echo a)", FAILS, b""),
    "open heredoc": ("cat <<EOF\nhi", ANY, ANY),
    "exit": ("exit 3", 3, b""),
    "exec": ("exec true", 0, b""),
    "binary output": (r"printf 'a\000b\377'", 0, b"a\0b\xff"),
    "no final newline": ("printf hi", 0, b"hi"),
    "large command": ("echo " + "x" * 200_000 + " | wc -c", 0, b"200001\n"),
    "background job": ("sleep 1 &", 0, ANY),
    "unknown command": ("no-such-command-at-all", FAILS, b""),
}


@pytest.mark.parametrize("case", INTERPRETED_CASES)
def test_interpreted_shell(interpreted: Session, case: str) -> None:
    check(interpreted, *INTERPRETED_CASES[case])


def test_errexit_stops_the_command(posix: Session, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    result = run(posix, f"set -e; cd /nope; touch {mark}")
    assert result.exit_code != 0
    assert not mark.exists(), "set -e was ignored"
    assert_usable(posix)


def test_errexit_keeps_the_state_of_a_command_that_succeeds(posix: Session) -> None:
    assert run(posix, "set -eu; cd /usr").exit_code == 0
    assert out(posix, "pwd") == "/usr\n"


def test_return_outside_a_function_ends_the_command(posix: Session) -> None:
    assert run(posix, "return 1").exit_code != 0
    assert_usable(posix)


@pytest.mark.parametrize("posix", only("bash", "ash"), indirect=True)
def test_descriptors_are_the_commands_own(posix: Session, tmp_path: Path) -> None:
    for number in (3, 8, 9, *range(10, 20), 63, 200, 255):
        file = tmp_path / str(number)
        text = f"exec {number}>{file}; echo held >&{number}; [ {file} -ef /proc/self/fd/{number} ] && echo there"
        assert out(posix, f"cd /; {text}; cd /usr") == "there\n"
        assert (file.read_text(), out(posix, "pwd")) == ("held\n", "/usr\n")
        assert out(posix, f"exec {number}>&-; cd /; echo on") == "on\n"
        assert out(posix, "pwd") == "/\n"


@pytest.mark.local("elsewhere the supervisor cannot open its streams anew: engine/scripts/apart.sh says why")
def test_output_that_a_command_made_non_blocking_spoils_no_later_one(any_shell: Session, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport os\nos.set_blocking(1, False)\nos.set_blocking(2, False)\n")
    program.chmod(0o755)
    for command in (f"{program}", f"{program}; true", f"cd /; {program}"):
        assert run(any_shell, command).exit_code == 0
        result = run(any_shell, "head -c 3000000 /dev/zero")
        assert (result.exit_code, len(result.stdout)) == (0, 3_000_000), f"cut after: {command}"


def test_a_program_sees_no_descriptor_of_the_sessions(posix: Session) -> None:
    assert int(out(posix, "cd /; ls /proc/self/fd | wc -l")) <= 4, "0, 1, 2 and that of the listing"


@pytest.mark.parametrize("posix", only("bash", "zsh", "ksh93"), indirect=True)
@pytest.mark.parametrize("in_functions", [False, True])
@pytest.mark.parametrize("trap", ["DEBUG", "ERR"])
def test_a_trap_prints_into_its_own_command_s_output(posix: Session, in_functions: bool, trap: str) -> None:
    shell = {1: "bash", 4: "zsh", 5: "ksh93"}[posix.info.shell_dialect]
    functions_too = "set -ET; " if shell == "bash" and in_functions else ""
    text = f"cd /; trap 'echo T' {trap}; cd /usr; cd /usr/no-such"
    alone = subprocess.run([shell, "-c", functions_too + text], capture_output=True, check=False)
    result = run(posix, functions_too + text)
    # On a terminal the shell's message about the missing directory arrives in stdout.
    printed = [line for line in bytes(result.stdout).splitlines(keepends=True) if b"no-such" not in line]
    assert (result.exit_code, b"".join(printed)) == (alone.returncode, alone.stdout)
    assert out(posix, "pwd") == "/usr\n"


@pytest.mark.parametrize("name", ["exit", "return", "unset", "set", "exec", "trap", "echo", "pwd", "export"])
@pytest.mark.parametrize("posix", only("bash", "zsh"), indirect=True)
def test_a_function_named_like_a_builtin_changes_nothing(posix: Session, name: str) -> None:
    result = run(posix, f"{name}(){{ command echo called; }}; cd /usr; false")
    assert (result.exit_code, bytes(result.stdout), bytes(result.stderr)) == (1, b"", b"")
    assert out(posix, "pwd") == "/usr\n"


def test_a_function_named_exit_changes_nothing_in_fish(fish: Session) -> None:
    assert run(fish, "function exit; end; cd /usr; false").exit_code == 1
    assert out(fish, "pwd") == "/usr\n"


@pytest.mark.local("what is compared is printed into one stream on a terminal")
@pytest.mark.parametrize(
    "text",
    [
        "echo hi >/no/such",
        "cat </no/such",
        "true; cat </no/such",
        "cat </no/such; true",
        "false",
        "set -q no_such",
        "set x 1",
        "# comment",
        "echo 'open",
        "echo a |",
        "true; and",
        "return 3",
        "exit 4",
        "function f; false; end; f",
        "no-such-command-at-all",
    ],
)
def test_fish_ends_a_command_as_it_does_by_itself(fish: Session, text: str) -> None:
    alone = subprocess.run(
        ["fish", "--no-config", "-c", text], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    result = run(fish, text)
    if "open" in text or text.endswith(("|", "and")):
        assert result.exit_code != 0, "fish calls a file that it cannot read a success, which a command is not"
    else:
        assert result.exit_code == alone.returncode
    assert bytes(result.stdout) == alone.stdout


@pytest.mark.local("the shell is a program of the test's own")
@pytest.mark.needs("bash")
@pytest.mark.parametrize("limit", [64, 250])
def test_a_limit_of_open_files_leaves_every_command_its_streams(tmp_path: Path, limit: int) -> None:
    bash = shutil.which("bash")
    limited = tmp_path / "bash"
    limited.write_text(f'#!/bin/sh\nulimit -n {limit}\nexec {bash} "$@"\n')
    limited.chmod(0o755)
    with local_session(str(limited)) as session:
        assert out(session, "cd /usr; ulimit -n") == f"{limit}\n"
        assert out(session, "pwd") == "/usr\n"


def test_a_disabled_builtin_changes_nothing(bash: Session) -> None:
    result = run(bash, "enable -n exit; cd /usr; false")
    assert (result.exit_code, bytes(result.stderr)) == (1, b"")
    assert out(bash, "pwd") == "/usr\n"


def test_tracing_in_a_shell_of_another_language_harms_nothing(interpreted: Session) -> None:
    trace = "set fish_trace 1" if interpreted.info.shell_dialect == 6 else "set echo; set verbose"
    result = run(interpreted, f"{trace}; /bin/echo traced; cd /usr")
    assert result.exit_code == 0
    assert b"traced" in result.stdout
    # On a terminal the shell's trace arrives in stdout.
    lines = out(interpreted, "pwd").splitlines()
    assert lines == ["/usr"] or (interpreted.info.tty_state == "merged" and lines[-1] == "/usr")


CHARACTERS = [bytes([number]) for number in range(1, 128)]
SEPARATORS = {
    "digits": b"0123456789",
    "signs": b":;|&<>()$`\\\"'*?[#~=% \t\n",
    "letters": b"abcdefghijklmnopqrstuvwxyz_",
    "every character": b"".join(CHARACTERS),
}


@pytest.mark.parametrize("exported", [True, False])
@pytest.mark.parametrize("separators", SEPARATORS)
def test_field_separators_split_no_word_of_the_sessions(posix: Session, separators: str, exported: bool) -> None:
    assignment = b"IFS=" + quote(SEPARATORS[separators])
    run(posix, b"export " + assignment if exported else assignment)
    for text in (b"cd /usr; echo ran; false", assignment + b"; cd /usr; echo ran; false"):
        result = run(posix, text)
        assert (result.exit_code, bytes(result.stdout), bytes(result.stderr)) == (1, b"ran\n", b"")
        assert out(posix, "/bin/pwd") == "/usr\n"
    assert out(posix, "cat; true", stdin=b"as it is") == "as it is"


@pytest.mark.local("elsewhere by test_field_separators_split_no_word_of_the_sessions")
def test_each_character_may_separate_fields(posix: Session) -> None:
    for before, character in zip([b"(none)", *CHARACTERS], [*CHARACTERS, b""], strict=True):
        result = run(posix, b"cd /usr; echo ran; export IFS=" + quote(character) + b"; false")
        assert (result.exit_code, bytes(result.stdout)) == (1, b"ran\n"), before


def test_xtrace_shows_the_command_alone(posix: Session) -> None:
    result = run(posix, "set -x; echo hi")
    if posix.info.tty_state == "merged":
        assert sorted(bytes(result.stdout).splitlines())[-1] == b"hi"
        assert b"echo hi" in result.stdout
    else:
        assert bytes(result.stdout) == b"hi\n"
        assert b"echo hi" in result.stderr
    assert_usable(posix)


def test_aliases_and_functions_do_not_last(posix: Session) -> None:
    run(posix, "alias echo=false; greet(){ echo greetings; }; unexported=1")
    assert out(posix, 'echo "[$unexported]"') == "[]\n"
    assert run(posix, "greet").exit_code == 127
    assert_usable(posix)


def test_output_that_imitates_the_markers(posix: Session) -> None:
    nonce = "AAECAwQFBgcICQoLDA0ODw"
    fakes = f":{nonce}x\n:{nonce}c\n:{nonce} 0\n"
    text = f"printf '\\n%s' '{fakes}'; printf '\\n%s' '{fakes}' >&2; exit 5"
    result = run(posix, text)
    assert result.exit_code == 5
    expected = ("\n" + fakes).encode()
    if posix.info.tty_state == "merged":
        assert bytes(result.stdout) == expected * 2
    else:
        assert bytes(result.stdout) == bytes(result.stderr) == expected
    assert_usable(posix)


def test_killing_the_supervisor_under_a_job_that_holds_the_streams(bash: Session) -> None:
    with pytest.raises(ShellLost):
        run(bash, f"sleep 20 & kill -9 {bash.pid}; sleep 20", timeout=18)
    assert not bash.alive


def test_killing_the_supervisor_loses_the_session_and_says_so(any_shell: Session) -> None:
    with pytest.raises(ShellLost):
        run(any_shell, f"kill -9 {any_shell.pid}")
    assert not any_shell.alive
    with pytest.raises(ShellLost):
        run(any_shell, "echo hi")


def test_a_late_background_job_does_not_print_into_the_next_result(posix: Session, tmp_path: Path) -> None:
    gate, done = tmp_path / "gate", tmp_path / "done"
    run(posix, f"(until [ -e {gate} ]; do sleep 0.02; done; echo late; touch {done}) & :")
    gate.touch()
    wait = f"until [ -e {done} ]; do sleep 0.02; done"
    # The job's output comes before this command's output or within it, and never after it.
    run(posix, wait)
    assert_usable(posix)


def test_stdin_is_the_commands_own(posix: Session) -> None:
    data = bytes(range(256)) * 300
    result = run(posix, "cat", stdin=data)
    assert bytes(result.stdout) == data
    assert out(posix, 'read -r a; read -r b; echo "$b|$a"', stdin=b"one\n'two'\\\n") == "'two'\\|one\n"
    assert run(posix, "true", stdin=b"x" * 1_000_000).exit_code == 0, "a command need not read its input"
    large = bytes(range(256)) * 20_000
    assert bytes(run(posix, "cat", stdin=large).stdout) == large
    assert_usable(posix)


def test_stdin_of_interpreted_shells(interpreted: Session) -> None:
    data = bytes(range(256)) * 300
    assert bytes(run(interpreted, "cat", stdin=data).stdout) == data
    assert_usable(interpreted)


def test_a_long_command(posix: Session) -> None:
    text = "x" * 200_000
    assert out(posix, f"echo {text}") == f"{text}\n"
