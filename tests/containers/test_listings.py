"""Listings of runtimes that no test can run, each imitated by a function."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connmgr.errors import RuntimeUnreachable
from connmgr.plugin import Child, ValidationError
from connmgr.testing import MemoryTransport, Process
from connmgr_containers import Incus, IncusHost, Lxd, LxdHost, NspawnHost
from tests.containers.host import ON
from tests.deadlines import DEADLINE_SECONDS

INSTANCES = [{"name": "web", "status": "Running"}, {"name": "db", "status": "Stopped"}]


def listed(kind: IncusHost | NspawnHost, answers: dict[str, str], **data: Any) -> tuple[list[Child], list[list[str]]]:
    """Return the containers found if programs give ``answers``, by their last word, and the argvs that were run."""

    def answer(process: Process) -> int:
        process.write(answers[process.argv[-1]].encode())
        return 0

    machine = MemoryTransport({"env": answer, "machinectl": answer})
    try:
        loaded = kind.schema().load({"host": ON, **data})
        found = list(kind.children(machine, loaded, timeout=DEADLINE_SECONDS))
    finally:
        machine.close()
    return found, [argv for argv in machine.started if argv[0] != "/bin/sh"]


@pytest.mark.parametrize(("kind", "program"), [(IncusHost(), "incus"), (LxdHost(), "lxc")])
def test_instances_of_a_project(kind: IncusHost, program: str) -> None:
    found, asked = listed(kind, {"--format=json": json.dumps(INSTANCES)}, project="shop")
    assert asked == [["env", program, "--project=shop", "list", "--format=json"]]
    assert found == [
        Child("web", kind.inner.name, {"containerName": "web", "project": "shop"}, True),
        Child("db", kind.inner.name, {"containerName": "db", "project": "shop"}, False),
    ]


@pytest.mark.parametrize("kind", [Incus(), Lxd()])
def test_an_instance_is_of_the_host_that_it_runs_over(kind: Incus) -> None:
    with pytest.raises(ValidationError, match="a colon names a remote"):
        kind.schema().load({"host": ON, "containerName": "production:web"})


def test_machines_that_run_and_images_that_do_not() -> None:
    answers = {
        "list": "web container systemd-nspawn debian 12 -\n",
        "list-images": "db directory no 1.2G - -\nweb directory no 1G - -\n",
    }
    found, _ = listed(NspawnHost(), answers)
    assert [(one.name, one.running) for one in found] == [("db", False), ("web", True)]


@pytest.mark.parametrize("listing", ["", "{", '{"name": 1}', '[{"title": "web"}]', "[1]"])
def test_a_listing_that_cannot_be_read_is_said_so(listing: str) -> None:
    with pytest.raises(RuntimeUnreachable, match="incus printed a list of an unknown format"):
        listed(IncusHost(), {"--format=json": listing})


def test_an_instance_is_entered_in_its_project() -> None:
    data = Incus().schema().load({"host": ON, "containerName": "web", "project": "shop"})
    expected = ["env", "incus", "--project=shop", "exec", "--force-noninteractive", "web", "--", "true"]
    assert Incus().wrap(["true"], data, "", pty=False) == expected
