"""Which processes are seen to wait for input, and which are not, by what Linux shows of them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from connmgr.engine import waiting
from connmgr.engine.rpc import Helpers
from connmgr.engine.waiting import Blocked, blocked, last_lines, waiting_work
from connmgr_local.transport import LocalTransport
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.sshd import Sshd, privilege_separation

CERTAIN, SECRET = Blocked(reads=True, is_secret=False), Blocked(reads=True, is_secret=True)
MAYBE = Blocked(reads=False, is_secret=False)


class Bench:
    """Processes of this machine that carry the mark of a job, each the leader of a session."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self.transport = LocalTransport()
        self.helpers = Helpers()
        stack.callback(self.transport.close)
        stack.callback(self.helpers.close)

    def on_terminal(self, *words: str) -> str:
        """Run words on a terminal of their own, which shows a line when they have begun; return their mark."""
        mark = f"CONNMGR_JOB={uuid.uuid4().hex}"
        pid, master = pty.fork()
        if not pid:
            os.execvpe(words[0], words, {**os.environ, "CONNMGR_JOB": mark.partition("=")[2]})
        self._stack.callback(os.close, master)
        self._stack.callback(os.waitpid, pid, 0)
        self._stack.callback(os.killpg, pid, signal.SIGKILL)
        return mark

    def with_input(self, script: str, *, named: bool = True) -> str:
        """Run a script whose input is a job's open one, or if not ``named`` an ordinary pipe; return its mark."""
        id = uuid.uuid4().hex
        if named:
            (self._directory / id).mkdir()
            os.mkfifo(path := self._directory / id / "0")
            read = write = os.open(path, os.O_RDWR)
        else:
            read, write = os.pipe()
            self._stack.callback(os.close, read)
        self._stack.callback(os.close, write)
        process = subprocess.Popen(
            ["sh", "-c", script], stdin=read, env={**os.environ, "CONNMGR_JOB": id}, start_new_session=True
        )
        self._stack.callback(process.wait)
        self._stack.callback(os.killpg, process.pid, signal.SIGKILL)
        return f"CONNMGR_JOB={id}"

    def becomes(self, mark: str, wanted: Blocked) -> None:
        """Wait until a look says ``wanted`` of the processes with ``mark``."""
        eventually(
            lambda: blocked(self.transport, self.helpers, [mark], DEADLINE_SECONDS).get(mark),
            f"{mark} was never seen as {wanted}",
            holds=lambda seen: seen == wanted,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


@pytest.fixture(params=["by its system call", "by the function that it sleeps in"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Look with and without the permission to see system calls, which Yama takes from ordinary users."""
    if request.param != "by its system call":
        monkeypatch.setattr(waiting, "LOOK", replace(waiting.LOOK, name="wait_look_by_function", setup=None))
    return str(request.param)


def test_blocked_reads_are_seen(bench: Bench, each_way: str) -> None:
    marks = {
        bench.on_terminal("sh", "-c", "read line"): CERTAIN,
        bench.on_terminal("sh", "-c", "stty -echo; read line"): SECRET,
        # Its variables are not its parent's.
        bench.on_terminal("sh", "-c", "env -i sh -c 'read line'; :"): CERTAIN,
        bench.with_input("read line"): CERTAIN,
        bench.with_input("cat | cat"): CERTAIN,
    }
    for mark, wanted in marks.items():
        bench.becomes(mark, wanted)


@pytest.mark.needs("sshd", "less")
def test_programs_that_ask_are_seen_and_those_that_work_are_not(bench: Bench, tmp_path: Path) -> None:
    with privilege_separation(), closing(Sshd()) as server:
        hosts = [f"-oUserKnownHostsFile={tmp_path}/none", "-oGlobalKnownHostsFile=none", "-oStrictHostKeyChecking=ask"]
        asking = {
            "python": bench.on_terminal(sys.executable, "-c", "input('Name: ')"),
            "ssh": bench.on_terminal("ssh", "-F", "none", *hosts, "-p", str(server.port), "127.0.0.1"),
            "less": bench.on_terminal("less", __file__),
            "cat": bench.on_terminal("cat"),
        }
        working = [
            bench.on_terminal(sys.executable, "-c", "while True: pass"),
            bench.on_terminal("sh", "-c", "sleep 1000 | cat"),
        ]
        for name, mark in asking.items():
            seen = eventually(
                lambda mark=mark: blocked(bench.transport, bench.helpers, [mark], DEADLINE_SECONDS).get(mark),
                f"{name} is not seen to wait",
            )
            assert seen is not None
            assert not seen.is_secret, name
        assert blocked(bench.transport, bench.helpers, working, DEADLINE_SECONDS) == {}


def test_what_waits_for_several_files_may_wait_for_input(bench: Bench) -> None:
    polls = "import select; one = select.poll(); one.register(0, 1); one.poll()"
    bench.becomes(bench.on_terminal(sys.executable, "-c", polls), MAYBE)


def test_work_and_other_pipes_are_not_input(bench: Bench, each_way: str) -> None:
    others = [
        bench.on_terminal("sleep", "1000"),
        # In the background of its terminal, from which it could not read.
        bench.with_input("sleep 1000 | cat"),
        bench.with_input("read line", named=False),
    ]
    # When this one is seen, the others have begun long ago.
    last = bench.with_input("exec >/dev/null; read line")
    bench.becomes(last, CERTAIN)
    assert blocked(bench.transport, bench.helpers, [*others, last], DEADLINE_SECONDS) == {last: CERTAIN}


def test_only_an_unfinished_line_like_a_prompt_makes_a_maybe_count() -> None:
    def waits(seen: Blocked | None, printed: bytes) -> bool:
        return waiting_work(seen, last_lines(printed)) is not None

    assert waits(MAYBE, b"Connecting\r\n[sudo] password for me: ")
    assert waits(MAYBE, b"\x1b[1mOverwrite? [y/N]\x1b[0m ")
    assert not waits(MAYBE, b"Overwrite? \n")
    assert not waits(MAYBE, b"Compiling ...")
    assert not waits(None, b"Password: ")
    assert waits(CERTAIN, b"")


def test_a_prompt_is_told_without_control_characters_and_known_to_ask_for_a_secret() -> None:
    errors = b"\x1b]0;title\x07Enter pass\x1b[1mphrase: "
    work = waiting_work(CERTAIN, last_lines(b"one\n12%\r100%\n"), last_lines(errors))
    assert work is not None
    assert (work.lines, work.is_secret) == (("one", "100%", "Enter passphrase: "), True)
    again = waiting_work(CERTAIN, ["Name: "], before=work)
    assert again is not None
    assert (again.since, again.is_secret) == (work.since, False)
