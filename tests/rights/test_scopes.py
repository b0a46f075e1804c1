"""Every endpoint is tried with a token that lacks one scope, for each scope; the policy says which refuse it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from marshmallow.fields import List

from connmgr.api import docs, page
from connmgr.api.app import GROUPS
from connmgr.api.download import TicketedEndpoint
from connmgr.api.endpoint import Endpoint
from connmgr.api.schema import FilePath, Id, MessageSchema
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.contract.common import ShellNamed
from connmgr.contract.job import JobRequest
from connmgr.contract.message import Message
from connmgr.contract.shell import BroadcastRequest
from connmgr.contract.terminal import TerminalRequest
from connmgr.rights.authorisation import subject_fields
from connmgr.rights.ground import RunRequest
from connmgr.rights.scopes import ACTIONS, ARGV, SCOPES, TEXT, missing
from tests.api.wire import NOBODY, send
from tests.daemon import Daemon
from tests.rights.wire import Holder, create
from tests.streams.wire import Stream

# Requests to run commands need a command, which decides the scope; its connection does not exist. Other requests are
# empty, because the scope is checked before the request.
BODIES: Mapping[str, Mapping[str, Any]] = {
    # It would not end.
    "/event/stream": {"kinds": []},
    "/job/start": {"connection": NOBODY, "argv": ["true"]},
    "/schedule/add": {"name": "s", "every": 60, "run": {"connections": [NOBODY], "argv": ["true"]}},
    "/run/start": {"connections": [NOBODY], "command": "true | true"},
    "/shell/broadcast": {"connections": [NOBODY], "command": "true | true"},
    "/shell/exec": {"connection": NOBODY, "command": "true | true"},
    "/terminal/open": {"connection": NOBODY},
}

PUBLIC = {"handshake", "web.login"}
"""Actions that nobody needs a token for."""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a new vault that no other test uses."""
    running = Daemon(tmp_path_factory.mktemp("scopes"))
    yield running
    running.stop()


def endpoints() -> Iterator[Endpoint]:
    for group in GROUPS:
        yield from (one for one in group.endpoints if not one.public and not isinstance(one, TicketedEndpoint))


def tried(holder: Holder, endpoint: Endpoint) -> str:
    """Send a request to an endpoint, and return the code of the error, or ``ok``."""
    if isinstance(endpoint, StreamEndpoint) and "POST" not in endpoint.methods:
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


def is_missing(endpoint: Endpoint, lacking: str) -> bool:
    """Whether the request needs a scope that the token lacks."""
    scopes = set(SCOPES) - {lacking}
    to_run = (ARGV if endpoint.path == "/job/start" else TEXT) if endpoint.action.runs else scopes
    return missing(endpoint.action.name, scopes) is not None or scopes.isdisjoint(to_run)


@pytest.mark.parametrize("lacking", SCOPES)
def test_a_token_without_one_scope_is_refused_only_what_needs_it(quiet: Daemon, lacking: str) -> None:
    holder = create(quiet, *(scope for scope in SCOPES if scope != lacking))
    wrong = []
    for endpoint in endpoints():
        if endpoint.action.name == "daemon.stop" and lacking != "vault.admin":
            continue
        code = tried(holder, endpoint)
        if (code == "scope_denied") != (is_missing(endpoint, lacking)):
            wrong.append((endpoint.path, code))
    assert not wrong
    refused = sum(is_missing(endpoint, lacking) for endpoint in endpoints())
    print(f"{lacking:16} lacking: {refused} of {sum(1 for _ in endpoints())} endpoints refuse, and the others do not")


def test_a_token_with_all_scopes_may_not_do_what_is_the_owner_s_alone(quiet: Daemon) -> None:
    holder = create(quiet, *SCOPES)
    refused = {
        endpoint.path
        for endpoint in endpoints()
        if endpoint.action.name != "daemon.stop" and tried(holder, endpoint) == "scope_denied"
    }
    signers = {f"/ca/{what}" for what in ("host", "init", "limit", "remove", "rotate")}
    inventory = {f"/inventory/{what}" for what in ("add", "query", "remove", "renew")}
    recovery = {f"/vault/recovery/{what}" for what in ("create", "query", "revoke", "rotate", "use")}
    assert refused == {"/multiplex/forget", "/multiplex/keep", "/undo/read"} | signers | inventory | recovery


