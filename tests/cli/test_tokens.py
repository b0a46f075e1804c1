"""``connmgr token``, and commands with a token."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from connmgr.client import ClientError
from tests.api.wire import LOCAL
from tests.cli.program import Done, run
from tests.daemon import Daemon

MINE = "local machine"


def connmgr(daemon: Daemon, *words: str, token: str | None = None) -> Done:
    environment = daemon.environment | ({"CONNMGR_TOKEN": token} if token else {})
    return run(*words, environment=environment)


@pytest.fixture(autouse=True)
def room_for_shells(daemon: Daemon) -> None:
    """Stop what tests before have left: the tokens of all together may have 12 shells of the local machine."""
    # Mostly there are none, which is an error of its own.
    with suppress(ClientError):
        daemon.client.shell.stop(LOCAL, all=True)


def create(daemon: Daemon, *options: str) -> str:
    done = connmgr(daemon, "token", "create", "--for", "ci", "--expires", "1h", *options)
    assert done.code == 0, done.errors
    token = done.output.strip()
    assert token.startswith("cmgr_")
    return token


@pytest.mark.parametrize(
    ("may", "words", "runs"),
    [
        ("argv:/bin/echo hello *", ["/bin/echo", "hello", "you"], True),
        ("argv:/bin/echo hello *", ["echo", "hello", "you"], True),
        ("argv:/bin/echo hello *", ["/bin/echo", "hello", "-n"], False),
        ("argv:/bin/echo hello *", ["/bin/echo", "hello", "you", "there"], False),
        ("argv:/bin/echo hello ...", ["/bin/echo", "hello", "you", "there"], True),
        ("argv:/bin/echo 'a b' x*z", ["/bin/echo", "a b", "xyz"], True),
        ("argv:/bin/echo 'a b' x*z", ["/bin/echo", "a b", "x/z"], False),
        ("argv:/bin/echo hello", ["/bin/cat", "/etc/passwd"], False),
    ],
)
def test_a_token_runs_what_it_may(daemon: Daemon, may: str, words: Sequence[str], *, runs: bool) -> None:
    token = create(daemon, "--only", MINE, "--may", may)
    foretold = connmgr(daemon, "exec", "--dry-run", "--argv", MINE, "--", *words, token=token)
    done = connmgr(daemon, "exec", "--argv", MINE, "--", *words, token=token)
    if runs:
        assert (done.code, done.output) == (0, " ".join(words[1:]) + "\n"), done.errors
        assert foretold.code == 0
        assert foretold.output.startswith("It would run by rule 0: /bin/echo")
    else:
        assert done.code == 125
        assert "No rule of the token allows it" in done.errors
        assert (foretold.code, foretold.output) == (125, "It would be refused\n")


def test_a_text_runs_where_it_is_an_argv(daemon: Daemon) -> None:
    token = create(daemon, "--only", MINE, "--may", "argv:/bin/echo *")
    assert connmgr(daemon, "exec", MINE, "--", "/bin/echo you", token=token).output == "you\n"
    for text in ("/bin/echo you; id", "/bin/echo $(id)", "/bin/echo you >/tmp/x", "cd /", "/bin/echo you\nid"):
        done = connmgr(daemon, "exec", MINE, "--", text, token=token)
        assert (done.code, done.output) == (125, ""), shlex.quote(text)


def test_a_token_may_stand_in_a_file(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(create(daemon, "--scope", "connection.read", "--only", MINE) + "\n")
    done = connmgr(daemon, "ls", "--json", "--token-file", str(file))
    assert done.code == 0, done.errors
    assert [one["connection"] for one in json.loads(done.output)] == [LOCAL]
    assert connmgr(daemon, "token", "ls", "--token-file", str(file)).code == 4


def test_tokens_are_listed_renewed_and_revoked(own_daemon: Daemon) -> None:
    token = create(own_daemon, "--scope", "job", "--quota", "5", "--at-once", "2", "--from", "127.0.0.0/8")
    listed = connmgr(own_daemon, "token", "ls")
    assert listed.output.split()[1:3] == ["ci", "valid"]
    [one] = json.loads(connmgr(own_daemon, "token", "ls", "--json").output)
    assert (one["quotaPerDay"], one["maxConcurrent"], one["from"]) == (5, 2, ["127.0.0.0/8"])
    assert token not in listed.output
    assert connmgr(own_daemon, "token", "renew", "ci", "--expires", "2h").code == 0
    assert connmgr(own_daemon, "token", "revoke", "nobody").code == 1
    for part in (one["id"][:8], one["id"][:1], one["name"][:-1]):
        assert "No token has the name or the uuid" in connmgr(own_daemon, "token", "revoke", part).errors
    assert connmgr(own_daemon, "token", "revoke", one["id"]).code == 0
    assert connmgr(own_daemon, "token", "ls").output.split()[1:3] == ["ci", "revoked"]
    done = connmgr(own_daemon, "job", "ls", token=token)
    assert done.code == 4
    assert "revoked" in done.errors


def test_a_token_is_described_to_its_holder_and_to_its_creator(own_daemon: Daemon) -> None:
    may, scope = ["--may", "argv:/bin/echo *"], ["--scope", "token.create"]
    token = create(own_daemon, "--only", MINE, *may, *scope, "--quota", "50", "--from", "127.0.0.0/8")
    child = connmgr(
        own_daemon, "token", "create", "--for", "child", "--expires", "5m", "--scope", "connection.read", token=token
    )
    assert child.code == 0, child.errors
    [own, below] = json.loads(connmgr(own_daemon, "token", "ls", "--json").output)
    for told in (
        json.loads(connmgr(own_daemon, "token", "info", "--json", token=token).output),
        json.loads(connmgr(own_daemon, "token", "info", "ci", "--json").output),
    ):
        members = ("id", "name", "expires", "scopes", "connections", "categories", "rules", "quotaPerDay", "from")
        assert {name: told[name] for name in members} == {name: own[name] for name in members}
        assert told["descendants"] == [below["id"]]
    shown = connmgr(own_daemon, "token", "info", token=token).output
    for said in (
        "ci",
        own["id"],
        "connection.read, shell.argv, token.create",
        MINE,
        "/bin/echo",
        "of 50",
        "127.0.0.0/8",
    ):
        assert said in shown, shown
    assert f"{below['id']}  child  valid" in shown
    shown = connmgr(own_daemon, "token", "info", "child").output
    assert f"the token {own['id']}, whose limits apply too" in shown
    assert "none: the scopes decide" in shown
    assert "owner, who may do everything" in connmgr(own_daemon, "token", "info").output
    assert json.loads(connmgr(own_daemon, "token", "info", "--json").output)["scopes"] == ["*"]
    assert "No token has the name" in connmgr(own_daemon, "token", "info", "").errors
    listed = [line.split() for line in connmgr(own_daemon, "token", "ls").output.splitlines()]
    assert listed[0][-2:] == ["allow", "1"]
    assert listed[1][-2:] == ["no", "rules"]


@pytest.mark.parametrize(
    ("options", "unmatched"),
    [
        (["--only", "nosuch*"], ["--only 'nosuch*'"]),
        (["--only", "nosuch*", "--only", MINE], ["--only 'nosuch*'"]),
        (["--category", "nowhere"], ["--category nowhere", "--only"]),
        (["--only", MINE, "--category", "nowhere"], ["--only 'local machine'", "--category nowhere"]),
        (["--only", ""], ["--only ''"]),
        (["--only", MINE], []),
        ([], []),
    ],
    ids=" ".join,
)
def test_a_filter_that_matches_nothing_is_reported(daemon: Daemon, options: list[str], unmatched: list[str]) -> None:
    done = connmgr(daemon, "token", "create", "--for", "x", "--expires", "1h", *options)
    assert done.code == 0, done.errors
    for one in unmatched:
        assert one in done.errors
    assert ("matches no connection" in done.errors) == bool(unmatched)
    # Nor does the token see anything then.
    assert connmgr(daemon, "token", "revoke", done.errors.splitlines()[-1].split()[0]).code == 0


def test_an_empty_list_is_not_everything(daemon: Daemon, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("[]")
    done = connmgr(daemon, "token", "create", "--for", "x", "--expires", "1h", "--rules", str(rules))
    assert (done.code, done.output) == (1, "")
    assert "has no rules" in done.errors
    body = {"name": "x", "expires": 60, "scopes": ["connection.read"]}
    for empty in ({"connections": []}, {"categories": []}):
        made = daemon.client.post("/token/create", **body, **empty)
        assert connmgr(daemon, "ls", "--json", token=made["token"]).output == "[]\n"
    with pytest.raises(ClientError, match="from"):
        daemon.client.post("/token/create", **body, **{"from": []})
    made = daemon.client.post("/token/create", **{**body, "scopes": []})
    assert connmgr(daemon, "ls", token=made["token"]).code == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--may", "rm -rf"], "does not begin with"),
        (["--may", "text:rm"], "does not begin with"),
        (["--may", "argv:"], "does not begin with"),
        (["--may", "argv:'x"], "No closing quotation"),
        (["--may", "argv:sh ..."], "mayRunOthers"),
        (["--scope", "root"], "Unknown scope"),
        (["--only", "[x"], "connections[0]"),
        (["--expires", "91d"], "is too long: at most 90d"),
    ],
    ids=" ".join,
)
def test_malformed_options_create_no_token(daemon: Daemon, options: list[str], message: str) -> None:
    done = connmgr(daemon, "token", "create", "--for", "x", "--expires", "1h", *options)
    assert done.code != 0
    assert done.output == ""
    assert message in done.errors
