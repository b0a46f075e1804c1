"""Runs on one daemon: what becomes of targets, waves and the run, and who may see and change it."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import LOCAL_MACHINE, Client, ClientError
from connmgr.contract.run import Script
from connmgr.engine.envelope import UNCOUNTED_BYTES
from tests.conftest import StartDaemon
from tests.deadlines import eventually, eventually_equal, given_time
from tests.hasty import hasty
from tests.runs.conftest import HOSTS, Hosts


def test_a_run_is_done_when_all_its_targets_are(hosts: Hosts) -> None:
    info = hosts.run("echo $N; echo oops >&2", name="first")
    assert (info.state, info.reason, info.targets) == ("done", None, HOSTS)
    assert {state: count for state, count in info.counts.items() if count} == {"done": HOSTS}
    found = hosts.targets(info.run)
    assert [one.connection for one in found] == hosts.ids
    assert [(one.stdout, one.stderr, one.exit_code) for one in found] == [(str(n), "oops", 0) for n in range(HOSTS)]
    assert hosts.client.runs.query(name="first")[0].run == info.run


def test_targets_come_in_pages(hosts: Hosts) -> None:
    info = hosts.run("true")
    page = hosts.client.post("/run/targets", run=info.run, offset=5, limit=3)
    assert ([one["connection"] for one in page["targets"]], page["total"]) == (hosts.ids[5:8], HOSTS)


def test_the_states_of_all_targets_are_told_in_a_digit_each(hosts: Hosts) -> None:
    run = hosts.run("test $N -ne 3", parallel=1, stop_after=1).run
    info = hosts.client.post("/run/info", run=run, cells=True)
    states = [list(info["counts"])[int(digit)] for digit in info["cells"]]
    assert states == 3 * ["done"] + ["failed"] + (HOSTS - 4) * ["stopped"]
    assert "cells" not in hosts.client.post("/run/info", run=run)


def test_equal_outputs_are_told_together(hosts: Hosts) -> None:
    info = hosts.run("test $N -lt 10 && echo same || exit 4")
    groups = hosts.client.runs.output(info.run)
    assert [(len(one.connections), one.state, one.exit_code, one.stdout) for one in groups] == [
        (10, "done", 0, "same"),
        (2, "failed", 4, ""),
    ]
    page = hosts.client.post("/run/output", run=info.run, limit=1)
    assert (len(page["groups"]), len(page["groups"][0]["connections"]), page["total"]) == (1, 10, 2)
    [one] = hosts.client.runs.output(info.run, hosts.ids[3])
    assert (one.connections, one.stdout) == ([hosts.ids[3]], "same")


def test_without_a_limit_a_run_goes_on_to_its_last_target_and_has_failed(hosts: Hosts) -> None:
    info = hosts.run("test $N -ne 3", parallel=1)
    assert (info.state, info.reason) == ("failed", f"1 of {HOSTS} targets failed.")
    assert info.counts["done"] == HOSTS - 1


def test_a_run_stops_after_so_many_failures(hosts: Hosts) -> None:
    info = hosts.run(f"{hosts.noting('stopped')}; test $N -lt 2", parallel=1, stop_after="25%")
    assert (info.state, info.stop_after, info.counts["failed"]) == ("failed", 3, 3)
    assert info.counts["stopped"] == HOSTS - 5
    assert hosts.begun("stopped") == ["0", "1", "2", "3", "4"]


def test_failures_below_the_limit_are_a_run_that_is_done(hosts: Hosts) -> None:
    info = hosts.run("test $N -ne 3", stop_after=2)
    assert (info.state, info.counts["failed"]) == ("done", 1)


def test_a_wave_begins_when_the_one_before_has_ended(hosts: Hosts) -> None:
    info = hosts.run(hosts.noting("waves"), waves=[1, "50%", "100%"])
    assert info.waves == [1, 5, 6]
    order = hosts.begun("waves")
    assert order[0] == "0"
    assert set(order[1:6]) == {"1", "2", "3", "4", "5"}
    assert [one.wave for one in hosts.targets(info.run)] == [1] + 5 * [2] + 6 * [3]


def test_a_failed_canary_stops_the_run(hosts: Hosts) -> None:
    info = hosts.run(f"{hosts.noting('canary')}; false", waves=[1, "100%"], stop_after=1)
    assert (info.state, hosts.begun("canary")) == ("failed", ["0"])


def test_a_wave_waits_for_approval(hosts: Hosts) -> None:
    run = hosts.start(hosts.noting("approved"), waves=[2], wave_approval=True)
    info = hosts.until(run, "waiting")
    assert info.reason == "Wave 1 of 2 has ended; the next one begins when somebody resumes the run."
    assert sorted(hosts.begun("approved")) == ["0", "1"]
    hosts.client.runs.resume(run)
    assert hosts.ended(run).state == "done"
    assert len(hosts.begun("approved")) == HOSTS


def test_a_pause_between_waves_ends_by_itself(hosts: Hosts) -> None:
    info = hosts.run("true", waves=[2], wave_pause=0.3)
    assert info.state == "done"


def test_a_machine_that_cannot_be_reached_is_unreachable_and_not_failed(hosts: Hosts) -> None:
    info = hosts.run("true", connections=[*hosts.ids[:2], hosts.away], stop_after=1)
    assert (info.state, info.counts["unreachable"], info.counts["failed"]) == ("done", 1, 0)
    [one] = hosts.targets(info.run, "unreachable")
    assert one.error is not None
    assert (one.error["code"], one.exit_code) == ("host_refused", None)


def test_failures_are_tried_again(hosts: Hosts) -> None:
    marks = hosts.far / "tried"
    marks.mkdir()
    command = f"test $N -gt 1 || {{ echo x >> {marks}/$N; test $(wc -l < {marks}/$N) -gt 2; }}"
    info = hosts.run(command, retries=2, retry_delay=0)
    assert info.state == "done"
    assert [one.tries for one in hosts.targets(info.run)] == [3, 3] + (HOSTS - 2) * [1]


def test_a_command_that_takes_too_long_has_failed(hosts: Hosts) -> None:
    [one] = given_time(
        lambda seconds: hosts.targets(hosts.run("echo begun; sleep 60", 1, timeout=seconds).run),
        lambda targets: targets[0].stdout,
    )
    assert one.error is not None
    assert (one.state, one.error["code"], one.stdout) == ("failed", "command_timeout", "begun")


def test_a_run_that_takes_too_long_is_stopped(hosts: Hosts) -> None:
    info = given_time(
        lambda seconds: hosts.run("sleep 60", 3, parallel=1, run_timeout=seconds), lambda info: info.counts["failed"]
    )
    assert (info.state, info.reason) == ("failed", "The run took longer than its runTimeout.")
    assert (info.counts["failed"], info.counts["stopped"]) == (1, 2)


def test_a_paused_run_begins_nothing_until_it_is_resumed(hosts: Hosts) -> None:
    gate = hosts.far / "gate"
    run = hosts.start(f"{hosts.noting('paused')}; while ! test -e {gate}; do sleep 0.05; done", 4, parallel=2)
    eventually(lambda: len(hosts.begun("paused")), "two never begin", holds=lambda count: count == 2)
    hosts.client.runs.pause(run)
    gate.touch()
    eventually(lambda: hosts.client.runs.info(run).counts["done"], "they never end", holds=lambda count: count == 2)
    assert (hosts.client.runs.info(run).state, len(hosts.begun("paused"))) == ("paused", 2)
    hosts.client.runs.resume(run)
    assert (hosts.ended(run).state, len(hosts.begun("paused"))) == ("done", 4)


def test_a_stopped_run_lets_end_or_kills_what_runs(hosts: Hosts) -> None:
    run = hosts.start(f"{hosts.noting('killed')}; sleep 60", 4, parallel=2)
    eventually(lambda: len(hosts.begun("killed")), "two never begin", holds=lambda count: count == 2)
    hosts.client.runs.stop(run)
    assert hosts.client.runs.info(run).state == "stopping"
    hosts.client.runs.stop(run, kill=True)
    info = hosts.ended(run)
    assert (info.state, info.counts["stopped"], info.counts["failed"]) == ("stopped", 2, 2)
    said = {error["message"] for one in hosts.targets(run, "failed") if (error := one.error) is not None}
    assert said == {f"{str(info.reason).removesuffix('.')}; the command was killed."}
    assert str(info.reason).startswith("The run was stopped by ")
    with pytest.raises(ClientError) as refused:
        hosts.client.runs.pause(run)
    assert refused.value.code == "run_ended"


def test_a_retry_is_a_new_run_of_what_did_not_succeed(hosts: Hosts) -> None:
    first = hosts.run("test $N -lt 10", name="again")
    second = hosts.client.runs.retry(first.run)
    assert second.run is not None
    info = hosts.ended(second.run)
    assert (info.targets, info.retry_of, info.name, info.state) == (2, first.run, "again", "failed")
    done = hosts.run("true", 1)
    with pytest.raises(ClientError, match="No target of the run is"):
        hosts.client.runs.retry(done.run)


def test_nobody_lends_rights_to_the_run_of_another(hosts: Hosts) -> None:
    made = hosts.far / "made"
    with hosts.with_token(rules=[{"effect": "allow", "argv": ["/usr/bin/test", "-e", str(made)]}]) as theirs:
        begun = theirs.runs.start(connections=hosts.ids[:1], argv=["/usr/bin/test", "-e", str(made)])
        assert begun.run is not None
        assert hosts.ended(begun.run).state == "failed"
        with pytest.raises(ClientError, match="with your rights") as refused:
            hosts.client.runs.retry(begun.run)
        assert refused.value.code == "policy_denied"
        made.touch()
        again = theirs.runs.retry(begun.run)
        assert again.run is not None
        assert hosts.ended(again.run).state == "done"


def test_a_start_with_the_same_key_finds_the_run(hosts: Hosts) -> None:
    first = hosts.start("true", 1, key="release 7")
    again = hosts.client.runs.start(connections=hosts.ids[:1], command="true", key="release 7")
    assert (again.run, again.is_kept, again.targets) == (first, True, 1)


@pytest.mark.parametrize("other", [{"command": "false"}, {"count": 2}, {"env": {"A": "2"}}, {"stop_after": 1}])
def test_a_key_is_not_used_for_something_else(hosts: Hosts, other: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"command": "true", "count": 1, "env": {"A": "1"}, "key": f"release {other}"}
    first = hosts.start(**fields, send_env={"LANG": "C.UTF-8"})
    with pytest.raises(ClientError, match=f"key: The run {first} was started with this key") as refused:
        hosts.start(**{**fields, **other})
    assert (refused.value.code, refused.value.status) == ("key_reused", 409)
    # Where the client runs does not matter.
    assert hosts.start(**fields, send_env={"LANG": "C"}) == first
    with hosts.with_token() as theirs:
        begun = theirs.runs.start(connections=hosts.ids[:1], command="false", key=fields["key"])
        assert begun.run not in (None, first)


def test_what_has_no_effect_on_so_few_targets_is_told(hosts: Hosts) -> None:
    start = partial(hosts.client.runs.start, connections=hosts.ids[:3], command="true", dry_run=True)
    assert start(stop_after=3, waves=[1, "100%"], wave_approval=True).warning is None
    assert start(stop_after="100%").warning is None
    warning = start(stop_after=500).warning
    assert warning == "stopAfter: 500 targets cannot fail, because the run has 3: it does not stop."
    assert start(retry_delay=1).warning == "retryDelay: Nothing is tried again without retries."
    assert start(retry_delay=1, retries=1).warning is None
    warning = start(waves=[50], wave_approval=True).warning
    assert warning == "waves: All targets (3) are in the first wave, so nothing waits after it."


def test_a_dry_run_shows_the_selection_and_begins_nothing(hosts: Hosts) -> None:
    before = len(hosts.client.runs.query(limit=1000))
    begun = hosts.client.runs.start(connection_filter="**host1*", command="false", waves=[1, "100%"], dry_run=True)
    assert (begun.run, begun.targets, begun.waves, begun.as_) == (None, 3, [1, 2], "shell")
    assert begun.names == ["local machine/host1", "local machine/host10", "local machine/host11"]
    assert len(hosts.client.runs.query(limit=1000)) == before


def test_a_run_is_unknown_once_its_time_is_over(hosts: Hosts) -> None:
    run = hosts.start(hosts.noting("brief"), 1, keep=1, key="brief", name="brief")
    eventually(lambda: hosts.client.runs.query(name="brief"), "it stays", holds=lambda found: not found)
    assert hosts.begun("brief") == ["0"]
    for ask in (hosts.client.runs.info, lambda id: list(hosts.client.runs.targets(id)), hosts.client.runs.remove):
        with pytest.raises(ClientError, match="Unknown run"):
            ask(run)
    # Its key is free: what was started with it is not kept.
    again = hosts.client.runs.start(connections=hosts.ids[:1], command=hosts.noting("brief"), keep=1, key="brief")
    assert (again.is_kept, again.run != run) == (None, True)
    # The vault does not keep what nobody may read, although nobody begins another run.
    with closing(sqlite3.connect(hosts.daemon.data_dir / "vault.db")) as vault:
        rows = partial(vault.execute, "SELECT count(*) FROM run WHERE id IN (?, ?)", (run, again.run))
        eventually(lambda: rows().fetchone(), "it is not removed", holds=lambda count: count == (0,))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"waves": [0]}, "waves.0: 0 is not at least 1."),
        ({"waves": [1, "200%"]}, "waves.1: A share is above 0% and at most 100%, not 200%."),
        ({"waves": ["0%"]}, "waves.0: A share is above 0% and at most 100%, not 0%."),
        ({"waves": [1, "50%", True]}, 'waves.2: Neither a number of targets nor a share such as "10%".'),
        ({"waves": ["50%", 2]}, "waves.1: Smaller than the wave before it: 2 targets after 6."),
        ({"stop_after": "101%"}, "stopAfter: A share is above 0% and at most 100%, not 101%."),
        ({"stop_after": 0}, "stopAfter: 0 is not at least 1."),
        ({"connections": []}, "connections: The selection is empty: no connection matches."),
        (
            {"connections": None, "connection_filter": "nothing*"},
            "connectionFilter: The selection is empty: no connection matches.",
        ),
        ({"connections": None, "where": "env=none"}, "where: The selection is empty: no connection matches."),
        (
            {"connections": None, "connection_filter": "host*", "typeFilter": "ssh", "where": "env=none"},
            "connectionFilter: The selection is empty: no connection matches. It must match typeFilter and where, too.",
        ),
        # What an empty variable of a script leaves chooses nothing, and not everything.
        (
            {"connections": None, "connection_filter": ""},
            "connectionFilter: The selection is empty: no connection matches.",
        ),
        ({"connections": None, "categoryFilter": ""}, "categoryFilter: The selection is empty: no connection matches."),
        # Nobody would learn how it went.
        ({"keep": 0}, "keep: "),
        ({"connections": None, "where": " "}, "where: It is blank."),
        ({"waveApproval": True}, "waveApproval: There is nothing between waves without waves"),
        ({"wavePause": 300}, "wavePause: There is nothing between waves without waves"),
        ({"start": False}, "start: A run starts the shells that it needs."),
        ({"encoding": "base64"}, "encoding: Only the `stdin` of a run is encoded"),
        ({"connections": ["f0ec68aa-63f5-405c-b178-000000000000"]}, "Unknown connection: "),
        ({"parallel": 501}, "parallel: "),
        ({"as_": "job", "fresh": True}, "as: A run as jobs takes neither `fresh`"),
        ({"command": None, "script": {"text": "#!/usr/bin/awk -f\n"}}, "script: '#!/usr/bin/awk -f' does not name"),
        (
            {"command": None, "script": {"text": "#!/bin/sh -e\n"}},
            "script: '#!/bin/sh -e' gives its interpreter options",
        ),
        ({"command": None, "script": {"text": "#!/bin/sh 'x"}}, 'script: "#!/bin/sh \'x" cannot be split into words'),
        ({"command": None, "script": "true"}, "script: Not an object, of text, arguments."),
        ({"stop_afetr": 1}, "stop_afetr: Unknown field. Is stopAfter meant?"),
        ({"sudo": True, "elevate": {}}, "sudo: Given beside elevate; use one of them."),
        (
            {"connections": [f"{n:08x}-63f5-405c-b178-000000000000" for n in range(100_000)]},
            "100,000 connections; a run",
        ),
        ({"command": None}, "command: Give one of command, argv, saved, script, facts."),
    ],
)
def test_bad_input_is_refused_with_a_clear_error(hosts: Hosts, fields: dict[str, Any], said: str) -> None:
    names = {"stop_after": "stopAfter", "connection_filter": "connectionFilter", "as_": "as"}
    given = {"connections": hosts.ids, "command": "true", **fields}
    sent = {names.get(name, name): value for name, value in given.items() if value is not None}
    with pytest.raises(ClientError) as refused:
        hosts.client.post("/run/start", **sent)
    assert refused.value.message.startswith(said)


def test_a_token_s_ids_are_counted_before_they_are_parsed(hosts: Hosts) -> None:
    """Parsing so many takes seconds, in which nobody else is answered."""
    ids = [f"{number:08x}-63f5-405c-b178-000000000000" for number in range(100_000)]
    with hosts.with_token() as theirs, pytest.raises(ClientError) as refused:
        theirs.post("/run/start", connections=ids, command="true")
    assert (refused.value.code, refused.value.status) == ("invalid_request", 400)
    assert re.match(r"The request body has more than \d+ values; send several smaller", refused.value.message)


def test_sudo_is_that_of_an_elevated_connection(hosts: Hosts) -> None:
    plain, by_sudo = (
        hosts.client.post("/run/start", connections=hosts.ids[:1], command="true", dryRun=True, **fields)
        for fields in ({"elevate": {}}, {"sudo": True})
    )
    assert plain == by_sudo
    assert by_sudo["connections"] == hosts.ids[:1]
    begun = hosts.client.runs.start(connections=hosts.ids[:1], command="id -u", sudo=True)
    assert begun.run is not None
    info = hosts.ended(begun.run)
    [one] = hosts.targets(info.run)
    # Whether this machine lets its user become root is not what is tried here.
    assert one.stdout == "0" or one.error is not None


def test_a_script_runs_by_the_interpreter_of_its_first_line(hosts: Hosts) -> None:
    script = {"text": "#!/usr/bin/env bash\nread -r line\necho ${0##*/} $1 $line $N", "arguments": ["a b"]}
    begun = hosts.client.runs.start(connections=hosts.ids[:2], script=Script(**script), stdin="in\n")
    assert begun.run is not None
    info = hosts.ended(begun.run)
    assert [one.stdout for one in hosts.targets(info.run)] == ["script a b in 0", "script a b in 1"]


@pytest.mark.parametrize("manner", ["shell", "job"])
def test_long_output_is_kept_from_its_end(hosts: Hosts, manner: str) -> None:
    info = hosts.run("seq 1 40000", 1, as_=manner)
    [one] = hosts.targets(info.run)
    assert one.truncated
    [group] = hosts.client.runs.output(info.run)
    assert group.stdout.endswith("\n40000")
    assert len(group.stdout) <= 65536


def test_an_ended_run_can_be_removed(hosts: Hosts) -> None:
    info = hosts.run("true", 1)
    hosts.client.runs.remove(info.run)
    with pytest.raises(ClientError) as unknown:
        hosts.client.runs.info(info.run)
    assert unknown.value.code == "unknown_run"


def test_the_audit_log_has_each_run_and_its_targets(hosts: Hosts) -> None:
    info = hosts.run("test $N -ne 1", 2)
    entries = [json.loads(line) for line in (hosts.daemon.data_dir / "audit.log").read_text().splitlines()]
    [begun] = [one for one in entries if one.get("run") == info.run and one.get("action") == "run.start"]
    assert (begun["targets"], begun.get("code")) == (2, None)
    ends = [one for one in entries if one.get("run") == info.run and one.get("event") == "run targets ended"]
    told = {
        id: (state, code)
        for one in ends
        for id, state, code in zip(one["connections"], one["states"], one["exitCodes"], strict=True)
    }
    assert told == {hosts.ids[0]: ("done", 0), hosts.ids[1]: ("failed", 1)}


def test_a_token_runs_what_it_may_on_what_it_sees_and_sees_its_own_runs(hosts: Hosts) -> None:
    with hosts.with_token(connections=["**host1", "**host2"]) as theirs:
        own = theirs.runs.start(connection_filter="**host*", command="echo $N")
        assert own.run is not None
        assert own.targets == 2
        assert hosts.ended(own.run).state == "done"
        assert [one.run for one in theirs.runs.query()] == [own.run]
        others = hosts.run("true", 1)
        with pytest.raises(ClientError) as unknown:
            theirs.runs.info(others.run)
        assert unknown.value.code == "unknown_run"
        with pytest.raises(ClientError) as hidden:
            theirs.runs.start(connections=[LOCAL_MACHINE], command="true")
        assert hidden.value.code == "unknown_connection"


def test_runs_of_a_token_that_never_end_keep_no_other_waiting(hosts: Hosts) -> None:
    with hosts.with_token() as theirs:
        begun = [theirs.runs.start(connections=hosts.ids[:1], command="sleep 600", fresh=True) for _ in range(10)]
        hosts.run("true", 1)
        for one in begun:
            assert one.run is not None
            theirs.runs.stop(one.run, kill=True)
        for one in begun:
            hosts.ended(str(one.run))


def test_a_target_that_has_left_sight_has_no_name(hosts: Hosts) -> None:
    id = hosts.client.connection.add("seen", {"type": "local", "shell": "/bin/././bash"})
    with hosts.with_token(connections=["seen"]) as theirs:
        run = theirs.runs.start(connections=[id], command="true").run
        assert run is not None
        hosts.ended(run)
        assert [one.name for one in theirs.runs.targets(run)] == ["seen"]
        hosts.client.connection.update(id, name="the name of a secret project")
        eventually_equal(
            lambda: [one.name for one in theirs.runs.targets(run)], [None], "the token reads a hidden name"
        )
        assert [one.names for one in theirs.runs.output(run)] == [[None]]


def test_outputs_of_many_mebibytes_come_in_pages(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Neither the daemon nor the client ever has all of them: a run may have gigabytes."""
    hosts = Hosts(start_daemon("--run-output", str(1 << 20)), tmp_path / "far", 12)
    info = hosts.run("head -c 1048576 /dev/zero | tr '\\0' x; echo $N", 12)
    asked = hosts.client.post("/run/output", run=info.run)
    assert (asked["total"], 8 <= len(asked["groups"]) < 12) == (12, True)
    rest = hosts.client.post("/run/output", run=info.run, offset=len(asked["groups"]))
    assert len(asked["groups"]) + len(rest["groups"]) == 12
    assert len({one.stdout[-3:] for one in hosts.client.runs.output(info.run)}) == 12


