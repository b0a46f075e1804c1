"""Loans: who has unlocked a vault user lets a token use the secrets that this user opens, and never read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.errors import ConnmgrError
from tests.api.wire import DEFAULT_CATEGORY, LOCAL, add
from tests.daemon import Daemon
from tests.deadlines import eventually, eventually_equal
from tests.rights.wire import Holder, create

pytestmark = pytest.mark.needs("sudo")

PASSPHRASE = "alice's long passphrase"
DATA: dict[str, Any] = {
    "type": "shellEnvironment",
    "elevated": True,
    "host": {"storeId": LOCAL},
    "password": "hers alone",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("loans"))
    made.client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
    yield made
    made.stop()


def unlocked(daemon: Daemon) -> Client:
    client = Client(daemon.url, auth_file=daemon.auth_file)
    client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
    return client


@pytest.fixture
def alice(daemon: Daemon) -> Iterator[Client]:
    """A session of the owner that has unlocked alice."""
    with unlocked(daemon) as client:
        yield client
        client.post("/vault/lock")


@pytest.fixture
def root(alice: Client) -> Iterator[str]:
    """An elevated shell on this machine, whose password is sealed to alice."""
    made = add(alice, "root", **DATA)
    yield made
    alice.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
    alice.post("/connection/remove", connections=[made])


ALL = ("shell.any", "job", "terminal", "fs.read", "connection.read", "secret.decrypt", "token.create", "elevate")


def borrower(daemon: Daemon, alice: Client, *scopes: str, lend: Any = True, **members: Any) -> Holder:
    body: dict[str, Any] = {"name": "borrower", "expires": 600, "scopes": list(scopes or ALL), "lendSecrets": lend}
    made = alice.post("/token/create", **body, **members)
    return Holder(daemon.url, made["id"], made["token"])


def runs(holder: Holder, connection: str) -> Any:
    return holder.send("/shell/exec", connection=connection, command="id -un", start=True)


def events(daemon: Daemon, token: Holder, event: str) -> list[Any]:
    entries = daemon.client.post("/audit/query", token=token.id)["entries"]
    return [one for one in entries if one.get("event") == event]


def test_a_token_uses_a_sealed_secret_by_a_loan_alone_and_never_reads_it(
    daemon: Daemon, alice: Client, root: str
) -> None:
    without = create(daemon, *ALL)
    refused = runs(without, root)
    assert refused.code == "secret_locked"
    assert f"connmgr token lend {without.id}" in refused.json["message"]
    holder = borrower(daemon, alice)
    assert runs(holder, root).json["stdout"] == "root"
    # The shell of the owner too.
    assert runs(without, root).code == "secret_locked"
    data = holder.ok("/connection/info", connections=[root])["infos"][0]["rawData"]
    assert "hers alone" not in str(data)
    assert holder.refused("/secret/decrypt", encrypted=data["password"]) == "secret_locked"
    assert holder.ok("/vault/status")["user"] is None
    assert holder.ok("/token/info")["lent"]["user"] == "alice"
    [shown] = [one for one in alice.token.query() if one["id"] == holder.id]
    assert shown["lent"]["until"] == shown["expires"]
    [entry, *_] = [
        one for one in daemon.client.post("/audit/query", token=holder.id)["entries"] if one["action"] == "shell.exec"
    ]
    assert (entry["lent"]["user"], entry["lent"]["connections"]) == ("alice", [root])


def test_a_schedule_says_which_secrets_stay_locked_to_it(daemon: Daemon, alice: Client, root: str) -> None:
    """Nobody has unlocked them when it fires, and nothing is lent to it."""
    run = {"connections": [root, LOCAL], "command": "true"}
    holder = borrower(daemon, alice)
    added = holder.ok("/schedule/add", name="lent", every=3600, run=run)
    assert added["locked"] == [root]
    info = alice.runs.wait(alice.schedules.trigger("lent"), timeout=60)
    assert {state: count for state, count in info.counts.items() if count} == {"done": 1, "failed": 1}
    own = alice.schedules.add("own", every=3600, run={**run, "connections": [LOCAL]})
    assert own.locked is None
    assert alice.schedules.add("both", every=3600, run=run).locked == [root]
    for name in ("lent", "own", "both"):
        alice.schedules.remove(name)


def test_a_caller_who_cannot_open_the_secrets_lends_nothing(daemon: Daemon, own_daemon: Daemon) -> None:
    before = len(daemon.client.token.query())
    body: dict[str, Any] = {"name": "x", "expires": 60, "scopes": [], "lendSecrets": True}
    with pytest.raises(ClientError) as error:
        daemon.client.post("/token/create", **body)
    assert error.value.code == "vault_locked"
    assert len(daemon.client.token.query()) == before
    with pytest.raises(ClientError, match="has no users"):
        own_daemon.client.post("/token/create", **body)
    plain = create(daemon, "token.create")
    assert plain.refused("/token/create", **body) == "scope_denied"
    below = plain.create()
    assert plain.refused("/token/lend", id=below.id) == "scope_denied"
    assert plain.refused("/token/lend", id=plain.id) == "scope_denied"


@pytest.mark.parametrize("lend", ["yes", {"seconds": 0}, {"seconds": True}, {"minutes": 1}, 5])
def test_a_malformed_loan_is_refused(alice: Client, lend: Any) -> None:
    with pytest.raises(ClientError) as error:
        alice.post("/token/create", name="x", expires=60, scopes=[], lendSecrets=lend)
    assert error.value.code == "invalid_request"


def test_a_lock_of_the_lender_ends_what_runs_by_the_loan_and_unlocking_does_not_revive_it(
    daemon: Daemon, alice: Client, root: str, tmp_path: Path
) -> None:
    holder = borrower(daemon, alice)
    terminal = holder.ok("/terminal/open", connection=root, command="sleep 600")["terminal"]
    bearer = Client(daemon.url, session_token=holder.secret)
    with ThreadPoolExecutor(2) as pool, bearer, bearer.shell.pipe(root, command="echo begun; sleep 600") as pipe:
        assert next(iter(pipe))
        slow = pool.submit(
            holder.send, "/shell/exec", connection=root, start=True, command=f"echo > {tmp_path}/at; sleep 600"
        )
        eventually((tmp_path / "at").exists, "the command does not begin")
        alice.post("/vault/lock")
        assert runs(holder, root).code == "secret_locked"
        ended = slow.result(30)
        assert (ended.code, "the lender's user was locked" in str(ended.json)) == ("secret_locked", True)
        with pytest.raises((ClientError, ConnmgrError, OSError)):
            list(pipe)
    eventually(
        lambda: of(daemon.client.post("/terminal/query")["terminals"], terminal)["state"],
        "the terminal runs on",
        holds=lambda state: state != "running",
    )
    [entry] = eventually(lambda: events(daemon, holder, "loan ended"), "the end of the loan is not recorded")
    assert (entry["user"], entry["why"], entry["connections"]) == ("alice", "the lender's user was locked", [root])
    alice.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
    assert runs(holder, root).code == "secret_locked"
    assert holder.ok("/token/info")["lent"] is None
    alice.post("/token/lend", id=holder.id)
    assert runs(holder, root).status == 200


def of(terminals: list[Any], id: str) -> Any:
    return next(one for one in terminals if one["terminal"] == id)


@pytest.mark.parametrize("end", ["time", "request", "revocation", "passphrase"])
def test_a_loan_ends(daemon: Daemon, alice: Client, root: str, end: str) -> None:
    holder = borrower(daemon, alice, lend={"seconds": 3} if end == "time" else True)
    assert runs(holder, root).status == 200
    if end == "request":
        assert alice.post("/token/lend", id=holder.id, end=True)["lent"] is None
    elif end == "revocation":
        alice.post("/token/revoke", id=holder.id)
    elif end == "passphrase":
        alice.post(
            "/vault/user/passphrase", user="alice", passphrase=PASSPHRASE, newPassphrase="another long passphrase"
        )
        alice.post(
            "/vault/user/passphrase", user="alice", passphrase="another long passphrase", newPassphrase=PASSPHRASE
        )
    eventually(lambda: events(daemon, holder, "loan ended"), "the end of the loan is not recorded")
    assert runs(holder, root).code == ("token_revoked" if end == "revocation" else "secret_locked")


def test_a_loan_ends_with_its_lender_s_session_and_with_the_daemon(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--unlock-ttl", "1")
    daemon.client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
    with unlocked(daemon) as alice:
        root = add(alice, "root", **DATA)
        holder = borrower(daemon, alice)
        assert runs(holder, root).status == 200
        # Uses by the token do not keep the lender's session in use.
        eventually(lambda: runs(holder, root).status, "the loan does not end", holds=lambda status: status != 200)
        assert runs(holder, root).code == "secret_locked"
        [entry] = eventually(lambda: events(daemon, holder, "loan ended"), "the end of the loan is not recorded")
        assert entry["why"] == "the lender's user was locked"


def test_a_token_below_has_at_most_the_loan_of_its_parent(daemon: Daemon, alice: Client, root: str) -> None:
    parent = borrower(daemon, alice)
    child = parent.create("shell.any")
    assert runs(child, root).code == "secret_locked"
    parent.ok("/token/lend", id=child.id, seconds=300)
    assert runs(child, root).status == 200
    alice.post("/token/lend", id=parent.id, end=True)
    assert runs(child, root).code == "secret_locked"
    [entry] = eventually(lambda: events(daemon, child, "loan ended"), "the end of the loan is not recorded")
    assert entry["why"] == "the loan of the token that it was created with had ended"
    with pytest.raises(ClientError) as error:
        alice.post("/token/lend", id=child.id)
    assert (error.value.code, parent.id in error.value.message) == ("scope_denied", True)
    alice.post("/token/lend", id=parent.id)
    assert runs(child, root).code == "secret_locked"
    assert parent.create("shell.any", lendSecrets={"seconds": 60}).ok("/token/info")["lent"]["user"] == "alice"


def test_a_loan_by_another_user_ends_the_one_in_whose_place_it_comes(daemon: Daemon, alice: Client, root: str) -> None:
    alice.post("/vault/user/add", user="bob", passphrase=PASSPHRASE)
    parent = borrower(daemon, alice, "shell.any", "terminal", "token.create")
    child = parent.create("shell.any", "terminal")
    parent.ok("/token/lend", id=child.id)
    terminals = [
        each.ok("/terminal/open", connection=root, command="sleep 600")["terminal"] for each in (parent, child)
    ]
    with Client(daemon.url, auth_file=daemon.auth_file) as bob:
        bob.post("/vault/unlock", user="bob", passphrase=PASSPHRASE)
        bob.post("/token/lend", id=parent.id)
        for terminal in terminals:
            eventually(
                lambda terminal=terminal: of(daemon.client.post("/terminal/query")["terminals"], terminal)["state"],
                "the terminal runs on",
                holds=lambda state: state != "running",
            )
        whys = [[event["why"] for event in events(daemon, each, "loan ended")] for each in (parent, child)]
        assert whys == [
            ["another one took its place"],
            ["the loan of the token that it was created with had ended"],
        ]
        alice.post("/token/lend", id=parent.id)
        assert runs(parent, root).status == 200
        assert runs(child, root).code == "secret_locked"
        bob.post("/vault/user/remove", user="bob")


def test_a_loan_opens_nothing_beyond_the_sight_of_its_token(daemon: Daemon, alice: Client, root: str) -> None:
    blind = borrower(daemon, alice, connections=["web*"])
    assert runs(blind, root).code == "unknown_connection"


def test_a_loan_is_not_used_for_what_a_token_has_added_changed_or_moved(
    daemon: Daemon, alice: Client, root: str
) -> None:
    prod = alice.post("/category/add", name="prod", parent=DEFAULT_CATEGORY)["category"]
    alice.post("/secret/sudo", category=prod, password="for all of prod")
    mine = add(alice, "owned", type="local", shell="/bin/bash")
    writer = borrower(daemon, alice, *ALL, "connection.write", "category.write")
    owned = {"connection": mine, "command": "id -un", "start": True, "elevate": {"user": "root"}}
    try:
        # A password for sudo of a category must not go to a host that a token brings there.
        data = {"type": "local", "shell": "/bin/dash"}
        theirs = writer.ok("/connection/add", name="theirs", data=data, category=prod, validate=False)["connection"]
        refused = writer.send("/shell/exec", **{**owned, "connection": theirs})
        assert (refused.code, "because a token has added or changed" in refused.json["message"]) == (
            "secret_locked",
            True,
        )
        applied = writer.ok(
            "/connection/apply",
            add=[{"name": "more", "data": {**data, "shell": "/bin/sh"}, "category": ["default", "prod"]}],
        )
        more = applied["added"][0]["connection"]
        assert writer.refused("/shell/exec", **{**owned, "connection": more}) == "secret_locked"
        alice.post("/connection/update", connection=mine, category=prod)
        assert writer.send("/shell/exec", **owned).status == 200
        alice.post("/connection/update", connection=mine, category=DEFAULT_CATEGORY)
        writer.ok("/connection/update", connection=mine, category=prod)
        assert writer.refused("/shell/exec", **owned) == "secret_locked"
        # Another token is no better, and a new name of the owner's settles nothing.
        alice.post("/connection/update", connection=mine, name="owned still")
        assert borrower(daemon, alice).refused("/shell/exec", **owned) == "secret_locked"
        alice.post("/connection/update", connection=mine, data={"type": "local", "shell": "/bin/bash"})
        assert writer.send("/shell/exec", **owned).status == 200
        # What is lent is not there for changes: the secret stays with its host.
        thief = {**writer.ok("/connection/info", connections=[root])["infos"][0]["rawData"], "host": {"storeId": mine}}
        assert writer.refused("/connection/update", connection=root, data=thief) == "secret_locked"
        assert writer.refused("/connection/add", name="thief", data=thief, validate=False) == "secret_locked"
        assert writer.refused("/connection/update", connection=mine, data={"type": "local", "shell": "/bin/sh"}) in (
            "scope_denied",
            "secret_locked",
        )
        assert writer.refused("/hostkey/forget", connection=mine) == "scope_denied"
        # Commands of a connection of its own do not run with the rights of a lent one below.
        above = {"type": "shellEnvironment", "elevated": False, "host": {"storeId": root}, "commands": ["id"]}
        over = writer.ok("/connection/add", name="above", data=above, validate=False)["connection"]
        assert runs(writer, over).code == "secret_locked"
        alice.post("/connection/remove", connections=[over])
        assert runs(writer, root).status == 200
    finally:
        alice.post("/category/remove", categories=[prod], removeChildrenCategories=True, removeContents=True)


def test_a_broadcast_and_a_job_use_a_loan(daemon: Daemon, alice: Client, root: str) -> None:
    holder = borrower(daemon, alice)
    lines = holder.send("/shell/broadcast", connections=[root, LOCAL], command="id -un").body
    assert lines.count(b'"exitCode":0') == 2
    job = holder.ok("/job/start", connection=root, command="echo by a loan")["job"]
    eventually(
        lambda: holder.send("/job/output", job=job).json,
        "the job prints nothing",
        holds=lambda output: "by a loan" in str(output),
    )
    alice.post("/vault/lock")
    assert holder.refused("/job/output", job=job) == "secret_locked"
    assert b"secret_locked" in holder.send("/shell/broadcast", connections=[root], command="id -un").body


def test_a_token_that_looks_at_a_terminal_of_the_owner_leaves_it_with_the_loan(
    daemon: Daemon, alice: Client, root: str
) -> None:
    holder = borrower(daemon, alice)
    terminal = alice.post("/terminal/open", connection=root, command="sleep 600")["terminal"]
    with Client(daemon.url, session_token=holder.secret) as bearer:
        attached = bearer.terminal.attach(terminal)
        with attached:

            def clients() -> int:
                return int(of(alice.post("/terminal/query")["terminals"], terminal)["clients"])

            eventually_equal(clients, 1, "the token is not attached")
            alice.post("/token/lend", id=holder.id, end=True)
            eventually_equal(clients, 0, "the token stays attached")
    assert of(alice.post("/terminal/query")["terminals"], terminal)["state"] == "running"
    alice.post("/terminal/close", terminal=terminal)
