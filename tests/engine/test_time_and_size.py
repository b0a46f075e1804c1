"""Commands that take too long or print too much."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.cancellation import Cancellation
from connmgr.engine import running, session
from connmgr.engine.envelope import Command
from connmgr.engine.kill import kill_supervisor, kill_tree
from connmgr.engine.session import Session
from connmgr.errors import CommandCancelled, CommandTimeout, ShellBusy, ShellLost, ShellStopped
from connmgr_local.transport import LocalTransport
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal, given_time
from tests.engine.shells import assert_usable, local_session, out, run
from tests.plugins.faulty_types import Delegate, Link
from tests.processes import await_ends


def await_child(process: psutil.Process) -> psutil.Process:
    """Wait until a process has a child, and return it."""
    return eventually(process.children, "the shell starts no process")[0]


def await_text(path: Path) -> str:
    """Wait until a file has a full line, and return it."""
    eventually(path.exists, f"{path.name} was not written")
    return eventually(path.read_text, f"{path.name} is not whole", holds=lambda text: text.endswith("\n")).strip()


def test_timeout_kills_and_the_session_goes_on(any_shell: Session) -> None:
    run(any_shell, "cd /usr")

    def printed(seconds: float) -> bytes:
        with pytest.raises(CommandTimeout) as caught:
            run(any_shell, "echo before; sleep 100", timeout=seconds)
        assert_usable(any_shell)
        return bytes(caught.value.stdout)

    assert given_time(printed, bool, seconds=0.3) == b"before\n"
    assert out(any_shell, "pwd") == "/usr\n", "the state from before the killed command is kept"


@pytest.mark.local("elsewhere by test_timeout_kills_and_the_session_goes_on")
def test_a_command_that_begins_after_its_time_is_killed_too(posix: Session) -> None:
    late = "sleep 100; : " + "x" * (1 << 19)
    with pytest.raises(CommandTimeout):
        run(posix, late, timeout=0.01)
    assert_usable(posix)
    for child in psutil.Process(posix.pid).children(recursive=True):
        await_ends(child.pid)


def test_a_shell_whose_link_breaks_its_contract_is_lost(tmp_path: Path) -> None:
    class Odd(Delegate):
        def recv(self, timeout: float) -> tuple[bytes, bytes]:
            if (tmp_path / "odd").exists():
                raise ZeroDivisionError
            return super().recv(timeout)

    with local_session("sh", transport=Link(Odd)) as odd:
        assert_usable(odd)
        (tmp_path / "odd").touch()
        with pytest.raises(ZeroDivisionError):
            run(odd, "true")
        assert not odd.alive
        (tmp_path / "odd").unlink()


HARD_TO_KILL = {
    "ignores TERM": "trap '' TERM; sleep 100",
    "pipeline of three": "sleep 100 | cat | cat",
    "busy loop": "while :; do :; done",
    "loop of forks": "while :; do /bin/true; done",
    "nested shells": "sh -c 'sh -c \"sleep 100\"; true'; true",
    "children of children": "(sleep 100 & sleep 100 & wait); true",
    "endless output": "yes",
}


@pytest.mark.local("elsewhere by test_hard_to_kill_elsewhere, in one shell")
@pytest.mark.parametrize("case", HARD_TO_KILL)
def test_hard_to_kill(posix: Session, case: str) -> None:
    with pytest.raises(CommandTimeout):
        run(posix, HARD_TO_KILL[case], timeout=0.05)
    assert_usable(posix)
    # The subshell of the last command may not have ended yet.
    for child in psutil.Process(posix.pid).children(recursive=True):
        await_ends(child.pid)


def test_processes_that_left_the_tree_are_killed_too(posix: Session, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    daemonize = f"(setsid sh -c 'echo $$ >{pid_file}; exec sleep 100' >/dev/null 2>&1 &) ; sleep 100"
    with posix.begin(Command(daemonize.encode()), DEADLINE_SECONDS):
        pid = int(await_text(pid_file))
    await_ends(pid)
    assert_usable(posix)


def test_timeout_spares_the_jobs_of_earlier_commands(posix: Session, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    run(posix, f"sh -c 'echo $$ >{pid_file}; exec sleep 100' >/dev/null 2>&1 &")
    job = psutil.Process(int(await_text(pid_file)))
    with pytest.raises(CommandTimeout):
        run(posix, "sleep 100", timeout=0.3)
    assert job.is_running()
    job.kill()


def cancelled_when(there: Path, cancellation: Cancellation) -> threading.Thread:
    """Cancel as soon as the file ``there`` exists."""

    def wait() -> None:
        await_text(there)
        cancellation.cancel()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("trap", ["", "trap '' HUP INT TERM; "])
def test_a_cancelled_command_is_killed_without_a_further_look(
    bash: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    # Only the cancellation itself can end the wait for output.
    monkeypatch.setattr(running, "LOOK_SECONDS", 10 * DEADLINE_SECONDS)
    cancellation, begun = Cancellation(), tmp_path / "begun"
    cancelling = cancelled_when(begun, cancellation)
    with pytest.raises(CommandCancelled):
        bash.exec(Command(f"{trap}echo begun >{begun}; sleep {10 * DEADLINE_SECONDS}".encode()), 3600, cancellation)
    cancelling.join(DEADLINE_SECONDS)
    assert_usable(bash)


def test_a_cancelled_command_is_never_sent(bash: Session, tmp_path: Path) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    for stdin in (b"", bytes(100_000)):
        with pytest.raises(CommandCancelled):
            bash.exec(Command(f"cd /; touch {tmp_path}/ran".encode(), stdin=stdin), 60, cancellation)
    assert run(bash, "pwd").stdout != b"/"
    assert not list(tmp_path.iterdir())


@pytest.mark.local("the daemon decides it, whatever the transport is")
def test_a_cancelled_command_leaves_the_queue_before_its_turn(bash: Session, tmp_path: Path) -> None:
    gate, ran, begun = tmp_path / "gate", tmp_path / "ran", tmp_path / "begun"
    command = Command(f"echo begun >{begun}; until [ -e {gate} ]; do sleep 0.01; done".encode())
    holder = threading.Thread(target=lambda: bash.exec(command, 60))
    holder.start()
    await_text(begun)
    cancellation, errors = Cancellation(), list[type[Exception]]()

    def wait() -> None:
        try:
            bash.exec(Command(f"echo ran >>{ran}".encode()), 60, cancellation)
        except CommandCancelled as error:
            errors.append(type(error))

    waiting = [threading.Thread(target=wait) for _ in range(10)]
    for thread in waiting:
        thread.start()
    eventually_equal(lambda: bash.waiting, 10, "the commands do not wait")
    cancellation.cancel()
    for thread in waiting:
        thread.join(DEADLINE_SECONDS)
    # The command ahead still runs.
    assert (errors, bash.waiting, holder.is_alive()) == ([CommandCancelled] * 10, 0, True)
    gate.touch()
    holder.join(DEADLINE_SECONDS)
    assert_usable(bash)
    assert not ran.exists()


@pytest.mark.local("the daemon decides it, whatever the transport is")
def test_stop_kills_again_what_it_did_not_find(bash: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = []

    def find_nothing_at_first(*arguments: Any) -> bool:
        kills.append(arguments)
        return len(kills) > 1 and kill_tree(*arguments)

    monkeypatch.setattr(session, "kill_tree", find_nothing_at_first)

    def exec_sleep() -> None:
        with pytest.raises(ShellStopped):
            run(bash, "sleep 100")

    thread = threading.Thread(target=exec_sleep)
    thread.start()
    supervisor = psutil.Process(bash.pid)
    await_child(supervisor)
    bash.stop(10)
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert len(kills) == 2
    await_ends(supervisor.pid)


def test_stop_kills_a_shell_that_does_not_exit(posix: Session) -> None:
    supervisor = psutil.Process(posix.pid)
    supervisor.suspend()
    posix.stop(2)
    await_ends(supervisor.pid)


def test_a_shell_that_does_not_come_back_is_killed(posix: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "kill_tree", lambda *_: False)
    supervisor = psutil.Process(posix.pid)
    with pytest.raises(ShellLost):
        run(posix, "exec sleep 5", timeout=0.3)
    await_ends(supervisor.pid)


def test_a_shell_that_takes_no_command_is_killed(posix: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SEND_SECONDS", 0.5)
    supervisor = psutil.Process(posix.pid)
    supervisor.suspend()
    with pytest.raises(ShellLost):
        run(posix, ": " + "x" * 8_000_000)
    await_ends(supervisor.pid)


def test_a_process_that_is_not_our_supervisor_is_left_alone() -> None:
    transport = LocalTransport()
    stranger = psutil.Popen(["sh", "-c", "sleep 100 & wait"], start_new_session=True)
    child = await_child(stranger)
    assert not kill_tree(transport, stranger.pid, "its word", "0.0", 10)
    assert not kill_supervisor(transport, stranger.pid, "its word", 10)
    assert stranger.poll() is None
    assert child.status() == psutil.STATUS_SLEEPING
    child.kill()
    stranger.wait(DEADLINE_SECONDS)
    transport.close()


def test_stop_ends_the_running_and_the_waiting(any_shell: Session) -> None:
    errors: list[BaseException] = []

    def exec_sleep() -> None:
        with pytest.raises(ShellStopped) as caught:
            run(any_shell, "sleep 100")
        errors.append(caught.value)

    threads = [threading.Thread(target=exec_sleep) for _ in range(3)]
    for thread in threads:
        thread.start()
    supervisor = psutil.Process(any_shell.pid)
    await_child(supervisor)
    any_shell.stop(5)
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert len(errors) == 3
    await_ends(supervisor.pid)


@pytest.mark.local("the daemon decides it, whatever the transport is")
def test_commands_run_in_the_order_in_which_they_came(bash: Session, tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    threads = [threading.Thread(target=run, args=(bash, f"until [ -e {gate} ]; do sleep 0.01; done"))]
    threads += [threading.Thread(target=run, args=(bash, f"echo {number} >>{log}")) for number in range(50)]
    for thread in threads:
        before = bash.waiting
        thread.start()
        if thread is not threads[0]:
            eventually_equal(lambda: bash.waiting, before + 1, "the command does not wait")
    gate.touch()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert log.read_text().split() == [str(number) for number in range(50)]


@pytest.mark.local("the daemon decides it, whatever the transport is")
def test_a_turn_that_does_not_come_in_time(bash: Session, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    command = Command(f"echo begun >{begun}; until [ -e {gate} ]; do sleep 0.01; done".encode())
    holder = threading.Thread(target=lambda: bash.exec(command, 60))
    holder.start()
    await_text(begun)
    with pytest.raises(ShellBusy):
        run(bash, "echo hi", timeout=0.1)
    gate.touch()
    holder.join(DEADLINE_SECONDS)
    assert_usable(bash)


def test_ten_megabytes_on_both_streams_at_once(posix: Session) -> None:
    merged = posix.info.tty_state == "merged"
    size = 8_000_000 if merged else 10_000_000
    result = run(posix, f"yes oops 2>/dev/null | head -c {size} >&2 & yes 2>/dev/null | head -c {size}; wait")
    assert (len(result.stdout), len(result.stderr)) == ((2 * size, 0) if merged else (size, size))
    assert not result.truncated
    assert_usable(posix)


def test_ten_megabytes_arrive_as_they_were(posix: Session) -> None:
    result = run(posix, "yes 0123456789abcde 2>/dev/null | head -c 10000000", timeout=60)
    assert bytes(result.stdout) == b"0123456789abcde\n" * 625_000


def test_output_beyond_the_limit_is_cut_and_said_so() -> None:
    with local_session("dash", max_output=1000) as session:
        result = run(session, "yes | head -c 100000; echo end >&2; exit 3")
        assert result.truncated
        assert bytes(result.stdout) == b"y\n" * 500
        assert (result.exit_code, bytes(result.stderr)) == (3, b"end\n")
        assert_usable(session)


@pytest.mark.slow
def test_a_gigabyte_of_output_takes_no_memory() -> None:
    with local_session("bash") as session:
        before = psutil.Process().memory_info().rss
        result = run(session, "head -c 1000000000 /dev/zero", timeout=100)
        grown = psutil.Process().memory_info().rss - before
        assert result.truncated
        assert len(result.stdout) == 16 << 20
        assert grown < 64 << 20
        assert_usable(session)
