"""A pattern that is approved beside a request is a rule of the token for a while, and means nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.rights.wire import Holder, create

ASK = {"effect": "ask", "argv": ["systemctl", {"re": ".*"}, {"re": ".*"}], "mayRunOthers": True}
SCOPES = ("connection.read", "shell.any")


@pytest.fixture
def holder(daemon: Daemon) -> Holder:
    daemon.client.shell.start(LOCAL)
    return create(daemon, *SCOPES, rules=[ASK, {"effect": "deny", "argv": ["systemctl", "stop", "sshd"]}])


def effect(holder: Holder, *words: str, **more: Any) -> str:
    request = {"connection": LOCAL, "argv": list(words), **more}
    return str(holder.ok("/token/check", path="/shell/exec", request=request)["effect"])


def asked(daemon: Daemon, holder: Holder, *words: str, **more: Any) -> dict[str, Any]:
    """Return the approval that a request asks for."""
    answer = holder.send("/shell/exec", connection=LOCAL, argv=list(words), **more)
    assert answer.code == "approval_required", answer.json
    id = answer.json["approval"]
    return next(one for one in daemon.client.approval.query() if one["approval"] == id)


def test_an_approved_pattern_is_a_rule_of_the_token_until_it_is_taken_back(daemon: Daemon, holder: Holder) -> None:
    approval = asked(daemon, holder, "systemctl", "restart", "no-such-unit")
    assert approval["pattern"]["words"] == ["systemctl", "restart", "NAME"]
    assert approval["pattern"]["seconds"] == 1800
    assert effect(holder, "systemctl", "restart", "other") == "ask"
    daemon.client.approval.decide(approval["approval"], "pattern", 600)
    assert effect(holder, "systemctl", "restart", "no-such-unit") == "allow"
    assert effect(holder, "systemctl", "restart", "other@1.service") == "allow"
    for words in (["stop", "other"], ["restart", "--help"], ["restart", "/x"], ["restart", "a.target"]):
        assert effect(holder, "systemctl", *words) == "ask"
    assert effect(holder, "systemctl", "restart", "other", "more") == "deny"
    assert effect(holder, "systemctl", "restart", "other", stdin="x") == "ask"
    assert effect(holder, "systemctl", "stop", "sshd") == "deny"
    shown = holder.ok("/token/info")["rules"]
    assert [one.get("name") for one in shown] == [None, None, f"approval {approval['approval'][:8]}"]
    assert "until" in shown[-1]
    entry = next(one for one in daemon.client.audit.query() if one.get("pattern") == "systemctl restart NAME")
    assert entry["patternSeconds"] == 600
    daemon.client.approval.decide(approval["approval"], "deny")
    assert effect(holder, "systemctl", "restart", "other") == "ask"
    assert len(holder.ok("/token/info")["rules"]) == 2


def test_a_rule_whose_time_is_over_neither_allows_nor_is_shown(daemon: Daemon) -> None:
    past = {"effect": "allow", "argv": ["uname", "-s"], "name": "approval 01234567", "answers": [0]}
    rules = [{"effect": "ask", "argv": ["uname", "-s"]}, {**past, "until": "2025-01-31T08:15:00Z"}]
    holder = create(daemon, *SCOPES, rules=rules)
    assert effect(holder, "uname", "-s") == "ask"
    assert len(holder.ok("/token/info")["rules"]) == 1
    later = create(daemon, *SCOPES, rules=[rules[0], {**past, "until": "9999-01-01T00:00:00Z"}])
    assert effect(later, "uname", "-s") == "allow"


@pytest.mark.parametrize(
    "rule",
    [
        {"effect": "ask", "argv": ["ls"], "until": "9999-01-01T00:00:00Z"},
        {"effect": "allow", "argv": ["ls"], "until": "tomorrow"},
        {"effect": "allow", "argv": ["ls"], "until": "2025-01-31T08:15:00"},
        {"effect": "allow", "argv": ["ls"], "answers": [0]},
        {"effect": "allow", "argv": ["ls"], "answers": [0], "until": "9999-01-01T00:00:00Z"},
        {"effect": "allow", "argv": ["ls"], "answers": [7], "until": "9999-01-01T00:00:00Z"},
    ],
)
def test_a_malformed_rule_is_refused(daemon: Daemon, rule: dict[str, Any]) -> None:
    request = {"name": "test", "expires": 600, "scopes": list(SCOPES), "rules": [rule]}
    with pytest.raises(Exception, match=r"rules\[0\]"):
        daemon.client.post("/token/create", **request)


def test_only_names_of_services_are_proposed(daemon: Daemon) -> None:
    rules = [{"effect": "ask", "argv": [name, {"rest": {"re": ".*"}}], "mayRunOthers": True} for name in ("rm", "env")]
    guard = {"effect": "ask", "text": "sshd"}
    holder = create(daemon, *SCOPES, rules=[ASK, *rules, guard])
    daemon.client.shell.start(LOCAL)
    for words in (["rm", "restart", "x"], ["env", "systemctl", "x"], ["systemctl", "restart", "-H"]):
        assert "pattern" not in asked(daemon, holder, *words)
    assert "pattern" not in asked(daemon, holder, "systemctl", "restart", "sshd")
    approval = asked(daemon, holder, "systemctl", "start", "x")
    answer = {"approval": asked(daemon, holder, "rm", "x")["approval"], "decision": "pattern"}
    with pytest.raises(Exception, match="No pattern is proposed"):
        daemon.client.post("/approval/decide", **answer)
    daemon.client.approval.decide(approval["approval"], "pattern")
    # The rule over texts still asks.
    assert effect(holder, "systemctl", "start", "sshd") == "ask"


def test_a_pattern_answers_the_rules_of_each_token_that_asks(daemon: Daemon, holder: Holder) -> None:
    parent = create(daemon, *SCOPES, "token.create", rules=[ASK])
    child = parent.create(*SCOPES, rules=[ASK])
    grandchild = create(daemon, *SCOPES, "token.create", rules=[ASK]).create(*SCOPES)
    approval = asked(daemon, child, "systemctl", "restart", "x")
    daemon.client.approval.decide(approval["approval"], "pattern")
    sibling = parent.create(*SCOPES, rules=[ASK])
    # The person has seen the name of the child, and of nobody else.
    effects = [effect(one, "systemctl", "restart", "y") for one in (child, parent, sibling, grandchild, holder)]
    assert effects == ["allow", "ask", "ask", "ask", "ask"]


def test_a_pattern_ends_where_its_connection_leads_elsewhere(daemon: Daemon) -> None:
    """By a change, by another connection of its name, or as another user: the person saw one machine and one user."""
    client = daemon.client

    def add(name: str, shell: str) -> str:
        id = client.connection.add(name, {"type": "local", "shell": shell})
        client.shell.start(id)
        return id

    seen = add("pattern here", "/bin/././bash")
    holder = create(daemon, *SCOPES, "elevate", rules=[ASK])

    def effect_on(connection: str, **more: Any) -> str:
        request = {"connection": connection, "argv": ["systemctl", "restart", "no-such-unit"], **more}
        return str(holder.ok("/token/check", path="/shell/exec", request=request)["effect"])

    def asked_on(connection: str) -> str:
        answer = holder.send("/shell/exec", connection=connection, argv=["systemctl", "restart", "no-such-unit"])
        assert answer.code == "approval_required", answer.json
        return str(answer.json["approval"])

    client.approval.decide(asked_on(seen), "pattern")
    assert effect_on(seen) == "allow"
    assert effect_on(seen, elevate={"user": "root"}) == "ask"
    client.connection.update(seen, data={"type": "local", "shell": "/bin/./././bash"})
    assert effect_on(seen) == "ask"
    client.shell.start(seen)
    client.approval.decide(asked_on(seen), "pattern")
    client.connection.update(seen, name="pattern elsewhere")
    other = add("pattern here", "/bin/./././././bash")
    assert effect_on(other) == "ask"


def test_a_run_by_a_pattern_ends_where_its_connection_leads_elsewhere(daemon: Daemon) -> None:
    client = daemon.client
    first, second = (
        client.connection.add(f"patterned {shell}", {"type": "local", "shell": shell})
        for shell in ("/bin/../bin/bash", "/bin/../bin/./bash")
    )
    rule = {"effect": "ask", "argv": ["sv", "status", {"re": ".*"}], "mayRunOthers": True}
    holder = create(daemon, *SCOPES, rules=[rule])
    answer = holder.send("/run/start", connections=[first, second], argv=["sv", "status", "x"])
    assert answer.code == "approval_required", answer.json
    client.approval.decide(answer.json["approval"], "pattern")
    waves = {"waves": [1, "100%"], "waveApproval": True}
    run = holder.ok("/run/start", connections=[first, second], argv=["sv", "status", "y"], **waves)["run"]
    eventually_equal(lambda: holder.ok("/run/info", run=run)["state"], "waiting", "the first wave does not end")
    client.connection.update(second, data={"type": "local", "shell": "/bin/../bin/././bash"})
    holder.ok("/run/resume", run=run)
    eventually_equal(lambda: holder.ok("/run/info", run=run)["state"], "failed", "the run does not end")
    ended = holder.ok("/run/targets", run=run)["targets"]
    assert ended[0].get("error") is None, ended
    assert ended[1]["error"]["code"] == "approval_required", ended


ALLOWED = [
    {"effect": "allow", "argv": ["uname", {"re": "-[a-z]"}]},
    {"effect": "allow", "argv": ["/bin/cat"]},
    {"effect": "allow", "argv": ["xargs", "true"], "mayRunOthers": True},
    {"effect": "ask", "argv": ["tail", "-n", "1"]},
    {"effect": "deny", "text": r"cat *\| */bin/cat *\| */bin/cat"},
]


def test_the_parts_of_a_compound_command_are_judged_one_by_one(daemon: Daemon) -> None:
    holder = create(daemon, *SCOPES, rules=ALLOWED)
    daemon.client.shell.start(LOCAL)

    def effect_of(command: str) -> str:
        answer = holder.ok("/token/check", path="/shell/exec", request={"connection": LOCAL, "command": command})
        return str(answer["effect"])

    assert effect_of("uname -s | /bin/cat && uname -m; uname -s") == "allow"
    assert effect_of("uname -s | tail -n 1") == "ask"
    for denied in (
        *("uname -s && rm x", "uname -s | sh", "cd / && uname -s", "uname -s > x", "uname -s & uname -s"),
        *("uname -s &&", "uname -s && uname -s || uname -s", "uname $(rm x) | /bin/cat", "uname -s |& /bin/cat"),
        *("(uname -s; uname -s)", "uname -s\nuname -s", "uname -s;; uname -s"),
        # This program may not get input, and a rule over texts sees the whole.
        *("uname -s | xargs true", "/bin/cat | /bin/cat | /bin/cat"),
    ):
        assert effect_of(denied) == "deny", denied


def test_a_compound_command_runs_exactly_the_programs_that_were_judged(daemon: Daemon) -> None:
    shell = daemon.client.shell
    shell.start(LOCAL)
    holder = create(daemon, *SCOPES, rules=ALLOWED)
    # A function of the shell is none of the programs.
    shell.exec(LOCAL, "uname() { echo mine; }")
    answer = holder.ok("/shell/exec", connection=LOCAL, command="uname -s | /bin/cat; uname -s")
    assert (answer["stdout"], answer["exitCode"]) == ("Linux\nLinux", 0)
    limited = create(daemon, "connection.read", "shell.argv", rules=ALLOWED)
    assert limited.ok("/shell/exec", connection=LOCAL, command="uname -s && uname -s")["stdout"] == "Linux\nLinux"
    assert limited.refused("/shell/exec", connection=LOCAL, command="uname -s && rm x") == "policy_denied"
    assert limited.refused("/shell/exec", connection=LOCAL, command="uname -s > x") == "scope_denied"
