"""Which shell runs a stream's command: this sh itself where the login shell would do nothing else with its words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from connmgr.engine.envelope import words_alike
from connmgr.engine.script import Source

STREAM = Source("connmgr.engine", "stream").one_line
BY_LOGIN_SHELL = b"the login shell: "

ALIKE = {
    "true": [b"true"],
    " ls -l /tmp\n": [b"ls", b"-l", b"/tmp"],
    "/usr/lib/openssh/sftp-server": [b"/usr/lib/openssh/sftp-server"],
    "rsync --server -vlogDtpre.iLsfxC . /srv/a:b": [b"rsync", b"--server", b"-vlogDtpre.iLsfxC", b".", b"/srv/a:b"],
    "dd if=/dev/null": [b"dd", b"if=/dev/null"],
}
UNLIKE = [
    *("", "echo -e a", "[ a ]", "test -e a", "pwd", "cd /", "kill 1", "printf a", "time true", "command true", "- a"),
    *(
        "-x a",
        "a=b c",
        "ls *",
        "ls ~",
        "ls {a,b}",
        "ls 'a'",
        "ls $A",
        "ls; ls",
        "ls\nls",
        "ls & ls",
        "ls >a",
        "#a",
        "!a",
    ),
    *("l\\s", "ls `a`", "ä", "a:b c", "a" * 9000),
]


@pytest.fixture
def login_shell(tmp_path: Path) -> Callable[[str], str]:
    """Returns the path of a login shell of the name, which tells what it was given."""

    def made(name: str) -> str:
        path = tmp_path / "login" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nprintf "{BY_LOGIN_SHELL.decode()}"; printf "%s." "$@"\n')
        path.chmod(0o755)
        return str(path)

    return made


def stream(sh: list[str], shell: str | None, command: str, **variables: str) -> tuple[bytes, int]:
    """Return what ``command`` printed, and its status, with the ``shell`` of its user."""
    words = words_alike(command.encode())
    assert words is not None
    environment = {"PATH": "/usr/bin:/bin", **({} if shell is None else {"SHELL": shell}), **variables}
    argv = [*sh, "-c", STREAM, "sh", "mark", "words", command, *(word.decode() for word in words)]
    ran = subprocess.run(argv, env=environment, capture_output=True, check=False, timeout=30)
    return ran.stdout, ran.returncode


@pytest.mark.parametrize(("text", "words"), ALIKE.items())
def test_simple_words_of_a_program_are_alike_in_all_shells(text: str, words: list[bytes]) -> None:
    assert words_alike(text.encode()) == words


@pytest.mark.parametrize("text", UNLIKE)
def test_whatever_a_shell_may_read_in_its_own_way_is_left_to_the_login_shell(text: str) -> None:
    assert words_alike(text.encode()) is None


@pytest.mark.parametrize("name", ["bash", "dash", "ash", "sh"])
def test_no_second_shell_is_started_for_words_that_are_alike(login_shell: Callable[[str], str], name: str) -> None:
    shell = login_shell(name)
    for sh in (["dash"], ["/bin/sh"]):
        assert stream(sh, shell, "basename /srv/a") == (b"a\n", 0)
        assert stream(sh, shell, "sed --no-such-option")[1] == 1
        assert stream(sh, shell, "true") == (b"", 0)
        assert stream(sh, shell, "false") == (b"", 1)
        assert stream(sh, shell, "no-such-program a") == (b"", 127)
        marked = stream(sh, shell, "env")[0]
        assert any(line.startswith(b"CONNMGR_STREAM=mark.") for line in marked.split(b"\n")), marked


@pytest.mark.parametrize("name", ["zsh", "fish", "ksh93", "tcsh", "rbash", "git-shell", "my-bash"])
def test_a_login_shell_of_another_kind_runs_every_command_itself(login_shell: Callable[[str], str], name: str) -> None:
    assert stream(["dash"], login_shell(name), "true") == (BY_LOGIN_SHELL + b"-c.true.", 0)


def test_a_login_shell_that_reads_a_file_first_runs_every_command_itself(login_shell: Callable[[str], str]) -> None:
    assert stream(["dash"], login_shell("bash"), "ls -l", BASH_ENV="/x") == (BY_LOGIN_SHELL + b"-c.ls -l.", 0)


@pytest.mark.needs("bash")
def test_bash_as_sh_leaves_its_functions_to_the_login_shell(login_shell: Callable[[str], str]) -> None:
    assert stream(["bash", "--posix"], login_shell("bash"), "true")[0] == BY_LOGIN_SHELL + b"-c.true."


@pytest.mark.parametrize(
    "sh", [pytest.param(sh, marks=pytest.mark.needs(sh.split()[0])) for sh in ("mksh", "ksh93", "busybox ash")]
)
def test_an_sh_of_any_kind_runs_the_words(login_shell: Callable[[str], str], sh: str) -> None:
    for name, printed in (("bash", b"a\n"), ("zsh", BY_LOGIN_SHELL + b"-c.basename /srv/a.")):
        assert stream(sh.split(), login_shell(name), "basename /srv/a") == (printed, 0)
        assert stream(sh.split(), None, "basename /srv/a") == (b"a\n", 0)
