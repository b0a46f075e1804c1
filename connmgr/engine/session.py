"""A shell session: a supervisor on one channel, and the commands that run in it one after the other."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from connmgr.engine.dialects import quote
from connmgr.engine.fair_lock import FairLock
from connmgr.engine.frame import Command, build_frame, build_plain_frame, enter_directory
from connmgr.engine.helper import Helpers
from connmgr.engine.kill import kill_supervisor, kill_tree
from connmgr.engine.marks import MarkedStream, UnknownMark
from connmgr.engine.nonce import nonces
from connmgr.engine.running import KILL_AGAIN_SECONDS, KILL_SECONDS, Limits, Result, Running
from connmgr.engine.start import Supervisor
from connmgr.engine.state import State
from connmgr.engine.stdin_pipe import fed
from connmgr.errors import (
    CommandTimeout,
    ConnmgrError,
    NoSuchDirectory,
    OperationError,
    ShellBusy,
    ShellLost,
    ShellStopped,
)
from connmgr.plugin import Channel, Transport

GIVE_UP_TIMEOUT = 5.0
"""Seconds for killing a shell that does not come back."""

LATE_READS = 64
"""How often a job that prints without end may be read from before a command is sent all the same."""

INPUT_IN_FRAME = 16384
"""Bytes of standard input that travel with the command."""

SEND_TIMEOUT = 30.0
"""Seconds within which a supervisor that waits for a frame must take it."""


class Session:
    """A running shell. Commands of several threads run one at a time, in the order in which they came."""

    def __init__(
        self, supervisor: Supervisor, transport: Transport, max_output: int, helpers: Helpers | None = None
    ) -> None:
        self.info = supervisor.info
        self.pid = supervisor.pid
        self.last_used = time.monotonic()
        self._supervisor = supervisor
        self._channel: Channel = supervisor.channel
        self.transport = transport
        self.helpers = helpers or Helpers()
        self._max_output = max_output
        self._turns = FairLock()
        self._cookie = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._nonces = nonces()
        self._running: str | None = None
        self._stopping = threading.Event()
        self._lost = False
        self._entered = supervisor.directory
        self._moved = False
        self._state = State(supervisor.dialect)
        self._state.update(supervisor.directory, supervisor.variables, from_env=False)
        self._restore = b""
        self._temporary: list[bytes] = []
        self._lending = threading.Lock()
        self._borrowers = 0

    @property
    def alive(self) -> bool:
        """Whether the session can run commands, as far as is known without asking the far side."""
        return not self._lost and not self._stopping.is_set()

    def notice_end(self) -> None:
        """Look whether the shell or its link has ended while it was idle; the far side is not asked.

        A shell that runs a command notices by itself.
        """
        with contextlib.suppress(TimeoutError), self._turns.take(0.0):
            if self.alive and self._has_ended():
                self._lost = True

    def _has_ended(self) -> bool:
        try:
            self._discard_late_output()
            # What a command left in the background may hold the streams of a shell that is dead.
            self._channel.exit_status(0.0)
        except TimeoutError:
            return False
        except (EOFError, OSError):
            return True
        return True

    @property
    def directory(self) -> bytes:
        """The working directory, as the last command left it."""
        return self._state.directory

    def remove_at_stop(self, path: bytes) -> None:
        """Have a file or directory of the far side removed when the session is stopped."""
        self._temporary.append(path)

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[None]:
        """Count the session as used, while other channels of its transport are."""
        with self._lending:
            self._borrowers += 1
        try:
            yield
        finally:
            with self._lending:
                self._borrowers -= 1
                self.last_used = time.monotonic()

    @property
    def waiting(self) -> int:
        """How many commands wait for those before them."""
        return self._turns.waiting

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last command ended; 0 while one runs, or while files are transferred."""
        return 0.0 if self._turns.taken or self._borrowers else time.monotonic() - self.last_used

    def exec(self, command: Command, timeout: float, abandoned: Callable[[], bool] = lambda: False) -> Result:
        """Run ``command`` to its end and return its result; see :meth:`begin` and :meth:`Running.result`."""
        with self.begin(command, timeout, abandoned) as running:
            return running.result()

    @contextlib.contextmanager
    def begin(
        self, command: Command, timeout: float, abandoned: Callable[[], bool] = lambda: False
    ) -> Iterator[Running]:
        """Begin ``command`` once those before it are done, and hold the session for it until the ``with`` block ends.

        It may run for ``timeout`` seconds, and while ``abandoned``, asked about once a second, returns False. One
        that still runs when the block ends is killed.
        :raises ShellBusy: its turn did not come within ``timeout`` seconds.
        :raises ShellStopped: the shell was stopped before.
        :raises ShellLost: the shell is gone; whether the command ran is not known.
        """
        with self._turn(timeout), self._input_beside(command) as prepared:
            nonce, cookie = next(self._nonces), f"{self._cookie}.{next(self._numbers)}"
            frame, self._restore = self._restore + self._frame(prepared, nonce, cookie), b""
            self._running = cookie
            try:
                with self.guarded():
                    self._discard_late_output()
                    try:
                        self._channel.sendall(frame, SEND_TIMEOUT)
                    except TimeoutError:
                        self.give_up(cookie)
                        raise
                limits = Limits(timeout, self._max_output, abandoned)
                running = Running(self, self._channel, prepared, nonce, cookie, limits)
                try:
                    yield running
                finally:
                    if self.alive:
                        running.kill()
            finally:
                self._running = None
                self.last_used = time.monotonic()

    @contextlib.contextmanager
    def _turn(self, timeout: float) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._turns.take(timeout))
            except TimeoutError:
                raise ShellBusy("Other commands held this session until the request's time was over.") from None
            if self._stopping.is_set():
                raise ShellStopped("The shell was stopped before the command ran.")
            if self._lost:
                raise ShellLost("The shell is gone; start it again.")
            yield

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn whatever ends the shell within the ``with`` block into the error that says so.

        :raises ShellStopped: it was stopped.
        :raises ShellLost: it is gone, or in a state that nobody knows.
        """
        try:
            yield
        except (ConnmgrError, GeneratorExit):
            raise
        except BaseException as error:
            # What a plugin raises against its contract leaves nobody knowing where in the streams the shell is.
            self._lost = True
            if isinstance(error, UnknownMark):
                raise ShellLost("The daemon lost track of the far side's shell; start it again.") from error
            if not isinstance(error, EOFError | OSError):
                raise
            if self._stopping.is_set():
                raise ShellStopped("The shell was stopped while the command ran.") from error
            raise ShellLost("The shell or its link ended before the command did; start it again.") from error

    def probe(self, timeout: float) -> bool:
        """Return whether the shell answers; one that is running a command counts as answering."""
        if self.alive and not self._turns.taken:
            with contextlib.suppress(ShellLost, ShellStopped, ShellBusy, CommandTimeout):
                self.exec(Command(b":"), timeout)
        return self.alive

    def stop(self, timeout: float) -> None:
        """End what runs, let the shell exit, and release the channel, within about ``timeout`` seconds."""
        self._stopping.set()
        try:
            self._end(timeout)
        finally:
            # Whoever still holds the turn when time is up is woken by the close of the channel.
            self._lost = True
            self.helpers.close()
            self._channel.close()

    def _end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        # What is left then is for a shell that does not exit.
        patient_until = deadline - min(KILL_AGAIN_SECONDS, timeout / 4)
        ended = False
        while not ended and (left := patient_until - time.monotonic()) > 0:
            cookie = self._running
            if cookie and not self._lost:
                self.kill_tree(cookie, min(KILL_SECONDS, left / 2))
            # What had not quite begun is killed the next time.
            ended = self._exit(min(KILL_AGAIN_SECONDS, max(0.0, patient_until - time.monotonic())), patient_until)
        if not ended:
            self._kill_supervisor(max(0.1, deadline - time.monotonic()))

    def _exit(self, patience: float, deadline: float) -> bool:
        """Let the shell exit, if its turn for that comes within ``patience`` seconds, and return whether it has."""
        try:
            with self._turns.take(patience):
                if not self._lost:
                    # A terminal has no EOF.
                    self._channel.sendall(self._tidying() + b"exit 0\n", max(0.1, deadline - time.monotonic()))
                    self._channel.shutdown_write()
                    self._channel.exit_status(max(0.1, deadline - time.monotonic()))
        except (EOFError, OSError) as error:
            return not isinstance(error, TimeoutError)
        return True

    def kill_tree(self, cookie: str, timeout: float) -> bool:
        """Kill all processes of the command ``cookie``, and return whether that could be done."""
        return kill_tree(self.transport, self.pid, self._supervisor.word, cookie, timeout)

    def _kill_supervisor(self, timeout: float) -> None:
        # A shell that spins, or was stopped, does not notice that its streams have ended.
        kill_supervisor(self.transport, self.pid, self._supervisor.word, timeout)

    @contextlib.contextmanager
    def _input_beside(self, command: Command) -> Iterator[Command]:
        """Move large input out of the frame, where another channel can be had for it."""
        if len(command.stdin) <= INPUT_IN_FRAME:
            yield command
            return
        with contextlib.ExitStack() as feeding:
            with contextlib.suppress(OperationError, EOFError):
                pipe = feeding.enter_context(fed(self.transport, command.stdin, SEND_TIMEOUT))
                command = replace(command, stdin=b"", stdin_pipe=pipe)
            yield command

    def settle(self, running: Running) -> None:
        """Take over the state that a command has left, and raise why it did not run.

        :raises ShellStopped: the shell was stopped while it ran.
        :raises NoSuchDirectory: its working directory, or the session's own, cannot be entered.
        """
        stdout = running.stdout
        self._keep_state(running.command, stdout)
        if self._stopping.is_set():
            raise ShellStopped("The shell was stopped while the command ran.")
        if stdout.directory_refused:
            raise NoSuchDirectory("cwd: the directory cannot be entered.")
        if stdout.directory_lost:
            raise NoSuchDirectory(
                "The session's working directory is gone; the command did not run, and the session is back in "
                f"{self._entered.decode(errors='replace')}."
            )

    def _frame(self, command: Command, nonce: str, cookie: str) -> bytes:
        frame = self._frame_of(command, nonce, cookie)
        if not self._moved and self._state.directory == self._entered:
            return frame
        # To enter one sets OLDPWD, for which `cd -` goes.
        previous = self._state.variables.get(b"OLDPWD", b"")
        return enter_directory(self._supervisor.dialect, self._state.directory, nonce, previous + frame)

    def _frame_of(self, command: Command, nonce: str, cookie: str) -> bytes:
        supervisor = self._supervisor
        # FPATH is where shells look for functions that they load when one is called.
        if supervisor.pure and not command.has_options and b"FPATH" not in self._state.variables:
            plain = build_plain_frame(command.text, nonce, cookie)
            if plain is not None:
                return plain
        return build_frame(supervisor.dialect, command, nonce, cookie, supervisor.interpreter)

    def _tidying(self) -> bytes:
        return b"rm -rf -- " + b" ".join(map(quote, self._temporary)) + b";" if self._temporary else b""

    def _discard_late_output(self) -> None:
        """Drop what background jobs of earlier commands have printed since: it is not this command's."""
        for _ in range(LATE_READS):
            if not any(self._channel.recv(0)):
                return

    def give_up(self, cookie: str) -> None:
        """Kill a shell that neither takes what it is sent nor comes back, and what it runs, and close its channel."""
        self.kill_tree(cookie, GIVE_UP_TIMEOUT)
        self._kill_supervisor(GIVE_UP_TIMEOUT)
        self._channel.close()

    def _keep_state(self, command: Command, stdout: MarkedStream) -> None:
        self._moved = False
        if stdout.directory_lost:
            self._state.directory = self._entered
            return
        self._entered = self._state.directory
        if command.keeps_state and stdout.state:
            # The name that it was entered by may be the same, and lead elsewhere than before.
            self._moved = stdout.moved
            interpreted = self._supervisor.interpreter is not None
            self._restore = self._state.update(*stdout.state, from_env=interpreted)
