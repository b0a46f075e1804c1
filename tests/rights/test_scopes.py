"""For each scope a token that has all but it: every endpoint is tried, and refuses just what the policy says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from connmgr.api.app import GROUPS
from connmgr.api.endpoint import Endpoint
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.rights.scopes import ACTIONS, ARGV, RUNS_COMMANDS, SCOPES, TEXT, missing
from tests.api.wire import NOBODY, send
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.rights.wire import Holder, create
from tests.streams.wire import Stream

# What is run tells which scope it needs, and it runs nowhere. Other requests are empty: who lacks a scope is refused
# before anything of a request is looked at.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/job/start": {"connection": NOBODY, "argv": ["true"]},
    "/shell/broadcast": {"connections": [NOBODY], "command": "true | true"},
    "/shell/exec": {"connection": NOBODY, "command": "true | true"},
    "/terminal/open": {"connection": NOBODY},
}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that nobody else uses: its vault is as it was made."""
    running = Daemon(tmp_path_factory.mktemp("scopes"))
    yield running
    running.stop()


def endpoints() -> Iterator[Endpoint]:
    for group in GROUPS:
        yield from (endpoint for endpoint in group.endpoints if not endpoint.public)


def tried(holder: Holder, endpoint: Endpoint) -> str:
    """Send a request to an endpoint, and return the code of the error, or ``ok``."""
    if isinstance(endpoint, StreamEndpoint):
        return streamed(holder, endpoint)
    method = "POST" if "POST" in endpoint.methods else endpoint.methods[0]
    body = BODIES.get(endpoint.path, {}) if method == "POST" else None
    answer = send(holder.url, endpoint.path, body, {"Authorization": f"Bearer {holder.secret}"}, method)
    return "ok" if answer.status < 400 else answer.code


def streamed(holder: Holder, endpoint: Endpoint) -> str:
    if not endpoint.first_message:  # type: ignore[attr-defined]
        path = endpoint.path.replace("<terminal>", NOBODY)
        headers = {
            "Authorization": f"Bearer {holder.secret}",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        }
        return send(holder.url, path, None, headers, "GET").code
    with contextlib.closing(Stream(holder.url, endpoint.path, holder.secret)) as stream:
        stream.ask(connection=NOBODY, command="true | true")
        return str(stream.finish().error["code"])


@pytest.mark.parametrize("lacking", SCOPES)
def test_a_token_without_one_scope_is_refused_what_needs_it_and_nothing_else(quiet: Daemon, lacking: str) -> None:
    holder = create(quiet, *(scope for scope in SCOPES if scope != lacking))
    wrong = []
    for endpoint in endpoints():
        if endpoint.action == "daemon.stop" and lacking != "vault.admin":
            continue
        runs = () if endpoint.action not in RUNS_COMMANDS else (ARGV if endpoint.action == "job.start" else TEXT,)
        needed = missing(endpoint.action, set(SCOPES) - {lacking}, *runs)
        code = tried(holder, endpoint)
        if (code == "scope_denied") != (needed is not None):
            wrong.append((endpoint.path, code))
    assert not wrong
    refused = sum(missing(endpoint.action, set(SCOPES) - {lacking}) is not None for endpoint in endpoints())
    print(f"{lacking:16} lacking: {refused} of {sum(1 for _ in endpoints())} endpoints refuse, and the others do not")


def test_a_token_without_any_scope_may_do_next_to_nothing(quiet: Daemon) -> None:
    holder = create(quiet)
    open_ = {endpoint.path for endpoint in endpoints() if tried(holder, endpoint) != "scope_denied"}
    assert open_ == {
        "/command/query",
        "/connection/types",
        "/daemon/version",
        "/token/check",
        "/token/info",
        "/vault/lock",
        "/vault/status",
        "/vault/unlock",
        "/vault/user/passphrase",
    } & {endpoint.path for endpoint in endpoints()}


def test_every_endpoint_has_an_action_that_the_policy_knows() -> None:
    declared = {endpoint.action for endpoint in endpoints()}
    assert declared <= ACTIONS, "an action without a scope is open to no token: declare it in rights/scopes.py"


def test_the_page_of_the_description_needs_no_token(start_daemon: StartDaemon) -> None:
    assert send(start_daemon().url, "/openapi.json", method="GET").status == 200
