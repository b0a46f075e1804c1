"""Runs the program by forking a process that has loaded it, since loading takes longer than most tests.

The program is connmgr or another one (tests/ansible/forked.py). A forked one differs from the installed ``connmgr`` in
its command line, as processes are listed, and in the cost of its passphrases (tests/derivation.py). Its imports have
run before, but they start nothing (tests/test_layering.py), and it finds computed what each process computes once
(tests/prepared.py, tests/mcp/prepared.py).
At the end it waits for its threads and then exits without destroying its modules.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.derivation import is_cost_lowered, lower_cost

ROOT = Path(__file__).parent.parent
PROGRAM = Path(sys.executable).with_name("connmgr")
SERVER = (
    *(
        "connmgr.cli.commands.serve",
        "connmgr.daemon.main",
        "connmgr_containers",
        "connmgr_elevated",
        "connmgr_local",
        "connmgr_ssh",
    ),
    *("connmgr_tunnels", "alembic.command", "alembic.config", "alembic.ddl.sqlite", "sqlalchemy.dialects.sqlite"),
    *("importlib.resources.readers", "tests.prepared"),
)
"""What the daemon loads, and commands that work on the vault itself."""
COMMAND = (
    *("encodings.idna", "connmgr.__main__", "connmgr.cli.front"),
    *("connmgr.client.connections", "connmgr.client.jobs", "click._textwrap"),
)
"""What most commands load when they run, beside their own modules."""
FORKED = Path(__file__).with_name("forked.py")
MAX_REQUEST_BYTES = 1 << 17
_STATUS = struct.Struct("i")
_AT_START = ("LANG", "LC_", "LD_", "MALLOC_", "PYTHON")
"""Beginnings of the names of variables that matter when an interpreter starts."""


def forkable(environment: Mapping[str, str]) -> bool:
    """Whether a forked process with ``environment`` behaves as a new one."""
    return not [name for name in environment if name.startswith(_AT_START) and name != "LANG"]


class Child:
    """A process started by :class:`Spawner`, with the interface of :class:`subprocess.Popen`."""

    def __init__(self, pid: int, told: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._told: int | None = told

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes to it, and wait for its end."""
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                # What was not yet written when it ended is lost.
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Return :attr:`returncode`, or None while the process runs."""
        self._look(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return :attr:`returncode`.

        :raises subprocess.TimeoutExpired: it runs longer than ``timeout`` seconds.
        """
        self._look(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("connmgr", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            # The end may not have been reported yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> None:
        if self._told is None or not select.select([self._told], [], [], timeout)[0]:
            return
        self.returncode = os.waitstatus_to_exitcode(_STATUS.unpack(os.read(self._told, _STATUS.size))[0])
        os.close(self._told)
        self._told = None


class Spawner:
    """The process that has the commands and ``modules`` loaded; it ends with the process that started it.

    ``main`` is the module whose function ``main`` is the program. ``command`` stands for the program where others start
    it: a small program that has the spawner fork.
    """

    def __init__(self, modules: Sequence[str] = (), main: str = "connmgr.__main__") -> None:
        self._lock = threading.Lock()
        self._directory = tempfile.TemporaryDirectory(prefix="cm-")
        self._address = f"{self._directory.name}/socket"
        self.command = (sys.executable, "-ISE", str(FORKED), self._address)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self._address)
            listening.listen()
            argv = [sys.executable, "-m", "tests.spawner", str(listening.fileno()), main, *modules]
            environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": self._directory.name}
            self._process = subprocess.Popen(
                argv, cwd=ROOT, env=environment, pass_fds=[listening.fileno()], stdin=subprocess.PIPE
            )

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        stdin: int,
        stderr: int,
        *,
        new_session: bool = False,
        program: Path = PROGRAM,
    ) -> Child:
        """Start the program with ``arguments``, its output in :attr:`Child.stdout`; it believes to be ``program``."""
        reads, stdout = os.pipe()
        try:
            child = self._forked([str(program), *arguments], environment, cwd, (stdin, stdout, stderr), new_session)
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(stdout)
        child.stdout = os.fdopen(reads, "rb", buffering=0)
        return child

    def begin(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, stdin: int = subprocess.PIPE
    ) -> Child:
        """Start the program with pipes as the streams of :class:`Child`; another ``stdin`` is a descriptor."""
        pipes = [os.pipe() for _ in range(3)]
        (reads, feeds), (said, stdout), (told, stderr) = pipes
        given = reads if stdin == subprocess.PIPE else stdin
        try:
            child = self._forked([str(PROGRAM), *arguments], environment, cwd, (given, stdout, stderr))
        except BaseException:
            for descriptor in (feeds, said, told):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (reads, stdout, stderr):
                os.close(descriptor)
        child.stdout, child.stderr = os.fdopen(said, "rb"), os.fdopen(told, "rb")
        if stdin == subprocess.PIPE:
            child.stdin = os.fdopen(feeds, "wb")
        else:
            os.close(feeds)
        return child

    def start_on(self, terminal: int, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Child:
        """Start the program as the leader of a session whose terminal, and standard streams, are ``terminal``."""
        return self._forked([str(PROGRAM), *arguments], environment, cwd, (terminal,) * 3, on_terminal=True)

    def _forked(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        streams: tuple[int, int, int],
        new_session: bool = False,
        on_terminal: bool = False,
    ) -> Child:
        told, tells = os.pipe()
        try:
            with self._lock, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
                asking.connect(self._address)
                mask = os.umask(0o077)
                os.umask(mask)
                options = [mask, new_session, is_cost_lowered(), on_terminal]
                request = json.dumps([list(words), dict(environment), str(cwd), *options]).encode()
                socket.send_fds(asking, [request], [*streams, tells])
                pid = int(asking.recv(32))
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(tells)
        return Child(pid, told)

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        content: bytes,
        timeout: float,
        program: Path = PROGRAM,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the program in its own session to its end, with ``content`` as input; it believes to be ``program``.

        :raises subprocess.TimeoutExpired: it ran longer than ``timeout`` seconds, and was killed.
        """
        stdin, feeds = os.pipe()
        errors, stderr = os.pipe()
        try:
            child = self.start(arguments, environment, cwd, stdin, stderr, new_session=True, program=program)
        finally:
            os.close(stdin)
            os.close(stderr)
        deadline = time.monotonic() + timeout
        assert child.stdout is not None
        with child.stdout, os.fdopen(errors, "rb", buffering=0) as told, os.fdopen(feeds, "wb", buffering=0) as feed:
            try:
                said = _exchange(feed, content, [child.stdout, told], deadline)
                child.wait(max(0.0, deadline - time.monotonic()))
            except BaseException:
                child.kill()
                child.wait()
                raise
        return subprocess.CompletedProcess(arguments, child.wait(), *said)

    def close(self) -> None:
        """End the process; the programs that it has started run on."""
        self._process.communicate(timeout=60)
        self._directory.cleanup()


def _exchange(feed: IO[bytes], content: bytes, sources: list[IO[bytes]], deadline: float) -> list[bytes]:
    """Write ``content`` until the reader closes, and return all output of ``sources``."""
    said = dict.fromkeys(sources, b"")
    os.set_blocking(feed.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(feed, selectors.EVENT_WRITE)
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired("connmgr", 0.0, *said.values())
            for key, _ in ready:
                if key.fileobj is feed:
                    content = _fed(feed, content)
                    ended = not content
                else:
                    chunk = os.read(key.fd, 1 << 16)
                    said[key.fileobj] += chunk
                    ended = not chunk
                if ended:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    return list(said.values())


def _fed(feed: IO[bytes], content: bytes) -> bytes:
    """Write what fits and return the rest; after the reader has closed, nothing is left."""
    try:
        return content[os.write(feed.fileno(), content[: 1 << 16]) :] if content else content
    except BrokenPipeError:
        return b""


class _End:
    """Exits a child after its threads have ended: the last exit handler to be called."""

    def __init__(self) -> None:
        self.code = 1
        atexit.register(self)

    def __call__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(self.code)


def main() -> None:
    """Fork a child for each request until standard input ends; return in a child, ready to run the program."""
    gc.disable()
    for module in (*COMMAND, *_commands(), *sys.argv[2:]):
        importlib.import_module(module)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as listening, _Children() as children:
        while True:
            ready, _, _ = select.select([0, listening, children], [], [])
            if 0 in ready:
                os._exit(0)
            if children in ready:
                children.tell_ends()
            if listening not in ready:
                continue
            with listening.accept()[0] as asking:
                words, descriptors, *_ = socket.recv_fds(asking, MAX_REQUEST_BYTES, 4)
                *streams, tells = descriptors
                pid = os.fork()
                if pid == 0:
                    break
                children.add(pid, tells)
                asking.send(str(pid).encode())
            for stream in streams:
                os.close(stream)
    os.close(tells)
    _become(*json.loads(words), *streams)


class _Children:
    """The forked processes that run; selectable for reading when some have ended. A child closes its copy."""

    def __init__(self) -> None:
        self._tells: dict[int, int] = {}
        self._reads, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._reads, self._wakes, *self._tells.values()):
            os.close(descriptor)

    def fileno(self) -> int:
        return self._reads

    def add(self, pid: int, tells: int) -> None:
        """Report the end of the process ``pid`` to the descriptor ``tells``."""
        self._tells[pid] = tells

    def tell_ends(self) -> None:
        """Report the end of each process that has ended."""
        os.read(self._reads, 1 << 12)
        while self._tells:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            tells = self._tells.pop(pid)
            # The reader may have closed its end.
            with suppress(BrokenPipeError):
                os.write(tells, _STATUS.pack(status))
            os.close(tells)


def _commands() -> set[str]:
    """Return the modules of all commands."""
    from connmgr.cli.root import COMMANDS

    return {f"connmgr.cli.{module}" for module in COMMANDS.values()}


def _become(
    words: list[str],
    environment: dict[str, str],
    cwd: str,
    mask: int,
    new_session: bool,
    cost_lowered: bool,
    on_terminal: bool,
    stdin: int,
    stdout: int,
    stderr: int,
) -> None:
    """Give this process the state of a new one that is about to run the program."""
    if new_session or on_terminal:
        os.setsid()
    if on_terminal:
        fcntl.ioctl(stdin, termios.TIOCSCTTY, 0)
    if cost_lowered:
        lower_cost()
    for target, source in enumerate((stdin, stdout, stderr)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    os.umask(mask)
    sys.argv[:] = words
    # click derives from this how the program was started.
    sys.modules["__main__"].__package__ = None


if __name__ == "__main__":
    end = _End()
    program = sys.argv[2]
    main()
    try:
        sys.modules[program].main()
    except SystemExit as left:
        end.code = left.code if isinstance(left.code, int) else int(left.code is not None)
        raise