def test_a_revoked_token_stops_its_run(hosts: Hosts) -> None:
    with hosts.with_token() as theirs:
        begun = theirs.runs.start(connections=hosts.ids[:4], command=f"{hosts.noting('revoked')}; sleep 60", parallel=2)
        assert begun.run is not None
        eventually(lambda: len(hosts.begun("revoked")), "two never begin", holds=lambda count: count == 2)
        id = hosts.client.runs.info(begun.run).token
        assert id is not None
        hosts.client.token.revoke(id)
        info = hosts.ended(begun.run)
        assert (info.state, info.reason, info.counts["stopped"]) == ("stopped", "The token was revoked.", 2)
        killed = [error["message"] for one in hosts.targets(begun.run, "failed") if (error := one.error) is not None]
        assert killed == 2 * ["The token was revoked; the command was killed."]


def test_a_run_gathers_facts(hosts: Hosts) -> None:
    info = hosts.run(None, 3, facts=["system"])
    assert (info.state, info.command, info.counts["done"]) == ("done", "gather facts: system", 3)
    assert {one.stdout.endswith(" facts") for one in hosts.targets(info.run) if one.stdout} == {True}
    gathered = hosts.client.fact.query(hosts.ids[:3])
    assert {"os.type" in one.facts for one in gathered} == {True}
    away = hosts.run(None, connections=[hosts.away], facts=[])
    assert (away.state, away.command, away.counts["unreachable"]) == ("done", "gather facts: all", 1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"facts": ["weather"]}, "facts: Unknown part 'weather'; the parts are system, package"),
        ({"facts": [], "command": "true"}, "facts: Not together with command."),
        ({"facts": [], "sudo": True}, "sudo: Facts are gathered by a program of the daemon's own: not with facts."),
        ({"facts": [], "as": "job"}, "as: Facts are gathered by a program of the daemon's own: not with facts."),
    ],
)
def test_facts_are_gathered_alone(hosts: Hosts, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError) as refused:
        hosts.client.post("/run/start", connections=hosts.ids[:1], **fields)
    assert refused.value.message.startswith(said)


