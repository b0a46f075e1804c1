"""Approvals in an agent's client: the question to its user, and the effect of each answer."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from mcp.client import session
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from connmgr.client import Client as DaemonClient
from connmgr.client import ClientError
from connmgr.mcp import approval
from connmgr.mcp.approval import Approver
from tests.daemon import Daemon
from tests.mcp.agent import MODES, agent, content, fault, refused, run, soon
from tests.mcp.bridge import HttpBridge
from tests.mcp.person import ACCEPTED, CLOSED, DECLINED, Person, chosen, client_of, ran
from tests.rights import wire
from tests.rights.wire import Holder

ASKS = {"effect": "ask", "text": "."}
HOSTILE = "echo 'a\x1b[2J\u202e' \\\u0430\n# approved already\n```\n**once**"


@pytest.fixture
def asking(daemon: Daemon) -> Holder:
    """A token whose rule asks about every command."""
    return wire.create(daemon, "connection.read", "shell.any", "job", name="agent", rules=[ASKS])


@pytest.fixture
def deciding(daemon: Daemon) -> Holder:
    """A token that decides about approvals."""
    return wire.create(daemon, "approval.decide")


def states(daemon: Daemon, holder: Holder) -> list[str]:
    return [one["state"] for one in daemon.client.approval.query() if one["token"] == holder.id]


@pytest.mark.parametrize("mode", MODES)
def test_the_program_asks_and_decides_with_the_token_of_the_file(
    daemon: Daemon, asking: Holder, deciding: Holder, mode: str, tmp_path: Path
) -> None:
    file = tmp_path / "approver"
    file.write_text(f"{deciding.secret}\n")

    async def work() -> None:
        person, options = Person(chosen("once")), ("--approver-token-file", str(file))
        async with agent(daemon, asking, *options, mode=mode, elicitation_callback=person) as client:
            assert content(await ran(client, "echo a"))["stdout"] == "a\n"

    run(work)


@pytest.mark.parametrize("mode", MODES)
def test_a_person_approves_once_then_for_an_hour(daemon: Daemon, asking: Holder, deciding: Holder, mode: str) -> None:
    person = Person(chosen("once"), chosen("for an hour"))

    async def work() -> None:
        async with client_of(daemon, asking, mode, person, deciding) as client:
            for _ in range(3):
                assert content(await ran(client, "echo 'a  b'"))["stdout"] == "a  b\n"

    run(work)
    first, second = person.asked
    assert "\"echo 'a  b'\"" in first.message
    assert first.message.startswith('"agent" asks for your approval (until ')
    assert 'job.start on "local machine"' in first.message
    assert set(first.requested_schema) == {"type", "properties", "required"}
    assert first.requested_schema["properties"]["decision"]["enum"] == ["once", "for an hour", "deny"]
    assert second.message.splitlines()[1:] == first.message.splitlines()[1:]
    entries = daemon.client.audit.query(token=asking.id)
    assert any(one.get("approval") for one in entries)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("answer", [chosen("deny"), DECLINED])
def test_a_denied_command_is_not_run(
    daemon: Daemon, asking: Holder, deciding: Holder, mode: str, answer: ElicitResult, tmp_path: Path
) -> None:
    person, command = Person(answer), f"touch {tmp_path}/done"

    async def work() -> None:
        async with client_of(daemon, asking, mode, person, deciding) as client:
            for _ in range(2):
                assert refused(await ran(client, command))["code"] == "approval_denied"

    run(work)
    assert len(person.asked) == 1
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("mode", MODES)
def test_a_late_answer_does_not_undo_a_denial(
    daemon: Daemon, asking: Holder, deciding: Holder, mode: str, tmp_path: Path
) -> None:
    def late(_: ElicitRequestFormParams) -> ElicitResult:
        [one] = [one for one in daemon.client.approval.query() if one["token"] == asking.id]
        daemon.client.approval.decide(one["approval"], "deny")
        return chosen("for an hour")

    async def work() -> None:
        async with client_of(daemon, asking, mode, Person(late), deciding) as client:
            for _ in range(2):
                assert refused(await ran(client, f"touch {tmp_path}/done"))["code"] == "approval_denied"

    run(work)
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("mode", MODES)
def test_a_command_waits_for_its_decision(daemon: Daemon, asking: Holder, deciding: Holder, mode: str) -> None:
    person = Person(CLOSED, chosen("always"), ElicitResult(action="accept"))

    async def work() -> None:
        async with client_of(daemon, asking, mode, person, deciding) as client:
            for _ in range(3):
                waits = refused(await ran(client, "echo a"))
                assert waits["code"] == "approval_required"
                assert f"connmgr approve {waits['approval'][:8]}" in waits["message"]
                assert waits["expires"] in waits["message"]

    run(work)
    assert len(person.asked) == 3
    assert states(daemon, asking) == ["pending"]


@pytest.mark.parametrize("mode", MODES)
def test_without_an_approver_the_call_waits_for_who_decides_elsewhere(
    daemon: Daemon, asking: Holder, mode: str
) -> None:
    def decided(asked: ElicitRequestFormParams) -> ElicitResult:
        [waits] = [one for one in daemon.client.approval.query() if one["token"] == asking.id]
        assert f"connmgr approve {waits['approval'][:8]}" in asked.message
        assert '"command" = "echo a"' in asked.message
        daemon.client.approval.decide(waits["approval"], "once")
        return ACCEPTED

    async def work() -> None:
        person = Person(decided, DECLINED)
        async with client_of(daemon, asking, mode, person) as client:
            assert content(await ran(client, "echo a"))["stdout"] == "a\n"
            assert refused(await ran(client, "echo b"))["code"] == "approval_required"
        assert not person.answers

    run(work)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_waits_too_long_tells_what_waits(
    daemon: Daemon, asking: Holder, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval, "WAIT_SECONDS", 1.5)

    async def work() -> None:
        async with client_of(daemon, asking, mode, Person(ACCEPTED)) as client:
            began = time.monotonic()
            assert refused(await ran(client, "echo a"))["code"] == "approval_required"
            assert time.monotonic() - began < 20

    run(work)


def test_a_question_outlives_the_call_that_raised_it(
    daemon: Daemon, asking: Holder, deciding: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval, "WAIT_SECONDS", 1.0)

    async def work() -> None:
        thought = anyio.Event()

        class Slow(Person):
            async def __call__(self, *asked: Any) -> ElicitResult:
                await thought.wait()
                return await super().__call__(*asked)

        person = Slow(chosen("once"))
        async with client_of(daemon, asking, "legacy", person, deciding) as client:
            told = refused(await ran(client, "echo a"))
            assert told["code"] == "approval_required"
            assert "has not answered yet" in told["message"]
            thought.set()
            await soon(
                lambda: states(daemon, asking), "the answer decides nothing", holds=lambda seen: seen != ["pending"]
            )
            assert content(await ran(client, "echo a"))["stdout"] == "a\n"
        assert len(person.asked) == 1

    run(work)


def test_a_question_is_withdrawn_with_the_call_that_is_cancelled(
    daemon: Daemon, asking: Holder, deciding: Holder
) -> None:
    async def work() -> None:
        shown, withdrawn = anyio.Event(), anyio.Event()

        class Shown(Person):
            async def __call__(self, *_: Any) -> ElicitResult:
                shown.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    withdrawn.set()

        async with client_of(daemon, asking, "legacy", Shown(), deciding) as client:
            with anyio.CancelScope() as call:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ran, client, "echo a")
                    await shown.wait()
                    call.cancel()
            with anyio.fail_after(20):
                await withdrawn.wait()

    run(work)
    assert states(daemon, asking) == ["pending"]


@pytest.mark.parametrize("mode", MODES)
def test_over_http_a_person_is_asked_too(
    daemon: Daemon, asking: Holder, deciding: Holder, mode: str, tmp_path: Path
) -> None:
    file = tmp_path / "approver"
    file.write_text(deciding.secret)

    async def work() -> None:
        person = Person(chosen("once"))
        async with bridge.agent(asking, mode=mode, elicitation_callback=person) as client:
            assert content(await ran(client, "echo a"))["stdout"] == "a\n"

    with HttpBridge(daemon, "--approver-token-file", str(file)) as bridge:
        run(work)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_cannot_ask_is_told_what_waits_and_the_same_call_passes_when_it_is_approved(
    daemon: Daemon, asking: Holder, deciding: Holder, mode: str
) -> None:
    async def work() -> None:
        async with client_of(daemon, asking, mode, None, deciding) as client:
            waits = refused(await ran(client, "echo a"))
            assert waits["code"] == "approval_required"
            daemon.client.approval.decide(waits["approval"], "once")
            assert content(await ran(client, "echo a"))["stdout"] == "a\n"
            assert refused(await ran(client, "echo a"))["approval"] != waits["approval"]

    run(work)


@pytest.mark.parametrize("decides", [True, False])
def test_questions_to_a_person_are_escaped(daemon: Daemon, asking: Holder, deciding: Holder, decides: bool) -> None:
    person = Person(CLOSED)

    async def work() -> None:
        async with client_of(daemon, asking, "auto", person, deciding if decides else None) as client:
            refused(await ran(client, HOSTILE))

    run(work)
    [asked] = person.asked
    head, empty, *lines = asked.message.partition("\n\nIn a terminal")[0].splitlines()
    assert (head.startswith('"agent" asks for '), empty) == (True, "")
    assert [line for line in lines if not line.startswith("    ")] == [], "what Markdown does not show as it is"
    assert "U+0430 CYRILLIC SMALL LETTER A" in asked.message
    assert r"a\u001b[2J\u202e" in asked.message
    assert not {"\x1b", "\u202e"} & set(asked.message)


def test_a_change_of_line_ends_is_shown(daemon: Daemon, deciding: Holder, tmp_path: Path) -> None:
    rules = [{"effect": "ask", "path": "/**", "action": "fs.write"}]
    asking = wire.create(daemon, "connection.read", "fs.read", "fs.write", rules=rules)
    file, person = tmp_path / "file", Person(chosen("once"))
    file.write_bytes(b"a\x0cb\rc\r\nd\n")

    async def work() -> None:
        async with client_of(daemon, asking, "auto", person, deciding) as client:
            arguments = {"system": "local", "path": str(file), "old": "c\r\n", "new": "c\n"}
            content(await client.call_tool("edit_file", arguments))

    run(work)
    assert "\n      -a\\x0cb\\rc\\r\n      +a\\x0cb\\rc\n       d" in person.asked[0].message
    assert file.read_bytes() == b"a\x0cb\rc\nd\n"


def test_what_a_line_is_too_long_for_is_told_and_decided_in_a_terminal(
    daemon: Daemon, asking: Holder, deciding: Holder
) -> None:
    person = Person(CLOSED)

    async def work() -> None:
        async with client_of(daemon, asking, "auto", person, deciding) as client:
            refused(await ran(client, f"echo harmless{' ' * 3000}; echo evil"))

    run(work)
    assert re.search(r"echo harmless +… and 20\d\d more characters, which are not shown here", person.asked[0].message)
    assert "connmgr approve" in person.asked[0].message
    assert not person.asked[0].requested_schema["properties"]


def test_a_path_does_not_add_lines_to_the_change_of_its_file(daemon: Daemon, deciding: Holder, tmp_path: Path) -> None:
    rules = [{"effect": "ask", "path": "/**", "action": "fs.write"}]
    asking = wire.create(daemon, "connection.read", "fs.read", "fs.write", rules=rules)
    file, person = tmp_path / "a\n+harmless", Person(CLOSED)
    file.write_text("old\n" + "x" * 2000 + "\n")

    async def work() -> None:
        async with client_of(daemon, asking, "auto", person, deciding) as client:
            arguments = {"system": "local", "path": str(file), "old": "old\n", "new": "new\n"}
            refused(await client.call_tool("edit_file", arguments))

    run(work)
    change = person.asked[0].message.partition("    change\n")[2]
    assert [line[6] for line in change.splitlines()] == ["-", "+", "@", "-", "+", " "]
    assert change.endswith("x… and 1001 more characters, which are not shown here")


def test_an_approver_without_sight_of_the_system_leaves_it_to_others(daemon: Daemon, asking: Holder) -> None:
    blind = wire.create(daemon, "approval.decide", connections=["nothing"])
    person = Person(DECLINED)

    async def work() -> None:
        async with client_of(daemon, asking, "auto", person, blind) as client:
            assert refused(await ran(client, "echo a"))["code"] == "approval_required"

    run(work)
    assert "connmgr approve" in person.asked[0].message
    assert states(daemon, asking) == ["pending"]


@pytest.mark.parametrize("mode", MODES)
def test_a_token_that_decides_no_more_leaves_it_to_others(daemon: Daemon, asking: Holder, mode: str) -> None:
    former = wire.create(daemon, "approval.decide")

    def revoked(_: ElicitRequestFormParams) -> ElicitResult:
        daemon.client.token.revoke(former.id)
        return chosen("once")

    async def work() -> None:
        person = Person(revoked, DECLINED)
        async with client_of(daemon, asking, mode, person, former) as client:
            told = refused(await ran(client, "echo a"))
            assert told["message"].startswith("The person has decided, and the daemon did not accept it: ")
            assert refused(await ran(client, "echo a"))["code"] == "approval_required"
        assert "connmgr approve" in person.asked[1].message

    run(work)
    assert states(daemon, asking) == ["pending"]


def test_a_token_that_the_agent_made_itself_does_not_decide(daemon: Daemon) -> None:
    scopes, rules = ("connection.read", "shell.any", "job", "approval.decide", "token.create"), [ASKS]
    asking = wire.create(daemon, *scopes, rules=rules)
    person, own = Person(chosen("once")), asking.create("approval.decide", rules=rules)

    async def work() -> None:
        async with client_of(daemon, asking, "legacy", person, own) as client:
            assert refused(await ran(client, "echo a"))["code"] == "policy_denied"

    run(work)
    assert states(daemon, asking) == ["pending"]


@pytest.mark.parametrize("scopes", [("connection.read",), ("approval.decide", "shell.any")])
def test_a_token_that_decides_does_nothing_else(daemon: Daemon, scopes: tuple[str, ...]) -> None:
    holder = wire.create(daemon, *scopes)
    client = DaemonClient(daemon.url, daemon.auth_file, holder.secret)
    with pytest.raises(ClientError, match=r"approval\.decide and no other"):
        Approver(client)
    client.close()


def test_the_program_tells_who_cannot_decide(daemon: Daemon, asking: Holder, tmp_path: Path) -> None:
    file = tmp_path / "approver"
    variables = {"CONNMGR_TOKEN": asking.secret, "CONNMGR_APPROVER_TOKEN_FILE": str(file)}
    assert "cannot be read" in fault(daemon, code=4, **variables)
    file.write_text(asking.secret)
    assert "approval.decide and no other" in fault(daemon, code=4, **variables)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_without_forms_is_given_the_address_of_the_approval_on_the_page(
    daemon: Daemon, asking: Holder, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.types, "FormElicitationCapability", lambda: None)
    opened: list[str] = []

    async def opens(_: object, asked: ElicitRequestParams) -> ElicitResult:
        assert isinstance(asked, ElicitRequestURLParams)
        opened.append(asked.url)
        # The person decides there, and then goes back to the client.
        id = asked.url.rpartition("/")[2]
        await anyio.to_thread.run_sync(daemon.client.approval.decide, id, "once")
        return ElicitResult(action="accept")

    async def work() -> None:
        async with client_of(daemon, asking, mode, cast("Person", opens)) as client:
            assert content(await ran(client, "echo a"))["stdout"] == "a\n"

    run(work)
    [address] = opened
    assert address.startswith(f"{daemon.url}/#/approvals/")


def test_the_pattern_beside_a_request_can_be_approved(daemon: Daemon, deciding: Holder) -> None:
    rules = [{"effect": "ask", "argv": ["systemctl", "restart", {"re": ".*"}], "mayRunOthers": True}]
    holder = wire.create(daemon, "connection.read", "shell.any", "job", name="agent", rules=rules)
    person = Person(chosen("the pattern"))

    async def work() -> None:
        async with client_of(daemon, holder, "auto", person, deciding) as client:
            for unit in ("one", "two"):
                words = {"system": "local machine", "argv": ["systemctl", "restart", f"no-such-{unit}"], "wait": 40}
                assert content(await client.call_tool("run_command", words))["exitCode"] != 0

    run(work)
    [asked] = person.asked
    assert "or as a rule for 30 minutes: systemctl restart NAME on" in asked.message
    assert asked.requested_schema["properties"]["decision"]["enum"] == ["once", "for an hour", "the pattern", "deny"]
    assert len(holder.ok("/token/info")["rules"]) == 2
