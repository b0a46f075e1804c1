"""A client that gives up before its job ends, and another client that finds the job."""

from __future__ import annotations

import os
import time
from pathlib import Path

from connmgr.client import ClientError
from tests.jobs.cycles import CYCLE_SECONDS, Outcome, Plan
from tests.jobs.world import World, new_mark


def gives_up(world: World, connection: str, gate: Path, given_up_after: float) -> Outcome:
    """Run a command longer than its client waits; another client must find the job and its whole result.

    The command waits at the pipe ``gate``, which is created here, until its client has given up.
    """
    lines, name = 20, new_mark()
    os.mkfifo(gate)
    outcome = Outcome(Plan(-1, "client", "", "", lines, 5, given_up_after, None))
    begun = time.monotonic()
    steps = [f"echo {line}" for line in range(lines)]
    command = "\n".join([*steps[:10], f"cat {gate}", *steps[10:], "exit 5"])
    with world.client() as client:
        client.post("/shell/start", connection=connection)
        started = client.post("/job/start", connection=connection, command=command, name=name, keep=3600)["job"]
    answered = _waits(world, started, given_up_after)
    if answered:
        outcome.wrong.append("the job had ended before its client gave up")
    gate.write_bytes(b"")
    with world.client() as client:
        found = client.post("/job/query", name=name)["jobs"]
        if [one["job"] for one in found] != [started]:
            outcome.wrong.append(f"the job is not found again: {found}")
        state = "running"
        while state in ("starting", "running") and time.monotonic() < begun + CYCLE_SECONDS:
            state = client.post("/job/wait", job=started, wait=25)["state"]
        last = client.post("/job/output", job=started)
        client.post("/job/remove", job=started, force=True)
    result = last["state"], last["exitCode"], last["stdout"]["data"]
    if result != ("exited", 5, "".join(f"{line}\n" for line in range(lines))):
        outcome.wrong.append(f"the result is {result}")
    outcome.seconds = time.monotonic() - begun
    return outcome


def _waits(world: World, job: str, seconds: float) -> bool:
    """Wait for the end of a job up to ``seconds``, and return whether it has ended."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        with world.client(timeout=left) as client:
            try:
                answer = client.post("/job/output", job=job, wait=25, until="exit")
            except ClientError as error:
                if error.code != "unreachable":
                    raise
                return False
            if answer["state"] not in ("starting", "running"):
                return True
    return False