def test_gathering_facts_needs_the_scopes_for_that_and_for_any_command(hosts: Hosts) -> None:
    read, write, argv, any_command = "connection.read", "connection.write", "shell.argv", "shell.any"

    def begun(*scopes: str) -> str | None:
        created = hosts.client.token.create("theirs", 600, list(scopes))
        with Client(hosts.daemon.url, session_token=created["token"]) as theirs:
            return theirs.runs.start(connections=hosts.ids[:1], facts=["system"]).run

    for lacking in ((read, any_command), (read, write, argv)):
        with pytest.raises(ClientError) as refused:
            begun(*lacking)
        assert refused.value.code == "scope_denied"
    run = begun(read, write, any_command)
    assert run is not None
    assert hosts.ended(run).state == "done"


@pytest.mark.parametrize("daemon_program", [hasty("connmgr.shares.OUTPUT_BYTES=0")], ids=["hasty"])
@pytest.mark.parametrize("way", ["shell", "job"])
def test_what_a_token_s_run_prints_takes_of_its_share_of_memory(
    start_daemon: StartDaemon, tmp_path: Path, way: str
) -> None:
    printed = 400_000
    daemon = start_daemon("--run-output", "1000000")
    hosts = Hosts(daemon, tmp_path / "far", 2)
    command = f"head -c {printed} /dev/zero | tr '\\0' x"

    def kept(client: Client) -> list[tuple[int, bool | None]]:
        run = client.runs.start(connections=hosts.ids, command=command, as_=way).run
        assert run is not None
        assert [target.state for target in hosts.targets(hosts.ended(run).run)] == ["done", "done"]
        return [(len(group.stdout), group.truncated) for group in hosts.client.runs.output(run)]

    assert kept(hosts.client) == [(printed, None)], "the owner has no share"
    with hosts.with_token() as theirs:
        [(size, truncated)] = kept(theirs)
    # What is not counted of a command is kept; of a job's output all is counted.
    assert (size, truncated) == (UNCOUNTED_BYTES if way == "shell" else 0, True)
