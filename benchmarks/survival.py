"""Jobs during failures of client, daemon and link: output is complete, results are right, and nothing is left behind.

Run it with ``python -m benchmarks.survival --cycles 300``. The server is a temporary sshd on loopback behind a relay;
if the machine allows it, jobs also run as root by sudo.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.timing import print_table
from tests.jobs.cycles import Cycle, Outcome, plans
from tests.jobs.gives_up import gives_up
from tests.jobs.world import LOCAL, SSH, dialects, world

REPEAT = "python -m benchmarks.survival"
CYCLES = 20
SEED = 1
CLIENT_SECONDS = 4.0


def main(arguments: Sequence[str] = ()) -> None:
    """Run cycles, and exit with 1 if one fails."""
    parser = argparse.ArgumentParser(prog=REPEAT)
    parser.add_argument("--cycles", type=int, default=CYCLES, help="number of jobs")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of faults, moments and output")
    parser.add_argument("--scale", type=float, default=1.0, help="15: a client that gives up after 60 seconds")
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    with world() as there, tempfile.TemporaryDirectory() as gates:
        outcomes = []
        for plan in plans(there, dialects(), given.cycles, given.seed):
            outcomes.append(Cycle(there, plan).run())
            for wrong in outcomes[-1].wrong:
                print(f"  {plan}: {wrong}", flush=True)
        # The user of the SSH server may be another one.
        Path(gates).chmod(0o711)
        long = [
            gives_up(there, there.connection(place, "bash"), Path(gates) / place, given.scale * CLIENT_SECONDS)
            for place in (LOCAL, SSH)
        ]
    print_outcomes(outcomes, long, f"{REPEAT} --cycles {given.cycles} --seed {given.seed} --scale {given.scale:g}")
    failed = sum(bool(outcome.wrong) for outcome in [*outcomes, *long])
    print(f"  {time.monotonic() - begun:.0f} s; {failed} failed")
    if failed:
        sys.exit(1)


def print_outcomes(outcomes: Sequence[Outcome], long: Sequence[Outcome], repeat: str) -> None:
    """Print cycles, refusals and failed cycles for each kind of failure."""
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_fault[outcome.plan.fault].append(outcome)
    rows = [_row(fault, those) for fault, those in by_fault.items()]
    rows += [_row("all", outcomes)] if outcomes else []
    rows += [_row("a client that gives up", long)]
    heads = ("what broke", "cycles", "killed", "refusals met", "median s", "longest s", "failed")
    print_table("Jobs while something breaks", heads, rows, repeat=repeat)
    for title, name in (("places", "place"), ("shells", "dialect")):
        counted = Counter(getattr(outcome.plan, name) for outcome in outcomes)
        print(f"  {title}: {', '.join(f'{key} {count}' for key, count in sorted(counted.items()))}")
    refusals = sum((outcome.refusals for outcome in outcomes), Counter())
    print(f"  refusals: {', '.join(f'{code} {count}' for code, count in refusals.most_common()) or 'none'}")
    for outcome in long:
        for wrong in outcome.wrong:
            print(f"  a client that gives up: {wrong}")


def _row(name: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    seconds = [outcome.seconds for outcome in outcomes]
    return (
        name,
        str(len(outcomes)),
        str(sum(outcome.plan.kill_at is not None for outcome in outcomes)),
        str(sum(outcome.refusals.total() for outcome in outcomes)),
        f"{median(seconds):.2f}",
        f"{max(seconds):.2f}",
        str(sum(bool(outcome.wrong) for outcome in outcomes)),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
