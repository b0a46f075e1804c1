"""Every kind of credential is tried at every endpoint; the table says which are allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from connmgr.api.endpoint import Endpoint
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.client import Client
from connmgr.rights.scopes import SCOPES
from tests.api.wire import LOCAL, send
from tests.cli.program import run
from tests.daemon import Daemon
from tests.rights.test_scopes import endpoints, tried
from tests.rights.wire import Holder, create
from tests.streams.wire import NotUpgradedError

OF_EVERY_TOKEN = """
    /command/query /connection/types /daemon/version /token/check /token/info /vault/lock /vault/status /vault/unlock
    /vault/user/passphrase
"""
_SHELLS = "/shell/list /shell/start /shell/stop"
OF_ONE_SCOPE: Mapping[str, str] = {
    "connection.read": """
        /category/info /category/query /connection/browse /connection/info /connection/query
        /connection/terminal /tunnel/query
    """,
    "connection.write": """
        /connection/add /connection/apply /connection/refresh /connection/remove /connection/update
        /hostkey/forget /hostkey/trust /secret/encrypt /secret/sudo
    """,
    "category.write": "/category/add /category/remove",
    "shell.argv": f"""
        {_SHELLS} /connection/environment /connection/login
    """,
    "elevate": "/connection/elevate",
    "shell.any": f"""
        {_SHELLS} /connection/environment /connection/login /connection/toggle /shell/broadcast /shell/exec
        /shell/pipe
    """,
    "job": f"""
        {_SHELLS} /connection/environment /connection/login /job/info /job/input /job/kill /job/output
        /job/query /job/remove /job/wait
    """,
    "terminal": f"""
        {_SHELLS} /connection/environment /connection/login /terminal/attach/<terminal> /terminal/close
        /terminal/input /terminal/output /terminal/query /terminal/resize /terminal/screen
        /terminal/ticket
    """,
    "fs.read": f"""
        {_SHELLS} /connection/environment /connection/login /fs/archive /fs/checksum /fs/glob /fs/list
        /fs/read /fs/stat
    """,
    "fs.write": f"""
        {_SHELLS} /connection/environment /connection/login /fs/blob /fs/extract /fs/mkdir /fs/move
        /fs/remove /fs/script /fs/upload /fs/write
    """,
    "tunnel": "/connection/toggle /tunnel/query",
    "ssh.agent": "",
    "secret.decrypt": "/secret/decrypt",
    "approval.decide": "/approval/decide /approval/query",
    "vault.admin": "/audit/forget /command/remove /command/save /daemon/stop /vault/user/add /vault/user/remove",
    "token.create": "/token/create /token/lend /token/query /token/renew /token/revoke",
    "audit.read": "/audit/query /audit/verify",
    "metrics.read": "/daemon/status /metrics",
}
"""The further endpoints at which a token with one scope is not refused for lack of another."""

PASSPHRASE = "a passphrase of some length"
STOPS = "/daemon/stop"
SCRAPED = "/metrics"
REFUSED = {"not_authenticated", "invalid_token", "token_expired", "token_revoked", "scope_denied"}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose metrics have a static token."""
    file = tmp_path_factory.mktemp("static") / "token"
    file.write_text("m" * 40 + "\n")
    file.chmod(0o600)
    running = Daemon(tmp_path_factory.mktemp("credentials"), "--metrics-token-file", str(file))
    yield running
    running.stop()


def allowed(holder: Holder, *, without: str = STOPS) -> set[str]:
    """Return the endpoints that do not refuse a credential; ``without`` is not tried."""
    return {one.path for one in endpoints() if one.path != without and code_of(holder, one) not in REFUSED}


def code_of(holder: Holder, endpoint: Endpoint) -> str:
    try:
        return tried(holder, endpoint)
    except NotUpgradedError as error:
        return error.answer.code


def every(*, without: str = STOPS) -> set[str]:
    return {endpoint.path for endpoint in endpoints()} - {without}


def test_the_table_has_every_scope() -> None:
    assert list(OF_ONE_SCOPE) == list(SCOPES)


@pytest.mark.parametrize("scope", OF_ONE_SCOPE)
def test_a_token_with_one_scope_is_allowed_what_the_table_says(quiet: Daemon, scope: str) -> None:
    wanted = {*OF_EVERY_TOKEN.split(), *OF_ONE_SCOPE[scope].split()} & every()
    assert allowed(create(quiet, scope)) == wanted


def test_a_token_below_another_is_allowed_no_more_than_that(quiet: Daemon) -> None:
    parent = create(quiet, "token.create", "connection.read")
    child = parent.create("connection.read")
    assert allowed(child) == {*OF_EVERY_TOKEN.split(), *OF_ONE_SCOPE["connection.read"].split()} & every()


def test_dead_and_foreign_credentials_are_allowed_nothing(quiet: Daemon) -> None:
    client = quiet.client
    revoked = create(quiet, *SCOPES)
    parent = create(quiet, *SCOPES)
    orphan = parent.create(*SCOPES, expires=500)
    for one in (revoked, parent):
        client.post("/token/revoke", id=one.id)
    client.shell.start(LOCAL)
    terminal = client.post("/terminal/open", connection=LOCAL, command="cat")["terminal"]
    ticket = client.post("/terminal/ticket", terminal=terminal)["ticket"]
    dead = {
        "a revoked token": revoked.secret,
        "a child of a revoked token": orphan.secret,
        "an unknown token": "cmgr_" + "x" * 43,
        "an unknown session": "x" * 43,
        "nothing": "",
        "a ticket of a terminal": ticket,
        "the content of the auth file": quiet.auth_file.read_text().strip(),
    }
    wrong = {what: found for what, text in dead.items() if (found := allowed(Holder(quiet.url, "", text), without=""))}
    assert not wrong
    client.post("/terminal/close", terminal=terminal)


def test_the_static_token_of_the_metrics_is_allowed_the_metrics_alone(quiet: Daemon) -> None:
    assert allowed(Holder(quiet.url, "", "m" * 40), without="") == {SCRAPED}


def test_requests_without_any_credential_are_refused(quiet: Daemon) -> None:
    for endpoint in endpoints():
        if not isinstance(endpoint, StreamEndpoint):
            answer = send(quiet.url, endpoint.path, {}, {}, method_of(endpoint))
            assert answer.code == "not_authenticated", endpoint.path


def method_of(endpoint: Endpoint) -> str:
    return "POST" if "POST" in endpoint.methods else endpoint.methods[0]


@pytest.mark.parametrize("kind", ["auth file", "API key", "vault user"])
def test_sessions_of_the_owner_are_allowed_everything(quiet: Daemon, kind: str) -> None:
    if kind == "API key":
        done = run("api-key", environment=quiet.environment)
        client = Client(quiet.url, api_key=done.output.strip())
    else:
        client = Client(quiet.url, auth_file=quiet.auth_file)
    with client:
        client.post("/vault/status")
        if kind == "vault user":
            client.post("/vault/user/add", user="ada", passphrase=PASSPHRASE)
            client.post("/vault/unlock", user="ada", passphrase=PASSPHRASE)
        assert allowed(Holder(quiet.url, "", str(client.session_token))) == every()
