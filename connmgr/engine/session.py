"""A shell session: a supervisor on one channel, and the commands that it runs one after another."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.envelope import (
    ROOT,
    Command,
    MarkedStream,
    UnknownMark,
    build_envelope,
    build_plain_envelope,
    enter_directory,
)
from connmgr.engine.kill import RESUME, kill_supervisor, kill_tree
from connmgr.engine.rpc import Helpers
from connmgr.engine.running import KILL_AGAIN_SECONDS, KILL_SECONDS, Limits, Result, RunningCommand
from connmgr.engine.sandbox import in_sandbox, refusal
from connmgr.engine.script import nonces, quote
from connmgr.engine.start import Supervisor
from connmgr.engine.state import ShellSnapshot, State
from connmgr.engine.stdin_pipe import Input, Whole, fed
from connmgr.errors import (
    ChannelRefused,
    CommandTimeout,
    ConnmgrError,
    NoSuchDirectory,
    OperationError,
    ShellBusy,
    ShellLost,
    ShellStopped,
)
from connmgr.plugin import DEFAULT_SEND_ENV, Channel, ClientEnvironment, Transport
from connmgr.printable import visible

KILL_SHELL_SECONDS = 5.0
"""Time to kill a shell that does not answer."""

MAX_LATE_READS = 64
"""Most reads of output from background processes before a command is sent anyway."""

ENVELOPE_INPUT_BYTES = 16384
"""Larger standard input uses a pipe of its own, if there is a second channel."""

SEND_SECONDS = 30.0
"""Longest time for a waiting supervisor to accept an envelope."""


class Session:
    """A running shell, which several threads share: it runs one command at a time, in the order of their requests."""

    def __init__(
        self,
        supervisor: Supervisor,
        transport: Transport,
        max_output: int,
        helpers: Helpers | None = None,
        connection_digest: str | None = None,
    ) -> None:
        self.info = supervisor.info
        self.pid = supervisor.pid
        self.last_used = time.monotonic()
        self.connection_digest = connection_digest
        """The digest of the connection to which it was opened (:func:`connmgr.vault.dependencies.complete_digest`)."""
        self._supervisor = supervisor
        self._channel: Channel = supervisor.channel
        self.transport = transport
        self.helpers = helpers or Helpers()
        self._max_output = max_output
        self._command_lock = FairLock()
        self._cookie = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._nonces = nonces()
        self._running: str | None = None
        self.running_since: float | None = None
        """When the running command began, in seconds of ``time.time``."""
        self.running_command: Command | None = None
        self._stopping = threading.Event()
        self._lost = False
        self._entered = supervisor.directory
        self._moved = False
        self._state = State(supervisor.dialect)
        self._state.update(supervisor.directory, supervisor.variables, from_env=False)
        self._start = (self._state.directory, dict(self._state.variables))
        self._restore = b""
        self._temporary: list[bytes] = []
        self.environment = ClientEnvironment(DEFAULT_SEND_ENV)
        """The variables of clients that the shell takes over."""
        self._adopted: dict[str, str] | None = None
        self._received: dict[bytes, bytes] = {}
        self._lending = threading.Lock()
        self._borrowers = 0
        self._before_sending, self._guard = _Guard(self, sent=False), _Guard(self, sent=True)

    @property
    def alive(self) -> bool:
        """Whether the session can run commands, as far as known without asking the remote host."""
        return not self._lost and not self._stopping.is_set()

    def notice_end(self) -> None:
        """Detect the end of an idle shell or its link, without asking the remote host."""
        # Where a command runs, its reader notices the end; two readers of one channel would take each other's output.
        with contextlib.suppress(TimeoutError), self._command_lock.take(0.0):
            if self.alive and self._has_ended():
                self._lost = True

    def lose(self) -> None:
        """Abandon the shell because its remote host is silent, unless a command is running."""
        with contextlib.suppress(TimeoutError), self._command_lock.take(0.0):
            self._lost = True

    def _has_ended(self) -> bool:
        try:
            self._discard_late_output()
            # A background process may keep the streams of a dead shell open.
            self._channel.exit_status(0.0)
        except TimeoutError:
            return False
        except (EOFError, OSError):
            return True
        return True

    @property
    def directory(self) -> bytes:
        """The working directory after the last command."""
        return self._state.directory

    @property
    def surroundings(self) -> ShellSnapshot:
        """The shell and state that a command would start with now."""
        shell = self._supervisor
        variables, received = dict(self._state.variables), dict(self._received)
        directory = self._state.directory
        return ShellSnapshot(
            shell.argv, shell.dialect, shell.interpreter, directory, variables, self._start, received, shell.state_home
        )

    def has_started(self) -> None:
        """Record the present state as the initial one, after the first commands that a connection prescribes."""
        self._start = (self._state.directory, dict(self._state.variables))

    def remove_at_stop(self, path: bytes) -> None:
        """Remove a file or directory of the remote host when the session stops."""
        self._temporary.append(path)

    def borrow(self) -> None:
        """Count the session as in use until :meth:`give_back`, while its transport's other channels are."""
        with self._lending:
            self._borrowers += 1

    def give_back(self) -> None:
        """End one :meth:`borrow`."""
        with self._lending:
            self._borrowers -= 1
            self.last_used = time.monotonic()

    @property
    def waiting(self) -> int:
        """The number of commands that wait for earlier ones."""
        return self._command_lock.waiting

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last command ended; 0 while a command runs or files are transferred."""
        return 0.0 if self._command_lock.taken or self._borrowers else time.monotonic() - self.last_used

    def exec(self, command: Command, timeout: float, cancellation: Cancellation = NEVER) -> Result:
        """Run ``command`` to its end and return its result; see :meth:`begin` and :meth:`RunningCommand.result`."""
        with self.begin(command, timeout, cancellation) as running:
            return running.result()

    @contextlib.contextmanager
    def begin(
        self,
        command: Command,
        timeout: float,
        cancellation: Cancellation = NEVER,
        *,
        turn_timeout: float | None = None,
        require: Callable[[Session], None] | None = None,
    ) -> Iterator[RunningCommand]:
        """Start ``command`` after the earlier commands, and reserve the session for it until the ``with`` block ends.

        The command may run for ``timeout`` seconds. If it is cancelled before its turn, it never runs; if it is still
        running when the block ends, it is killed. ``require`` is called when its turn has come, before anything is
        sent, and raises an error if the command must not be sent.
        :raises CommandCancelled: it was cancelled before anything was sent.
        :raises ShellBusy: earlier commands took ``turn_timeout`` seconds, by default ``timeout``.
        :raises ShellStopped: the shell was stopped before.
        :raises ShellLost: the shell is gone; if the error is ``sent``, it is unknown whether the command ran.
        """
        if command.sandbox:
            command = in_sandbox(command, self.surroundings, self.environment.select(command.sent or {}))
        is_small = command.arriving is None and len(command.stdin) <= ENVELOPE_INPUT_BYTES
        with (
            self._turn(timeout if turn_timeout is None else turn_timeout, cancellation),
            contextlib.nullcontext((command, _nothing)) if is_small else self._input_beside(command) as beside,
        ):
            prepared, begin_input = beside
            # The last moment: both waiting for the turn and opening a channel for input may have taken long.
            cancellation.require()
            if require is not None:
                require(self)
            nonce, cookie = next(self._nonces), f"{self._cookie}.{next(self._numbers)}"
            # With the statements that restore the state, for the supervisor itself has to have the variables: in the
            # command's subshell alone they would be lost with it, or be taken for a change of state by the command.
            self._adopt(command.sent, keeps_state=command.keeps_state)
            if not command.keeps_state:
                prepared = self._with_sent(prepared)
            envelope, self._restore = self._restore + self._envelope(prepared, nonce, cookie), b""
            self._running, self.running_since, self.running_command = cookie, time.time(), command
            try:
                # A lost shell is noticed here before anything is sent, so the caller may start a new one and send the
                # command there. From the first byte of the envelope on it may have run, and nobody repeats it.
                with self._before_sending:
                    self._discard_late_output()
                with self._guard:
                    try:
                        self._channel.sendall(envelope, SEND_SECONDS)
                    except TimeoutError:
                        # The supervisor has a part of the line. Whatever came next would be read as the rest of it.
                        self.kill_shell(cookie)
                        raise
                # Not before: the pipe must find exactly one reader, and that is the command (stdin_pipe.sh).
                begin_input()
                limits = Limits(timeout, self._max_output, _until_input_breaks(command, cancellation))
                running = RunningCommand(self, self._channel, prepared, nonce, cookie, limits)
                try:
                    yield running
                finally:
                    # The block may be left early, by an error or a reader that wants no more. A command that has ended
                    # is not killed, and a shell that is lost took its command along.
                    if self.alive:
                        running.kill()
            finally:
                self._running = self.running_since = self.running_command = None
                self.last_used = time.monotonic()

    def _adopt(self, sent: Mapping[str, str] | None, *, keeps_state: bool = True) -> None:
        """Take over the variables of a client, unless they equal the variables of the client before.

        A shell that has exported another value keeps it until a client with other variables comes. Of a client whose
        command leaves nothing in the session only the locale is taken over.
        """
        before = self._adopted
        if sent is None and before is not None:
            return
        variables = self.environment.select(sent or {})
        if not keeps_state:
            others = {name: value for name, value in (before or {}).items() if not _is_locale(name)}
            variables = {name: value for name, value in variables.items() if self._stays(name)} | others
        self._adopted = variables
        if variables == before:
            return
        before = before or {}
        # If this client has no LC_ALL, that of the previous client must not stay; empty means unset (POSIX.1, 8.2).
        absent = {name: "" for name in before.keys() - variables.keys() if _is_locale(name)}
        dialect = self._supervisor.dialect
        for name, value in (
            {name: value for name, value in variables.items() if before.get(name) != value} | absent
        ).items():
            statement = b"export " + name.encode() + b"=" + dialect.quoted(value.encode()) + b";"
            # Part of the initial state: no command of the session has set it.
            self._state.variables[name.encode()] = self._start[1][name.encode()] = statement
            if name in absent or name in self.environment.values:
                self._received.pop(name.encode(), None)
            else:
                self._received[name.encode()] = statement
            self._restore += dialect.builtin.encode() + b" " + statement

    def _with_sent(self, command: Command) -> Command:
        """Return a command that leaves nothing in the session, with the variables of its client for itself alone."""
        sent, before = self.environment.select(command.sent or {}), self._adopted or {}
        own = {name: value for name, value in sent.items() if not self._stays(name) and before.get(name) != value}
        return replace(command, environment={**own, **(command.environment or {})}) if own else command

    def _stays(self, name: str) -> bool:
        """Whether a variable of a client is taken over with any command: the locale, and what the connection sets."""
        return _is_locale(name) or name in self.environment.values

    def _turn(self, timeout: float, cancellation: Cancellation) -> AbstractContextManager[None]:
        """Take the turn of a command, and return what ends it."""
        try:
            self._command_lock.acquire(timeout, cancellation)
        except TimeoutError:
            raise ShellBusy(
                "Other commands held this session until the request's time was over; try again, or use another session."
            ) from None
        if self._stopping.is_set() or self._lost:
            self._command_lock.release()
            if self._stopping.is_set():
                raise ShellStopped("The shell was stopped before the command ran.")
            raise ShellLost("The shell is gone; start it again.", sent=False)
        return self._command_lock

    def guarded(self) -> AbstractContextManager[None]:
        """Turn the shell's end within the ``with`` block into an error, as :meth:`end_by` does."""
        return self._guard

    def end_by(self, error: BaseException, *, sent: bool) -> None:
        """Give the shell up after ``error``, which may mean another one; ``sent`` says whether anything was sent.

        :raises ShellStopped: the shell was stopped.
        :raises ShellLost: the shell is gone, or in an unknown state.
        """
        # After an exception that violates a plugin's contract, the position in the streams is unknown.
        self._lost = True
        if isinstance(error, UnknownMark):
            raise ShellLost("The daemon lost track of the remote host's shell; start it again.") from error
        if not isinstance(error, EOFError | OSError):
            return
        if self._stopping.is_set():
            raise ShellStopped("The shell was stopped while the command ran.") from error
        raise ShellLost("The shell or its link ended before the command did; start it again.", sent=sent) from error

    def probe(self, timeout: float) -> bool:
        """Return whether the shell answers. A shell that is running a command counts as answering."""
        if self.alive and not self._command_lock.taken:
            with contextlib.suppress(ShellLost, ShellStopped, ShellBusy, CommandTimeout):
                self.exec(Command(b":"), timeout)
        return self.alive

    def stop(self, timeout: float) -> None:
        """Kill a running command, let the shell exit, and release the channel, in about ``timeout`` seconds."""
        if not self._lost:
            # Threads that wait for a lost shell get ShellLost, so that they may start it again.
            self._stopping.set()
        try:
            self._end(timeout)
        finally:
            # Closing the channel wakes the thread that still holds the lock.
            self._lost = True
            self.helpers.close()
            self._channel.close()

    def _end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        # The rest of the time is for killing a shell that does not exit.
        exit_deadline = deadline - min(KILL_AGAIN_SECONDS, timeout / 4)
        ended = False
        while not ended and (left := exit_deadline - time.monotonic()) > 0:
            cookie = self._running
            if cookie and not self._lost:
                self.kill_tree(cookie, min(KILL_SECONDS, left / 2))
            # A command that has not begun yet is killed in the next round.
            ended = self._exit(min(KILL_AGAIN_SECONDS, max(0.0, exit_deadline - time.monotonic())), exit_deadline)
        if not ended:
            self._kill_supervisor(max(0.1, deadline - time.monotonic()))

    def _exit(self, wait_seconds: float, deadline: float) -> bool:
        """Let the shell exit, if no command runs within ``wait_seconds`` seconds; return whether it did."""
        try:
            with self._command_lock.take(wait_seconds):
                if not self._lost:
                    # A terminal has no EOF.
                    self._channel.sendall(self._farewell(), max(0.1, deadline - time.monotonic()))
                    self._channel.shutdown_write()
                    self._channel.exit_status(max(0.1, deadline - time.monotonic()))
        except (EOFError, OSError) as error:
            return not isinstance(error, TimeoutError)
        return True

    def kill_tree(self, cookie: str, timeout: float) -> bool:
        """Kill all processes of the command ``cookie``; return whether that succeeded."""
        return kill_tree(self.transport, self.pid, self._supervisor.word, cookie, timeout)

    def _kill_supervisor(self, timeout: float) -> None:
        # A busy or suspended shell does not notice the end of its streams. On ssh neither does its server end it: sshd
        # closes the streams of a session without a terminal, and sends no signal (RFC 4254, 6.9, leaves that open).
        kill_supervisor(self.transport, self.pid, self._supervisor.word, timeout)

    @contextlib.contextmanager
    def _input_beside(self, command: Command) -> Iterator[tuple[Command, Callable[[], None]]]:
        """Move large input out of the envelope, if another channel can be opened for it.

        Yield the command, and a function that begins its input, to be called when its envelope is sent.
        """
        with contextlib.ExitStack() as feeding:
            begin = _nothing
            try:
                source = command.arriving or Whole(command.stdin)
                path, begin = feeding.enter_context(fed(self.transport, source, SEND_SECONDS))
                command = replace(command, stdin=b"", stdin_pipe=path)
            except (OperationError, EOFError) as error:
                # An envelope can hold input that is there already, but none that is yet to come.
                if command.arriving is not None:
                    raise _no_way_for_input(error) from error
            yield command, begin

    def store_state(self, running: RunningCommand) -> None:
        """Store a command's state, and raise the reason if it did not run.

        :raises ShellStopped: the shell was stopped while it ran.
        :raises NoSuchDirectory: its working directory, or the session's own, cannot be entered.
        :raises ReadOnlyUnavailable: it may only look, and there is no sandbox.
        """
        stdout = running.stdout
        self._keep_state(running.command, stdout)
        if self._stopping.is_set():
            raise ShellStopped("The shell was stopped while the command ran.")
        if stdout.directory_refused:
            directory = visible((running.command.directory or b"").decode(errors="replace"))
            raise NoSuchDirectory(f"cwd: {directory}: the directory cannot be entered.")
        if running.command.sandbox:
            stderr = bytes(running.stderr.output)
            if (unavailable := refusal(running.command.sandbox, stdout.status, stderr)) is not None:
                raise unavailable
        if stdout.directory_lost:
            raise NoSuchDirectory(
                "The session's working directory is gone; the command did not run, and the session is back in "
                f"{self._entered.decode(errors='replace')}."
            )

    def _envelope(self, command: Command, nonce: str, cookie: str) -> bytes:
        envelope = self._envelope_of(command, nonce, cookie)
        if not self._moved and self._state.directory == self._entered:
            return envelope
        anew = self._state.directory == self._entered
        if anew:
            # Where the supervisor stays if it cannot enter the directory.
            self._entered = ROOT
        # Entering a directory sets OLDPWD, which `cd -` needs.
        previous = self._state.variables.get(b"OLDPWD", b"")
        envelope = previous + envelope
        return enter_directory(self._supervisor.dialect, self._state.directory, nonce, envelope, command, anew=anew)

    def _envelope_of(self, command: Command, nonce: str, cookie: str) -> bytes:
        supervisor = self._supervisor
        # Shells load functions from FPATH when they are called.
        if supervisor.pure and not command.has_options and b"FPATH" not in self._state.variables:
            plain = build_plain_envelope(command, nonce, cookie)
            if plain is not None:
                return plain
        return build_envelope(supervisor.dialect, command, nonce, cookie, supervisor.interpreter)

    def _farewell(self) -> bytes:
        tidying = b"rm -rf -- " + b" ".join(map(quote, self._temporary)) + b"\n" if self._temporary else b""
        return tidying + RESUME.text.encode() + b"p=$$;resume;exit 0\n"

    def _discard_late_output(self) -> None:
        """Drop output of earlier commands' background processes, which does not belong to the next command."""
        # Between this and the first byte of the envelope more may come; it then counts as output of the command, which
        # no reader could tell apart.
        for _ in range(MAX_LATE_READS):
            if not any(self._channel.recv(0)):
                return

    def kill_shell(self, cookie: str) -> None:
        """Kill a shell that does not answer, with its child processes, and close its channel."""
        self.kill_tree(cookie, KILL_SHELL_SECONDS)
        self._kill_supervisor(KILL_SHELL_SECONDS)
        self._channel.close()

    def _keep_state(self, command: Command, stdout: MarkedStream) -> None:
        self._moved = False
        if stdout.directory_lost:
            self._state.directory = self._entered
            return
        self._entered = self._state.directory
        if command.keeps_state and stdout.state:
            # The same name may now lead to another directory.
            self._moved = stdout.moved
            interpreted = self._supervisor.interpreter is not None
            self._restore = self._state.update(*stdout.state, from_env=interpreted)


