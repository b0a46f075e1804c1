"""Names of a command's functions, and missing tools, change no result."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from connmgr.engine.session import Session
from connmgr.plugin import Channel
from connmgr_local.transport import LocalTransport
from tests.components import mount_words
from tests.engine.shells import ALL, POSIX, assert_usable, local_session, out, run

WORDS = "builtin command cd eval exec exit echo export pwd printf read set test trap unset return hash enable"


@pytest.mark.parametrize("shell", POSIX)
def test_a_function_of_any_name_leaves_the_commands_status(shell: str) -> None:
    with local_session(shell) as session:
        for word in WORDS.split():
            text = f"{word}(){{ :; }}; false"
            alone = subprocess.run([*shell.split(), "-c", text], capture_output=True, check=False)
            result = run(session, text)
            assert (result.exit_code, bytes(result.stdout)) == (alone.returncode, alone.stdout), word
        assert_usable(session)


@pytest.mark.parametrize("word", ["builtin", "command"])
def test_a_function_of_any_name_leaves_the_state(posix: Session, word: str) -> None:
    run(posix, f"{word}(){{ :; }}; cd /usr; export KEPT=1")
    assert out(posix, 'pwd; echo "$KEPT"') == "/usr\n1\n"


@pytest.mark.needs("bash")
@pytest.mark.parametrize("word", ["cd", "echo", "eval", "export", "printf", "pwd", "trap", "unset"])
def test_functions_that_bash_is_started_with_are_not_the_sessions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str
) -> None:
    (tmp_path / "start").write_text(f"{word}() {{ return 7; }}\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "start"))
    with local_session("bash") as session:
        run(session, "builtin cd /usr")
        assert out(session, "/bin/pwd") == "/usr\n"
        assert out(session, "/bin/cat; :", stdin=b"input") == "input"
        assert out(session, "/bin/pwd", directory=b"/") == "/\n"
        assert run(session, f"{word} x").exit_code == 7, "the command has the function"


@pytest.mark.needs("bash")
def test_disabled_builtins_change_nothing(bash: Session) -> None:
    for word in ("builtin", "exit", "echo", "export", "pwd", "trap", "unset", "["):
        result = run(bash, f"cd /usr; enable -n {word}; false")
        assert (result.exit_code, bytes(result.stderr)) == (1, b""), word
        assert out(bash, "/bin/pwd") == "/usr\n", word
        run(bash, "cd /")


def test_input_needs_no_program(posix: Session) -> None:
    data = bytes(range(256)) + b"-n %s \\0101 'quoted'\\c\n"
    cat = out(posix, "command -v cat").strip()
    run(posix, "export PATH=/nowhere")
    assert bytes(run(posix, f"{cat}; :", stdin=data).stdout) == data
    assert bytes(run(posix, f"{cat}; :", stdin=b"-n").stdout) == b"-n"


def test_input_goes_by_what_the_shell_is_not_by_what_a_variable_says(any_shell: Session) -> None:
    setting = "setenv KSH_VERSION " if any_shell.info.shell_dialect == 7 else "export KSH_VERSION="
    run(any_shell, f"{setting}'@(#)MIRBSD KSH R59'")
    assert bytes(run(any_shell, "cat", stdin=b"input").stdout) == b"input", "the command has lost its input"


class _Bare(LocalTransport):
    """Systems with odd or missing os-release files: ``prepare`` fills an empty /etc."""

    def __init__(self, prepare: str) -> None:
        super().__init__()
        self._prepare = prepare

    def open_channel(self, argv, **options):  # type: ignore[no-untyped-def]
        script = f'mount -t tmpfs tmpfs /etc;{self._prepare};exec "$@"'
        words = [*mount_words(), "/bin/sh", "-c", script, "sh", *argv]
        channel: Channel = super().open_channel(words, **options)
        return channel


DESCRIPTIONS = {
    "none": (":", None),
    "without a name": ("echo ID=x >/etc/os-release", None),
    "broken": ("echo 'PRETTY_NAME=\"' >/etc/os-release", None),
    "ends the shell": ("echo 'exit 3' >/etc/os-release", None),
    "two lines": ("printf 'PRETTY_NAME=\"One\\nTwo\"\\n' >/etc/os-release", "One"),
    "whole": ("echo 'PRETTY_NAME=\"A System\"' >/etc/os-release", "A System"),
}


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("shell", ALL)
@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_a_system_is_named_whatever_it_says_of_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str, description: str
) -> None:
    prepare, name = DESCRIPTIONS[description]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    uname = subprocess.run(["uname", "-sr"], capture_output=True, text=True, check=True).stdout.strip()
    with local_session(shell, transport=_Bare(prepare)) as session:
        assert (session.info.os_name, session.info.temp) == (name or uname, str(tmp_path))
        assert_usable(session)


@pytest.mark.parametrize("shell", POSIX)
def test_a_variable_that_names_ksh93_makes_no_shell_one(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("KSH_VERSION", "Version AJM 93u+m/1.0.4 2022-10-22")
    with local_session(shell) as session:
        assert out(session, "printf '%s' 'two\nlines'; A=1") == "two\nlines"
        assert_usable(session)


@pytest.mark.needs("bash")
@pytest.mark.parametrize("text", ["no-such-program x", "A=1; no-such-program x", "(no-such-program x)"])
def test_bash_says_that_a_program_is_missing_as_it_says_it_to_a_person(bash: Session, text: str) -> None:
    assert run(bash, text).exit_code == 127
    assert bytes(run(bash, text).stderr) == b"bash: no-such-program: command not found\n"
    assert out(bash, "no-such-program 2>&1 | cat; echo $?") == "bash: no-such-program: command not found\n0\n"


@pytest.mark.needs("bash")
def test_a_users_own_handler_of_missing_programs_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "start").write_text('command_not_found_handle() { echo "no $1 here"; return 5; }\n')
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "start"))
    with local_session("bash") as session:
        result = run(session, "no-such-program")
        assert (result.exit_code, bytes(result.stdout), bytes(result.stderr)) == (5, b"no no-such-program here\n", b"")
