"""Programs as secret sources: what they may do wrong, and that no secret is in the error."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from connmgr.errors import SecretUnavailable
from connmgr.fields import ValidationError
from connmgr.plugin import Deadline
from connmgr_sources.stores import CommandSource, KeyringSource, PassSource, printed_by
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.processes import await_ends, descriptors, runs


def printed(*argv: str, seconds: float = DEADLINE_SECONDS) -> str:
    return CommandSource().fetch({"argv": list(argv)}, Deadline(seconds))


def refusal(*argv: str, seconds: float = DEADLINE_SECONDS) -> SecretUnavailable:
    with pytest.raises(SecretUnavailable) as failure:
        printed(*argv, seconds=seconds)
    assert "hunter2" not in failure.value.message
    assert failure.value.__cause__ is None or "hunter2" not in str(failure.value.__cause__)
    assert failure.value.for_tokens == "The secret source command failed."
    return failure.value


@pytest.mark.parametrize(
    ("output", "secret"),
    [
        ("hunter2", "hunter2"),
        ("hunter2\\n", "hunter2"),
        ("two\\n\\n", "two\n"),
        ("dos\\r\\n", "dos"),
        (" a b ", " a b "),
    ],
)
def test_one_newline_at_the_end_is_taken_off(output: str, secret: str) -> None:
    assert printed("printf", output) == secret


def test_arguments_are_words_and_no_shell_reads_them() -> None:
    assert printed("printf", "%s", "$(touch x); `id` * ~") == "$(touch x); `id` * ~"


def test_it_has_no_input_no_terminal_and_no_settings_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNMGR_DATABASE_URL", "postgresql://hunter2@db/vault")
    program = (
        "import os, sys\n"
        "try:\n    os.open('/dev/tty', os.O_RDWR)\nexcept OSError:\n    print('no terminal')\n"
        "print(repr(sys.stdin.read()), os.getcwd(), [n for n in os.environ if n.startswith('CONNMGR_')])"
    )
    assert printed(sys.executable, "-c", program) == "no terminal\n'' / []"


def test_100_mb_are_refused_at_once(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"echo $$ >{pid}; exec head -c 100000000 /dev/zero"
    assert "more than 64 KiB" in refusal("sh", "-c", script).message
    assert not runs(int(pid.read_text()))


class Passing(Deadline):
    """A deadline that passes when a file is there, so that no test depends on how fast a program starts."""

    def __init__(self, file: Path) -> None:
        super().__init__(DEADLINE_SECONDS)
        self._file = file

    def left(self, least: float = 0.0) -> float:
        eventually(self._file.exists, "the program did not start")
        self._end = time.monotonic()
        return super().left(least)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # The child holds standard output open.
    script = f"printf hunter2; sleep 1000 & echo $! >{pid}.new; mv {pid}.new {pid}; wait"
    with pytest.raises(SecretUnavailable, match="did not end in time") as failure:
        printed_by(["sh", "-c", script], Passing(pid), "command")
    assert "hunter2" not in failure.value.message
    await_ends(int(pid.read_text()))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "exited with 3"),
        ("printf hunter2; echo hunter2 >&2; exit 1", "exited with 1."),
        ("kill -9 $$", "killed by signal 9"),
        ("true", "printed nothing"),
        ("echo", "printed nothing"),
        ("printf '\\377hunter2'", "not UTF-8"),
        ("read -r password </dev/tty && echo $password", "exited with"),
    ],
)
def test_what_fails_is_said_without_the_output(script: str, why: str) -> None:
    assert why in refusal("sh", "-c", script).message


def test_a_program_that_is_not_there_is_named() -> None:
    assert "cannot run /nowhere/program: No such file or directory" in refusal("/nowhere/program").message


def test_known_programs_tell_their_last_line_to_the_owner_alone() -> None:
    argv = ["sh", "-c", "printf 'first\\n\\033no such entry\\n' >&2; exit 1"]
    with pytest.raises(SecretUnavailable, match=r"pass failed: the program exited with 1: no such entry\.") as failure:
        printed_by(argv, Deadline(DEADLINE_SECONDS), "pass", tells=True)
    assert "\033" not in failure.value.message
    assert failure.value.for_tokens == "The secret source pass failed."


def test_much_on_standard_error_stops_nothing() -> None:
    assert printed("sh", "-c", "head -c 1000000 /dev/zero >&2; printf hunter2") == "hunter2"


def test_descriptors_and_threads_are_given_back() -> None:
    printed("printf", "warm")
    before, threads = descriptors(), set(threading.enumerate())
    for _ in range(5):
        printed("printf", "hunter2")
        refusal("sh", "-c", "exit 1")
        refusal("/nowhere/program")
    assert (descriptors() - before, set(threading.enumerate()) - threads) == ({}, set())


@pytest.mark.parametrize(
    ("source", "members"),
    [
        (CommandSource(), {"argv": []}),
        (CommandSource(), {"argv": "id"}),
        (CommandSource(), {"argv": ["id"], "shell": True}),
        (PassSource(), {"entry": "--help"}),
        (PassSource(), {"entry": ""}),
        (PassSource(), {"entry": "a", "line": 0}),
        (KeyringSource(), {"service": "-d", "username": "x"}),
    ],
)
def test_what_a_program_could_misunderstand_is_refused(source: Any, members: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        source.schema().load(members)


def test_an_entry_of_the_keyring_is_read_by_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    # The null backend has no entry, and the program says so by its exit code.
    with pytest.raises(SecretUnavailable, match="keyring failed: the program exited with 1"):
        KeyringSource().fetch({"service": "web1", "username": "deploy"}, Deadline(DEADLINE_SECONDS))
    module = tmp_path / "connmgr_test_backend.py"
    module.write_text(
        "from keyring.backend import KeyringBackend\n"
        "class Backend(KeyringBackend):\n"
        "    priority = 1\n"
        "    def get_password(self, service, username):\n"
        "        return f'secret of {username} at {service}'\n"
        "    def set_password(self, *_): pass\n"
        "    def delete_password(self, *_): pass\n"
    )
    config = tmp_path / "python_keyring" / "keyringrc.cfg"
    config.parent.mkdir()
    config.write_text(f"[backend]\ndefault-keyring=connmgr_test_backend.Backend\nkeyring-path={tmp_path}\n")
    monkeypatch.delenv("PYTHON_KEYRING_BACKEND")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = KeyringSource().fetch({"service": "web1", "username": "deploy"}, Deadline(DEADLINE_SECONDS))
    assert found == "secret of deploy at web1"


@pytest.mark.parametrize(("name", "argv"), [("op", "read --no-newline -- op://servers/web1/password"), ("bw", "")])
def test_op_and_bw_are_called_as_they_document_it(
    name: str, argv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from connmgr_sources.stores import BitwardenSource, OnePasswordSource

    # Neither can be had without an account: a program of this name tells how it was called.
    fake = tmp_path / name
    fake.write_text('#!/bin/sh\nprintf %s "$*"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    source = OnePasswordSource() if name == "op" else BitwardenSource()
    data = source.schema().load(source.example)
    expected = argv or f"--nointeraction get password {source.example['item']}"  # type: ignore[index]
    assert source.fetch(data, Deadline(DEADLINE_SECONDS)) == expected