def _nothing() -> None: ...


def _is_locale(name: str) -> bool:
    return name == "LANG" or name.startswith("LC_")


class _Guard:
    """See :meth:`Session.guarded`. A class: each command enters four, and a generator takes five times as long."""

    __slots__ = ("_sent", "_session")

    def __init__(self, session: Session, *, sent: bool) -> None:
        self._session, self._sent = session, sent

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, ConnmgrError | GeneratorExit):
            self._session.end_by(error, sent=self._sent)


class _BrokenInput(Cancellation):
    """Ends with the client of a command, and with input that breaks off."""

    def __init__(self, client: Cancellation, arriving: Input) -> None:
        super().__init__()
        self._client, self._arriving = client, arriving

    @property
    def cancelled(self) -> bool:
        return self._arriving.failed or self._client.cancelled

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        with self._client.waking(wake):
            yield


def _until_input_breaks(command: Command, client: Cancellation) -> Cancellation:
    return client if command.arriving is None else _BrokenInput(client, command.arriving)


def _no_way_for_input(why: OperationError | EOFError) -> ChannelRefused:
    reason = why.message if isinstance(why, OperationError) else "The remote host could not create a named pipe."
    return ChannelRefused(
        f"The command did not run: its input needs a second channel beside the shell's. {reason} Run it without input, "
        f"or with at most {ENVELOPE_INPUT_BYTES >> 10} KiB that are there when it begins."
    )


