"""An Ansible playbook and a pyinfra deploy on five hosts, over connmgr and over their own SSH with its defaults.

Ansible also runs with its own ssh plugin over the daemon's control sockets, where it needs no plugin of connmgr.

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
            if name == "ansible":
                root = scratch / "sockets"
                text = inventory[ways.SSH].read_text().replace(f"root={scratch / ways.SSH}", f"root={root}")
                sockets = scratch / "sockets.ini"
                sockets.write_text(text.replace(fleet.ssh_options, f"-F {_hosts(fleet, scratch)}"))
                # Without it Ansible gives ssh a ControlPath of its own.
                own = {"ANSIBLE_SSH_ARGS": ""}
                root.mkdir()
                calls["its ssh plugin over control sockets"] = _run(fleet, [*words, sockets, what], root, own)
            taken = interleaved(calls, calls=1, rounds=ROUNDS)
        title = f"{name}: thirty tasks on five hosts; the goal for connmgr is {goals[name]} of the time"
        print_timings(title, taken, base=OVER_SSH, repeat=REPEAT)


def _hosts(fleet: Fleet, directory: Path) -> Path:
    """Return the file by which ssh finds the control sockets of the fleet, by its addresses."""
    wanted = list(fleet.connections.values())
    sockets = fleet.daemon.client.post("/multiplex/open", connections=wanted)["sockets"]
    paths = {one["connection"]: one["path"] for one in sockets}
    hosts = [
        f"Host {address}\n    ControlPath {paths[fleet.connections[name]]}\n"
        for name, address in fleet.addresses.items()
    ]
    config = directory / "hosts"
    config.write_text("".join(hosts))
    return config


def _run(
    fleet: Fleet, argv: list[str | Path], root: Path, environment: dict[str, str] | None = None
) -> Callable[[], None]:
    def call() -> None:
        shutil.rmtree(root)
        root.mkdir()
        fleet.run(*argv, environment=environment)

    return call


if __name__ == "__main__":
    main()
