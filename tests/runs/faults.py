"""Runs of two daemons on one PostgreSQL while something breaks; the remote side counts what has run.

The clock of one of the daemons is 30 seconds ahead.

Each cycle begins a run, breaks something at a random moment, puts it right and looks at what was promised: every
target's command ran at most once; as a job with a key exactly once, where its machine could be reached; the run ended;
and what the vault calls done has run.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from connmgr.client import Client, ClientError
from connmgr.contract.run import RunInfo
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.relay import Relay
from tests.vault.postgres import Postgres

HOSTS = 16
PARALLEL = 4
LEASE_SECONDS = 2.0
ENDED = ("done", "failed", "stopped")

AHEAD = """
import datetime, time
SECONDS, plain, read = 30, datetime.datetime, time.time

class Kind(type):
    def __instancecheck__(self, value):
        return isinstance(value, plain)
    def __subclasscheck__(self, kind):
        return issubclass(kind, plain)

class Ahead(plain, metaclass=Kind):
    def __new__(cls, *arguments, **named):
        return plain(*arguments, **named)
    @classmethod
    def now(cls, tz=None):
        return plain.now(tz) + datetime.timedelta(seconds=SECONDS)

datetime.datetime = Ahead
time.time = lambda: read() + SECONDS
"""
"""Puts the wall clock of a Python program ahead; a monotonic one stays as it is."""

KILLED, STATEMENT, FROZEN, RESTARTED, AWAY, COPY, LINKS = FAULTS = (
    "a daemon is killed",
    "a daemon is killed within a statement",
    "a daemon is frozen beyond its lease",
    "PostgreSQL is restarted",
    "PostgreSQL is away",
    "PostgreSQL fails over to a copy",
    "links are cut",
)


@dataclass
class FaultOutcome:
    """What became of one cycle; ``wrong`` says which promises were broken."""

    number: int
    fault: str
    as_job: bool
    seconds: float = 0.0
    states: Mapping[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class FaultWorld:
    """Two daemons, their database, and machines behind a relay; ``away`` is how long the database is gone."""

    def __init__(self, seed: int, *, away: float = 3.0) -> None:
        self._rng, self._away = random.Random(seed), away
        self._stack = ExitStack()
        self._daemons: list[Daemon] = []

    def __enter__(self) -> FaultWorld:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons:
            daemon.stop()
        self._stack.close()

    def _open(self) -> None:
        home = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        self._home, self._far = home, home / "far"
        self._far.mkdir()
        self._ahead = home / "ahead"
        self._ahead.mkdir()
        (self._ahead / "sitecustomize.py").write_text(AHEAD)
        self._postgres = Postgres()
        self._stack.callback(self._postgres.stop)
        sshd = self._stack.enter_context(ssh_server(self._far))
        self._relay = Relay(sshd.port)
        self._stack.callback(self._relay.close)
        self._environment = {
            "CONNMGR_DATABASE_URL": self._postgres.dsn(self._postgres.create()),
            "CONNMGR_RUN_LEASE": str(LEASE_SECONDS),
        }
        self._daemons.append(self._started("one"))
        data = home / "two" / "data" / "connmgr"
        data.mkdir(mode=0o700, parents=True)
        (data / "vault.key").touch(0o600)
        (data / "vault.key").write_bytes((self._daemons[0].data_dir / "vault.key").read_bytes())
        self._daemons.append(self._started("two"))
        given = {**ssh_fields(sshd, sshd.user), "port": self._relay.port, "keepAlive": 1}
        add = self._daemons[0].client.connection.add
        self._ids = []
        for number in range(HOSTS):
            # Each with a link of its own, so that a cut one is one among several.
            host = add(f"host{number}", {"type": "ssh", **given, "connectTimeout": 20 + number})
            inside = {"type": "shellEnvironment", "host": host, "commands": [f"export N={number}"]}
            self._ids.append(add(f"far{number}", inside))

    def _started(self, name: str) -> Daemon:
        environment = {**self._environment, "CONNMGR_DAEMON_NAME": name}
        if name == "two":
            environment["PYTHONPATH"] = str(self._ahead)
        return Daemon(self._home / name, environment=environment)

    def cycles(self, count: int) -> Iterator[FaultOutcome]:
        """Run ``count`` cycles; each fault comes equally often, in a random order."""
        faults = [FAULTS[number % len(FAULTS)] for number in range(count)]
        self._rng.shuffle(faults)
        for number, fault in enumerate(faults):
            yield self.cycle(number, fault, as_job=self._rng.random() < 0.3)

    def cycle(self, number: int, fault: str, *, as_job: bool) -> FaultOutcome:
        """Run a command everywhere while ``fault`` happens, and return what was wrong."""
        outcome, begun = FaultOutcome(number, fault, as_job), time.monotonic()
        name = f"cycle{number}"
        command = f"echo $N >> {self._far / name}; sleep 0.{self._rng.randrange(5, 30):02}"
        manner = {"as_": "job"} if as_job else {}
        started = self._client(0).runs.start(connections=self._ids, command=command, parallel=PARALLEL, **manner)
        assert started.run is not None
        try:
            goal = self._rng.randrange(HOSTS - 2)
            # Fewer begin, and the run ends, where the links were cut at the end of the cycle before: what is sent into
            # one that is not known to be dead yet has an unknown outcome.
            eventually(lambda: len(self._ran(name)) >= goal or self._is_over(started.run), "too few begin")
            time.sleep(self._rng.random() * 0.1)
            self._break(fault)
            info = self._ended(started.run)
            outcome.states = {state: count for state, count in info.counts.items() if count}
            outcome.wrong = self._wrong(started.run, name, as_job=as_job, fault=fault)
        except AssertionError as error:
            outcome.wrong.append(str(error).splitlines()[0])
        finally:
            self._mend()
        outcome.seconds = time.monotonic() - begun
        return outcome

    def _client(self, number: int) -> Client:
        return self._daemons[number].client

    def _ran(self, name: str) -> list[str]:
        path = self._far / name
        return path.read_text().split() if path.exists() else []

    def _is_over(self, run: str) -> bool:
        return self._client(0).runs.info(run).state in ENDED

    def _ended(self, run: str) -> RunInfo:
        def info() -> RunInfo:
            last: ClientError | None = None
            for number in range(len(self._daemons)):
                try:
                    return self._client(number).runs.info(run)
                except ClientError as error:
                    last = error
            assert last is not None
            raise last

        return eventually(info, "the run sticks", holds=lambda info: info.state in ENDED, ignoring=ClientError)

    def _wrong(self, run: str, name: str, *, as_job: bool, fault: str) -> list[str]:
        self._mend()
        ran, wrong = Counter(self._ran(name)), []
        targets = {one.connection: one for one in self._client(0).runs.targets(run)}
        for number, id in enumerate(self._ids):
            times, state = ran[str(number)], targets[id].state
            if times > 1:
                wrong.append(f"target {number} ran {times} times and is {state}")
            if state == "done" and times != 1:
                wrong.append(f"target {number} is done and ran {times} times")
            # A job whose machine cannot be reached has not begun; all others have, whatever daemon went.
            if as_job and fault != LINKS and (state, times) != ("done", 1):
                wrong.append(f"target {number} is a job, ran {times} times and is {state}: {targets[id].error}")
            if state == "stopped":
                wrong.append(f"target {number} is stopped in a run that nobody has stopped: {targets[id].error}")
            if state in ("waiting", "starting"):
                wrong.append(f"target {number} is {state} in a run that has ended")
        return wrong

    def _break(self, fault: str) -> None:
        breaks: dict[str, Callable[[], object]] = {
            KILLED: self._chosen().kill,
            STATEMENT: self._kill_within_a_statement,
            FROZEN: self._freeze,
            RESTARTED: lambda: self._restart(self._rng.choice((signal.SIGINT, signal.SIGQUIT)), 0.0),
            AWAY: lambda: self._restart(signal.SIGQUIT, self._away),
            COPY: self._fail_over,
            LINKS: self._relay.reset,
        }
        breaks[fault]()

    def _chosen(self) -> Daemon:
        return self._rng.choice(self._daemons)

    def _kill_within_a_statement(self) -> None:
        """Let statements of a daemon wait for a lock that is held here, and kill it while one does.

        Nothing may be written to the table for as long as all targets run; then it is killed beside the lock.
        """
        table = self._rng.choice(("run", "run_batch", "run_target", "daemon"))
        dsn = self._environment["CONNMGR_DATABASE_URL"]
        with psycopg.connect(dsn) as holder:
            holder.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            with psycopg.connect(dsn, autocommit=True) as looker, suppress(AssertionError):
                eventually(
                    lambda: looker.execute(waiting).fetchone(),
                    "no statement waits",
                    holds=lambda row: row and row[0] > 0,
                    seconds=5 * LEASE_SECONDS,
                )
            self._chosen().kill()

    def _freeze(self) -> None:
        pid = self._chosen().pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(LEASE_SECONDS * 1.5 + self._rng.random())
        os.kill(pid, signal.SIGCONT)

    def _restart(self, how: signal.Signals, seconds: float) -> None:
        self._postgres.halt(how)
        time.sleep(seconds)
        self._postgres.start()

    def _fail_over(self) -> None:
        """Stop the server, and let a copy of its files answer in its place: a standby with all that was committed."""
        self._postgres.halt(signal.SIGQUIT)
        copy = self._postgres.data.with_name("copy")
        shutil.copytree(self._postgres.data, copy, symlinks=True)
        owner = self._postgres.data.stat()
        for path in (copy, *copy.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        shutil.rmtree(self._postgres.data)
        copy.rename(self._postgres.data)
        self._postgres.data.chmod(0o700)
        (self._postgres.data / "postmaster.pid").unlink(missing_ok=True)
        self._postgres.start()

    def _mend(self) -> None:
        """Start again what does not run."""
        self._daemons = [one if one.running else self._started(one.home.name) for one in self._daemons]