class _LockWaiter:
    """A thread that waits; it is ``woken`` when the lock is ``granted`` to it, or its work is cancelled."""

    __slots__ = ("granted", "woken")

    def __init__(self) -> None:
        self.granted = False
        self.woken = threading.Event()


class FairLock:
    """Admits one thread at a time in the order of the requests, so that queued commands run in their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_LockWaiter] = deque()
        self._taken = False

    def take(self, timeout: float, cancellation: Cancellation = NEVER) -> FairLock:
        """Acquire the lock for the ``with`` block that follows; raises as :meth:`acquire` does."""
        self.acquire(timeout, cancellation)
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, timeout: float, cancellation: Cancellation = NEVER) -> None:
        """Hold the lock until :meth:`release`.

        :raises TimeoutError: it was not granted within ``timeout`` seconds.
        :raises connmgr.errors.CommandCancelled: the work was cancelled first; the thread left the queue at once.
        """
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            waiter = _LockWaiter()
            self._queue.append(waiter)
        with cancellation.waking(waiter.woken.set):
            waiter.woken.wait(timeout)
        with self._lock:
            # The release may have granted the lock after our time was over and before we took self._lock. Leaving then
            # would keep the lock granted to nobody, and every later command waiting.
            if waiter.granted:
                return
            self._queue.remove(waiter)
        cancellation.require()
        raise TimeoutError

    def release(self) -> None:
        """Pass the lock on to the thread that has waited longest."""
        with self._lock:
            if not self._queue:
                self._taken = False
                return
            # The lock is handed over and never free meanwhile: a thread that comes now cannot overtake the queue.
            waiter = self._queue.popleft()
            waiter.granted = True
        waiter.woken.set()

    @property
    def taken(self) -> bool:
        """Whether a thread holds the lock."""
        return self._taken

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the lock."""
        return len(self._queue)
