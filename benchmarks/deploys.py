"""An Ansible playbook and a pyinfra deploy on five hosts, over connmgr and over their own SSH with its defaults.

Run it with ``python -m benchmarks.deploys [ansible | pyinfra]``. Hosts, daemon and tool share this machine: most of
Ansible's time is spent in the modules on the hosts, which is the same either way.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

from benchmarks.timing import interleaved, print_timings
from tests.ansible import ways as ansible
from tests.fleet import Fleet, running_fleet
from tests.pyinfra import ways as pyinfra
from tests.spawner import PROGRAM

REPEAT = "python -m benchmarks.deploys"
ROUNDS = 3
OVER_SSH = "over ssh"


def main() -> None:
    """Measure whole runs, each on hosts without files of an earlier run."""
    subjects: dict[str, tuple[ModuleType, list[str | Path], str | Path]] = {
        "ansible": (ansible, ["ansible-playbook", "-i"], ansible.SITE),
        "pyinfra": (pyinfra, [pyinfra.PYINFRA, "-y"], pyinfra.DEPLOY),
    }
    goals = {"ansible": "at most 0.7", "pyinfra": "at most 1"}
    for name, (ways, words, what) in subjects.items():
        if name not in (sys.argv[1:] or subjects) and sys.argv[0].endswith("deploys.py"):
            continue
        with ExitStack() as opened:
            scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="cm-")))
            fleet = opened.enter_context(running_fleet(scratch, program=(str(PROGRAM),)))
            inventory = ways.inventories(fleet, scratch, ways.sources(scratch / "sources"))
            calls = {
                shown: _run(fleet, [*words, inventory[way], what], scratch / way)
                for way, shown in {ways.DAEMON: "over connmgr", ways.SSH: OVER_SSH}.items()
            }
            taken = interleaved(calls, calls=1, rounds=ROUNDS)
        title = f"{name}: thirty tasks on five hosts; the goal for connmgr is {goals[name]} of the time"
        print_timings(title, taken, base=OVER_SSH, repeat=REPEAT)


def _run(fleet: Fleet, argv: list[str | Path], root: Path) -> Callable[[], None]:
    def call() -> None:
        shutil.rmtree(root)
        root.mkdir()
        fleet.run(*argv)

    return call


if __name__ == "__main__":
    main()
