"""The client's methods for tokens, approvals, saved commands and the audit log."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from connmgr.client import LOCAL_MACHINE, Client, ClientError
from tests.daemon import Daemon

ASK = [{"effect": "ask", "argv": ["echo", {"re": r"\w+"}]}]


def test_a_token_is_given_used_and_taken_back(daemon: Daemon) -> None:
    owner = daemon.client
    expires = datetime.now(timezone.utc) + timedelta(hours=1)
    made = owner.token.create("holder", expires, ["shell.argv"], rules=ASK, connections=["local machine"])
    asked = {"connection": LOCAL_MACHINE, "argv": ["echo", "hi"]}
    with Client(daemon.url, daemon.auth_file, made["token"]) as holder:
        told = holder.token.info()
        assert (told.id, told.name, told.scopes, told.commands) == (made["id"], "holder", ["shell.argv"], "argv")
        assert told.expires == expires
        assert "shell.exec" in told.actions
        assert "job.start" not in told.actions
        assert owner.token.info().id is None
        assert holder.token.check("/shell/exec", asked) == {"effect": "ask", "rule": 0, "argv": ["echo", "hi"]}
        assert owner.token.check("/shell/exec", asked, made["id"])["effect"] == "ask"
        holder.shell.start(LOCAL_MACHINE)
        with pytest.raises(ClientError) as refused:
            holder.shell.exec(LOCAL_MACHINE, argv=["echo", "hi"])
        waiting = refused.value.details["approval"]
        assert waiting in [one["approval"] for one in owner.approval.query(["pending"])]
        assert owner.approval.decide(waiting, "grant", 60)["state"] == "granted"
        assert holder.shell.exec(LOCAL_MACHINE, argv=["echo", "hi"]).stdout == "hi"
        [entry] = [
            one for one in owner.audit.query(token=made["id"], action="shell.exec", limit=1) if "exitCode" in one
        ]
        assert (entry["tokenName"], entry["approval"], entry["rule"]) == ("holder", waiting, 0)
        owner.token.renew(made["id"], 60)
        owner.token.revoke(made["id"])
        assert made["id"] in [one["id"] for one in owner.token.query() if one["state"] == "revoked"]
        with pytest.raises(ClientError) as ended:
            holder.shell.exec(LOCAL_MACHINE, argv=["echo", "hi"])
        assert ended.value.code == "token_revoked"
    assert owner.audit.verify()["sound"]


def test_commands_are_saved(daemon: Daemon) -> None:
    client = daemon.client
    client.command.save("say", ["echo", {"parameter": "word"}], parameters={"word": {"re": r"\w+"}})
    assert [one["name"] for one in client.command.query()] == ["say"]
    client.shell.start(LOCAL_MACHINE)
    assert client.shell.exec(LOCAL_MACHINE, saved={"name": "say", "arguments": {"word": "hi"}}).stdout == "hi"
    client.command.remove("say")
    assert client.command.query() == []
