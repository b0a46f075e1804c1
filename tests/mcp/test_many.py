"""One command on many systems: equal results come together, failures stop it, and an answer has a bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import LOCAL_MACHINE
from connmgr.mcp.tools.many import MAX_CHARACTERS
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.mcp.near import Agent, run
from tests.rights import wire
from tests.rights.wire import Holder

COUNT = 6
OVER = "local machine"
SCOPES = ("connection.read", "shell.any", "job")


@pytest.fixture(scope="module")
def farm(daemon: Daemon) -> Iterator[Holder]:
    """Systems ``farm0`` to ``farm5`` with a label each, and a token that sees these alone; ``N`` is their number."""
    connection = daemon.client.connection
    ids = []
    for number in range(COUNT):
        data = {"type": "shellEnvironment", "host": LOCAL_MACHINE, "commands": [f"export N={number}"]}
        ids.append(connection.add(f"farm{number}", data, labels={"row": "even" if number % 2 == 0 else "odd"}))
    yield wire.create(daemon, *SCOPES, connections=["**farm*"])
    daemon.client.post("/connection/remove", connections=ids)


def test_equal_results_are_one_and_of_others_only_the_difference_is_shown(daemon: Daemon, farm: Holder) -> None:
    command = "seq 40; [ $N != 3 ] || echo beside; [ $N != 4 ] || exit 9"

    async def work(agent: Agent) -> None:
        ran = await agent.call("run_on_many", systems=["farm*"], command=command, stopAfter=0)
        assert (ran["state"], ran["counts"], ran["systems"]) == ("failed", {"done": 5, "failed": 1}, COUNT)
        most, *others = ran["groups"]
        assert (most["count"], most["systems"]) == (4, [f"{OVER}/farm{number}" for number in (0, 1, 2, 5)])
        assert most["stdout"].split() == [str(number) for number in range(1, 41)]
        found = {tuple(one["systems"]): (one["exitCode"], one["differs"]) for one in others}
        assert found == {(f"{OVER}/farm3",): (0, "+beside"), (f"{OVER}/farm4",): (9, "")}
        whole = await agent.call("read_run", run=ran["run"], system="farm3", first=100)
        assert whole["groups"][0]["stdout"].endswith("40\nbeside")

    run(daemon, work, holder=farm)


def test_a_failing_canary_spares_the_others(daemon: Daemon, farm: Holder) -> None:
    async def work(agent: Agent) -> None:
        ran = await agent.call("run_on_many", systems=["farm*"], command="echo no; exit 1")
        assert ran["state"] == "failed"
        assert (ran["counts"]["failed"], ran["counts"]["stopped"]) == (1, COUNT - 1)
        where = await agent.call("run_on_many", where="row=odd", argv=["true"], canary=0)
        assert (where["state"], where["counts"]) == ("done", {"done": COUNT // 2})
        assert await agent.refused("run_on_many", where="row=none", command="true") == "unknown_connection"
        assert await agent.refused("run_on_many", systems=["far*", "local"], command="true") == "unknown_connection"
        assert await agent.refused("run_on_many", command="true") == "invalid_arguments"

    run(daemon, work, holder=farm)


def test_much_output_and_many_results_fit_the_answer(daemon: Daemon, farm: Holder) -> None:
    async def work(agent: Agent) -> None:
        # Lines that have nothing in common.
        ran = await agent.call("run_on_many", systems=["farm*"], command='seq -f "$N-%05g" 20000', canary=0)
        assert ran["counts"] == {"done": COUNT}
        assert len(json.dumps(ran["groups"])) <= MAX_CHARACTERS + 1000
        assert len(ran["groups"]) + ran["omittedGroups"] == COUNT
        assert ran["omittedSystems"] == ran["omittedGroups"] > 0
        assert all(one["omitted"] > 10_000 for one in ran["groups"])
        small = await agent.call("read_run", run=ran["run"], maxCharacters=2000)
        assert len(json.dumps(small["groups"])) <= 3000

    run(daemon, work, holder=farm)


def test_a_run_goes_on_when_nobody_waits_and_can_be_stopped(daemon: Daemon, farm: Holder, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def work(agent: Agent) -> None:
        command = f"until [ -e {gate} ]; do sleep 0.1; done"
        ran = await agent.call("run_on_many", systems=["farm*"], command=command, wait=0)
        assert ran["state"] in ("pending", "running")
        assert (await agent.call("stop_run", run=ran["run"]))["state"] in ("stopping", "stopped")
        gate.touch()
        ended = ran
        while ended["state"] not in ("stopped", "done", "failed"):
            ended = await agent.call("read_run", run=ran["run"], wait=45)
        assert ended["state"] == "stopped"
        assert (await agent.call("stop_run", run=ran["run"]))["state"] == "stopped"

    run(daemon, work, holder=farm)


@pytest.fixture
def half_lost(daemon: Daemon) -> Iterator[Holder]:
    """As many systems that nothing answers for as there are on the farm, and a token that sees both."""
    connection = daemon.client.connection
    ids = []
    for number in range(2 * COUNT):
        lost = {"type": "ssh", "host": "127.0.0.1", "port": 1, "user": f"user{number}", "password": "no"}
        here = {"type": "shellEnvironment", "host": LOCAL_MACHINE, "commands": [f"export H={number}"]}
        data = here if number < COUNT else lost
        ids.append(connection.add(f"half{number}", data))
    yield wire.create(daemon, *SCOPES, "fs.read", connections=["**half*"])
    daemon.client.post("/connection/remove", connections=ids)


def test_a_fleet_of_which_half_is_unreachable_gives_one_clear_result(
    daemon: Daemon, half_lost: Holder, tmp_path: Path
) -> None:
    (tmp_path / "site.conf").write_text("one\nlisten 80\n")

    async def work(agent: Agent) -> None:
        ran = await agent.call("run_on_many", systems=["half*"], command="echo here", canary=0, stopAfter=0)
        assert ran["counts"] == {"done": COUNT, "unreachable": COUNT}
        told = sorted((one["state"], one["count"], one["stdout"], one["error"]) for one in ran["groups"])
        assert told[0] == ("done", COUNT, "here", None)
        assert [one[:3] for one in told[1:]] == [("unreachable", COUNT, "")]
        assert told[1][3].startswith("host_refused: ")
        found = await agent.call("search_files", systems=["half*"], path=str(tmp_path), text="listen")
        assert (found["systems"], found["withText"], found["omitted"], found["incomplete"]) == (2 * COUNT, COUNT, 0, [])
        [line] = found["lines"]
        assert (line["path"], line["line"], line["text"], line["count"]) == ("site.conf", 2, "listen 80", COUNT)
        assert [(one["code"], one["count"]) for one in found["failed"]] == [("host_refused", COUNT)]
        assert len(json.dumps([ran, found])) < 2 * MAX_CHARACTERS

    run(daemon, work, holder=half_lost)


def test_files_are_searched_where_the_rules_allow_it(daemon: Daemon, farm: Holder, tmp_path: Path) -> None:
    for name in ("open", "shut"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("".join(f"needle {number}\n" for number in range(900)))
    rules = [{"effect": "allow", "path": f"{tmp_path}/open/**", "action": "fs.read"}]
    reader = wire.create(daemon, "connection.read", "fs.read", connections=["**farm*"], rules=rules)

    async def work(agent: Agent) -> None:
        found = await agent.call(
            "search_files", where="row=odd", path=f"{tmp_path}/open", text="NEEDLE", ignoreCase=True
        )
        assert [one["count"] for one in found["lines"]] == [COUNT // 2] * 50
        assert len(found["incomplete"]) == COUNT // 2
        more = await agent.call("search_files", systems=["farm*"], path=f"{tmp_path}/open", text="needle", most=900)
        assert (len(more["lines"]) + more["omitted"], more["incomplete"]) == (900, [])
        assert len(json.dumps(more["lines"])) <= MAX_CHARACTERS + 2000
        shut = await agent.call("search_files", systems=["farm*"], path=str(tmp_path), text="needle")
        assert (shut["lines"], [(one["code"], one["count"]) for one in shut["failed"]]) == (
            [],
            [("policy_denied", COUNT)],
        )
        one = {"systems": ["farm0"], "path": f"{tmp_path}/shut", "text": "needle"}
        assert await agent.refused("search_files", **one) == "policy_denied"
        assert await agent.refused("search_files", path="/etc", text="x") == "invalid_arguments"
        assert await agent.refused("search_files", systems=["web*"], path="/etc", text="x") == "unknown_connection"

    run(daemon, work, holder=reader)


def test_a_search_on_several_systems_names_the_approvals_that_it_waits_for(
    daemon: Daemon, farm: Holder, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("needle\n")
    rules = [{"effect": "ask", "path": "/**", "action": "fs.read"}]
    reader = wire.create(daemon, "connection.read", "fs.read", connections=["**farm[12]"], rules=rules)

    async def work(agent: Agent) -> None:
        wanted = {"systems": ["farm*"], "path": str(tmp_path / "file"), "text": "needle"}
        [waits] = (await agent.call("search_files", **wanted))["failed"]
        assert (waits["code"], waits["systems"]) == ("approval_required", [f"{OVER}/farm1", f"{OVER}/farm2"])
        asked = {one["approval"]: one["asked"]["names"] for one in daemon.client.approval.query(["pending"])}
        assert [asked[one] for one in waits["approvals"]] == [[f"{OVER}/farm1"], [f"{OVER}/farm2"]]
        for one in waits["approvals"]:
            assert (await agent.call("show_approval", approval=one))["state"] == "asked"
            daemon.client.approval.decide(one, "once")
        assert (await agent.call("search_files", **wanted))["withText"] == 2

    run(daemon, work, holder=reader)


def test_systems_are_found_by_names_labels_and_facts(daemon: Daemon, farm: Holder) -> None:
    ids = daemon.client.connection.choose("farm[12]")
    gathered = daemon.client.fact.gather([one.id for one in ids], parts=["system"], timeout=DEADLINE_SECONDS)
    assert [one.error for one in gathered] == [None, None]

    async def work(agent: Agent) -> None:
        found = await agent.call("find", text="FARM arch= row=odd")
        [only] = found["systems"]
        assert only["name"] == f"{OVER}/farm1"
        assert "row=odd" in only["matches"]
        assert (found["withoutFacts"], only["gathered"] is not None) == (COUNT - 2, True)
        assert (await agent.call("find", text="no-such-package"))["systems"] == []

    run(daemon, work, holder=farm)
