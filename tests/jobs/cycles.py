"""Cycles: a job is started, read by offsets and perhaps killed while something between breaks."""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from connmgr.client import ClientError
from tests.jobs.world import World, marked, new_mark

CYCLE_SECONDS = 120.0
"""Longest cycle."""

POLL_SECONDS = 5
AGAIN_SECONDS = 0.05

PASSING = {
    "auth_failed",
    "channel_refused",
    "connect_timeout",
    "host_refused",
    "host_unreachable",
    "invalid_credential",
    "no_shell",
    "shell_busy",
    "shell_lost",
    "shell_start_failed",
    "stopping",
    "transfer_failed",
    "unreachable",
}
"""Codes of temporary refusals while something is broken; a login that breaks off may look refused."""


@dataclass(frozen=True)
class Plan:
    """A cycle; ``break_at`` and ``kill_at`` are seconds after the first request to start."""

    number: int
    fault: str
    place: str
    dialect: str
    lines: int
    exit_code: int
    break_at: float
    kill_at: float | None


@dataclass
class Outcome:
    """The outcome of a plan: faults, and the refusals met by code."""

    plan: Plan
    wrong: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class FailedError(Exception):
    """A cycle cannot go on."""


def plans(world: World, dialects: list[str], cycles: int, seed: int) -> list[Plan]:
    """Return ``cycles`` plans, each fault in turn and every third with a kill; equal arguments give equal plans."""
    chance = random.Random(seed)
    faults = list(world.faults)
    found = []
    for number in range(cycles):
        fault = faults[number % len(faults)]
        lines = chance.randrange(10, 40)
        seconds = lines * 0.05
        found.append(
            Plan(
                number=number,
                fault=fault,
                place=chance.choice([place for place in world.places if fault in world.faults_at(place)]),
                dialect=dialects[(number // len(faults)) % len(dialects)],
                lines=lines,
                exit_code=chance.randrange(0, 120),
                # About half of them while the job starts, or just afterwards.
                break_at=chance.uniform(0, chance.choice([0.4, seconds])),
                # Shifted so that each fault meets killed jobs: six and three have a common divisor.
                kill_at=chance.uniform(0, seconds) if (number + number // len(faults)) % 3 == 2 else None,
            )
        )
    return found


def text_of(plan: Plan, mark: str) -> tuple[str, bytes, bytes]:
    """Return a plan's command, which all dialects understand, and its output on both streams."""
    chance = random.Random(plan.number)
    out = [f"out {line} {chance.randbytes(chance.randrange(1, 60)).hex()}" for line in range(plan.lines)]
    err = [f"err {line} {chance.randbytes(chance.randrange(1, 60)).hex()}" for line in range(plan.lines)]
    steps = [f"echo {one}; echo {two} >&2; sleep 0.03" for one, two in zip(out, err, strict=True)]
    if plan.kill_at is not None:
        lingering = f"setsid sh -c 'while sleep 1; do :; done' {mark} >/dev/null 2>&1 &"
        steps = [lingering, *steps, f"sh -c 'sleep 600; :' {mark}"]
    steps.append(f"exit {plan.exit_code}")
    return "\n".join(steps), *("".join(f"{line}\n" for line in lines).encode() for lines in (out, err))


class Cycle:
    """One run of a plan."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._mark = new_mark()
        self._outcome = Outcome(plan)
        self._client = world.client()
        self._connection = world.connection(plan.place, plan.dialect)
        self._begun = time.monotonic()
        self._kept = [bytearray(), bytearray()]

    def run(self) -> Outcome:
        """Run the cycle, and return its outcome."""
        with ThreadPoolExecutor(1) as pool, closing(self._client):
            breaking = pool.submit(self._break)
            try:
                self._check()
            except (FailedError, ClientError) as error:
                self._outcome.wrong.append(str(error))
            breaking.result(CYCLE_SECONDS)
        self._outcome.seconds = time.monotonic() - self._begun
        return self._outcome

    def _check(self) -> None:
        command, *expected = text_of(self._plan, self._mark)
        job = self._started(self._connection, command)
        last = self._read(job)
        killed = self._plan.kill_at is not None
        right = ("killed", None) if killed else ("exited", self._plan.exit_code)
        if (last["state"], None if killed else last["exitCode"]) != right:
            self._outcome.wrong.append(f"it is {last['state']} with {last['exitCode']} in place of {right}")
        for name, got, whole in zip(("stdout", "stderr"), map(bytes, self._kept), expected, strict=True):
            if not (_is_beginning(got, whole) if killed else digest(whole) == digest(got)):
                self._outcome.wrong.append(f"{name} differs: {len(got)} of {len(whole)} bytes, {got[-80:]!r}")
        self._check_remains(job)
        self._remove(job)

    def _check_remains(self, job: str) -> None:
        named = self._asked("/job/query", name=self._mark)["jobs"]
        if [one["job"] for one in named] != [job]:
            self._outcome.wrong.append(f"one start has made the jobs {named}")
        marks = (self._mark, job.replace("-", ""))
        while left := marked(*marks):
            if self._over:
                self._outcome.wrong.append(f"processes are left: {left}")
                return
            time.sleep(AGAIN_SECONDS)

    def _started(self, connection: str, command: str) -> str:
        options = {"connection": connection, "command": command, "key": self._mark, "name": self._mark, "keep": 3600}
        return str(self._asked("/job/start", before=lambda: self._open(connection), **options)["job"])

    def _open(self, connection: str) -> None:
        self._client.post("/shell/start", connection=connection)

    def _read(self, job: str) -> Any:
        """Read to the end of both streams, and kill the job when its time has come."""
        kill_at = self._plan.kill_at
        while True:
            if kill_at is not None and time.monotonic() >= self._begun + kill_at:
                kill_at = None
                self._kill(job)
            wait = POLL_SECONDS if kill_at is None else min(POLL_SECONDS, self._begun + kill_at - time.monotonic())
            offsets = {name: len(kept) for name, kept in zip(("stdout", "stderr"), self._kept, strict=True)}
            answer = self._asked("/job/output", job=job, wait=max(0.0, wait), encoding="base64", **offsets)
            for name, kept in zip(("stdout", "stderr"), self._kept, strict=True):
                kept += base64.b64decode(answer[name]["data"])
                if answer[name]["next"] != len(kept):
                    raise FailedError(f"{name}: {len(kept)} bytes read, and the next is {answer[name]['next']}")
            if answer["stdout"]["eof"] and answer["stderr"]["eof"] and answer["state"] not in ("starting", "running"):
                return answer
            if answer["state"] == "lost":
                raise FailedError(f"the job is lost after {len(self._kept[0])} bytes")

    def _kill(self, job: str) -> None:
        signal, grace = random.Random(self._plan.number).choice([("KILL", 0), ("TERM", 1), ("HUP", 0.2)])
        try:
            self._asked("/job/kill", job=job, signal=signal, grace=grace)
        except ClientError as error:
            if error.code != "job_finished":
                raise

    def _remove(self, job: str) -> None:
        try:
            self._asked("/job/remove", job=job)
        except ClientError as error:
            if error.code != "unknown_job" or not self._outcome.refusals:
                raise

    def _asked(self, path: str, before: Callable[[], None] | None = None, **fields: Any) -> Any:
        """Repeat a request until it is answered; ``before`` is called before each attempt."""
        while True:
            try:
                if before is not None:
                    before()
                return self._client.post(path, **fields)
            except ClientError as error:
                if error.code not in PASSING:
                    if error.code in ("job_finished", "unknown_job"):
                        # An earlier request, whose answer was lost, may have succeeded.
                        raise
                    raise FailedError(f"{path}: {error.code}: {error}") from error
                self._outcome.refusals[error.code] += 1
            if self._over:
                raise FailedError(f"{path}: nothing but {dict(self._outcome.refusals)}")
            time.sleep(AGAIN_SECONDS)

    @property
    def _over(self) -> bool:
        return time.monotonic() > self._begun + CYCLE_SECONDS

    def _break(self) -> None:
        time.sleep(max(0.0, self._begun + self._plan.break_at - time.monotonic()))
        self._world.faults[self._plan.fault]()


def _is_beginning(got: bytes, whole: bytes) -> bool:
    """Whether ``whole`` begins with ``got``, apart from a shell's message about its end."""
    lines = got.splitlines(keepends=True)
    while lines and not lines[-1].startswith((b"out ", b"err ")):
        lines.pop()
    return whole.startswith(b"".join(lines))


def digest(data: bytes) -> str:
    """Return the SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()