def test_a_token_without_scopes_may_use_few_endpoints(quiet: Daemon) -> None:
    holder = create(quiet)
    open_ = {endpoint.path for endpoint in endpoints() if tried(holder, endpoint) != "scope_denied"}
    assert open_ == {
        "/command/query",
        "/connection/types",
        "/daemon/version",
        "/event/stream",
        "/event/ticket",
        "/token/check",
        "/token/info",
        "/vault/lock",
        "/vault/status",
        "/vault/unlock",
        "/vault/user/passphrase",
        "/web/logout",
        "/web/confirm",
        "/web/ticket",
    }


def test_the_scopes_and_the_endpoints_have_the_same_actions() -> None:
    pages = (*docs.group_of(GROUPS).endpoints, *page.group.endpoints)
    declared = {endpoint.action.name for endpoint in (*endpoints(), *pages)}
    assert not declared - ACTIONS, "every action needs a line in rights/scopes.py"
    assert not ACTIONS - declared - PUBLIC, "no endpoint has the action of this line of rights/scopes.py"


NO_SUBJECTS = {
    "approval": "the view looks whether its connections are in sight",
    "blob": "of the caller's own",
    "change": "the owner's alone",
    "changes": "the view looks whether the caller, or a token below it, has made them, on `connection`",
    "id": "a token's: the view looks whether the caller has made it",
    "members": "below `path`",
    "pattern": "what it matches is looked at where it is found",
    "recording": "the view looks whether its connection is in sight",
    "recordings": "as `recording`",
    "run": "the view looks whether the caller, or a token below it, has started it",
    "remove": "a batch is asked about entry by entry",
}
"""Fields that hold ids or paths, and why authorisation does not look at them."""


def subjects(kind: type[Message]) -> set[str]:
    """Return the fields of a class of requests by which authorisation finds what it is about."""
    works = {"job": JobRequest, "terminal": TerminalRequest}
    return {*subject_fields(kind), *(name for name, base in works.items() if issubclass(kind, base))}


def test_every_id_and_path_of_a_request_is_authorised() -> None:
    unseen = {
        name: endpoint.path
        for endpoint in endpoints()
        if isinstance(endpoint.request, MessageSchema)
        for name, field in endpoint.request.fields.items()
        if isinstance(field.inner if isinstance(field, List) else field, Id | FilePath)
        and name not in subjects(endpoint.request.made_of) | NO_SUBJECTS.keys()
    }
    assert not unseen, "rights/authorisation.py does not look at these fields, so a token's sight would not limit them"


def test_every_endpoint_describes_the_error_of_a_connection_that_a_token_does_not_see(daemon: Daemon) -> None:
    described = send(daemon.url, "/openapi.json", method="GET").json["paths"]
    silent = {
        endpoint.path
        for endpoint in endpoints()
        if isinstance(endpoint.request, MessageSchema)
        and {"connection", "connections"} & subjects(endpoint.request.made_of) & endpoint.request.fields.keys()
        and "`unknown_connection`" not in json.dumps(described[endpoint.path.replace("<", "{").replace(">", "}")])
    }
    assert not silent


def test_every_request_that_asks_for_another_user_is_elevated() -> None:
    asking = {
        endpoint.path: endpoint.request.made_of
        for endpoint in endpoints()
        if isinstance(endpoint.request, MessageSchema) and "elevate" in endpoint.request.fields
    }
    assert "/fs/read" in asking
    others = {path for path, kind in asking.items() if not issubclass(kind, ShellNamed | BroadcastRequest)}
    assert others == set(), "api/selection.py does not look at these requests, so they would run as the login's user"


def test_exactly_the_requests_that_say_what_to_run_are_subject_to_the_rules_over_commands() -> None:
    declared = {endpoint.path for endpoint in endpoints() if endpoint.action.runs}
    ruled = {
        endpoint.path
        for endpoint in endpoints()
        if isinstance(endpoint.request, MessageSchema) and issubclass(endpoint.request.made_of, get_args(RunRequest))
    }
    assert (
        declared
        == ruled
        == {
            "/shell/exec",
            "/shell/broadcast",
            "/shell/pipe",
            "/job/start",
            "/run/start",
            "/terminal/open",
        }
    )


def test_the_page_of_the_description_needs_no_token(daemon: Daemon) -> None:
    assert send(daemon.url, "/openapi.json", method="GET").status == 200
