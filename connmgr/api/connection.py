"""``/connection``: stored connections, and the installed connection types."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from connmgr import errors
from connmgr.api.answer import require_few_repeated
from connmgr.api.body import LISTED_VALUES
from connmgr.api.connection_data import (
    ADD,
    UPDATE,
    ConnectionData,
    changed_fields,
    described,
    dialled_hosts,
    end_what_runs,
    facts_of,
    in_categories,
    log_command,
    publish_changes,
    publish_removed,
    require_ids,
    see_off,
    usage_categories,
)
from connmgr.api.context import caller, cancellation, detail, note_forwarding
from connmgr.api.endpoint import Group
from connmgr.api.refresh import NOTHING_INSIDE, look_inside
from connmgr.api.running import EXAMPLE, OPENING
from connmgr.api.selection import Wanted, each_elevated
from connmgr.api.services import services
from connmgr.computing import drained, in_pieces
from connmgr.contract.connection import (
    ConnectionAddRequest,
    ConnectionAddResponse,
    ConnectionBrowseRequest,
    ConnectionElevateRequest,
    ConnectionElevateResponse,
    ConnectionEnvironmentRequest,
    ConnectionEnvironmentResponse,
    ConnectionInfoRequest,
    ConnectionInfoResponse,
    ConnectionLabelRequest,
    ConnectionLabelResponse,
    ConnectionLoginRequest,
    ConnectionLoginResponse,
    ConnectionQueryRequest,
    ConnectionQueryResponse,
    ConnectionRefreshRequest,
    ConnectionRefreshResponse,
    ConnectionRemoveRequest,
    ConnectionTerminalRequest,
    ConnectionToggleRequest,
    ConnectionUpdateRequest,
    FoundName,
    ProblemInfo,
    ShownResponse,
    SourceInfo,
    TypeInfo,
    TypesResponse,
)
from connmgr.contract.message import message_of
from connmgr.errors import OperationError, ValidationFailed
from connmgr.json_schema import json_schema, source_schema
from connmgr.links.chain import Target, environment_of
from connmgr.links.channels import lease_live_link
from connmgr.links.channels import toggle as toggle_remote
from connmgr.plugin import Deadline, Toggled, Tunnel
from connmgr.processes import connected_to_own
from connmgr.rights.actions import Action, changes_what_others_need, chooses_list, lends_agent, toggles
from connmgr.secrets.principals import Lending
from connmgr.vault import Connection
from connmgr.vault.batch import as_fields

group = Group("connection", "Stored connections, and the types of connections that are installed.")


REMOVE = Action("connection.remove", limits=[changes_what_others_need])

TUNNEL = "5c1f1a86-1d8e-4d1c-93a4-3a1f6d0c2b77"
SSH = {"type": "ssh", "host": "build.example.org", "user": "ci", "password": "correct horse"}


@group.endpoint(
    "/query",
    has_large_answer=True,
    reads=True,
    audited=False,
    raises=[errors.IntegrityError],
    example={"categoryFilter": "*", "connectionFilter": "build*", "typeFilter": "ssh"},
    answer={"found": ["3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11"]},
)
def query(request: ConnectionQueryRequest) -> ConnectionQueryResponse:
    """Find connections by category, path, type, name, labels and facts: all filters and the condition must match.

    Filters ignore case and match the whole path: `*` within one segment, `**` across segments, `?`, `[…]`, `[!…]`,
    `{a,b}`. `*` alone means everything, and `x/**` matches `x` too. A filter has at most 1,000 characters.
    """
    connections, authorisation = services().vault.connections, services().authorisation
    names = request.name_filter
    filters = (request.category_filter, request.connection_filter, request.type_filter, names, request.where)
    if not request.names:
        return ConnectionQueryResponse(found=authorisation.visible(caller(), connections.query(*filters)))
    listed, categories = in_categories(lambda: connections.listed(*filters))
    if caller().grant is not None:
        visible = set(authorisation.visible(caller(), [connection.id for connection in in_pieces(listed)]))
        listed = [connection for connection in in_pieces(listed) if connection.id in visible]
    usage = usage_categories()
    found = [connection.id for connection in in_pieces(listed)]
    # Made one by one while the answer is encoded.
    rows = (
        FoundName(
            category=categories[connection.category],
            name=list(connection.path),
            type=connection.type,
            usage_category=usage.get(connection.type),
        )
        for connection in drained(listed)
    )
    return ConnectionQueryResponse(found=found, names=cast("list[FoundName]", rows))


@group.endpoint(
    "/info",
    has_content=True,
    most_values=LISTED_VALUES,
    has_large_answer=True,
    reads=True,
    about=("connections",),
    audited=False,
    raises=[errors.UnknownConnection, errors.IntegrityError],
    example={"connections": [EXAMPLE]},
    answer={
        "infos": [
            {
                "connection": EXAMPLE,
                "category": ["default"],
                "name": ["local machine"],
                "type": "local",
                "rawData": {"type": "local"},
                "usageCategory": "shell",
                "lastUsed": "2025-01-31T08:15:00.000000Z",
                "lastModified": "2025-01-30T17:02:11.493021Z",
                "state": {},
                "cache": {},
                "labels": {"env": "prod"},
            }
        ]
    },
)
def info(request: ConnectionInfoRequest) -> ConnectionInfoResponse:
    """Describe connections. An unknown uuid fails the whole request."""
    # Each once, because reading one costs more than naming it.
    distinct = list(dict.fromkeys(request.connections))
    connections, categories = in_categories(lambda: services().vault.connections.infos(distinct))
    usage = usage_categories()
    infos = {
        connection.id: described(
            connection, categories[connection.category], usage.get(connection.type), **_more(connection, request)
        )
        for connection in connections
    }
    require_few_repeated("connections", request.connections, infos)
    return ConnectionInfoResponse(infos=[infos[id] for id in request.connections])


def _more(connection: Connection, request: ConnectionInfoRequest) -> dict[str, Any]:
    more: dict[str, Any] = {"dialled": dialled_hosts(connection)} if request.dialled else {}
    if request.log is not None:
        more["log"] = log_command(connection, follow=request.log.follow, lines=request.log.lines)
    return more | ({"created": connection.created} if request.created else {})


@group.endpoint(
    "/add",
    has_content=True,
    action=ADD,
    about=("name", "category"),
    raises=[*OPENING, errors.UnknownCategory, errors.ConnectionCycle, errors.TemporaryLimit],
    waits=True,
    example={"name": "build server", "data": SSH, "validate": False},
    answer={"connection": "3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11", "added": True},
)
def add(request: ConnectionAddRequest) -> ConnectionAddResponse:
    """Store a connection and return its uuid.

    If an equivalent connection is stored (same type, same data after defaults, secrets compared in plain text), nothing
    is added and the answer has its uuid; its name and category stay. Secrets sent as plain strings are encrypted before
    they are stored. With `validate` a connection that cannot be opened is answered 400 with the `code` of the cause.
    """
    data = ConnectionData.load(request.data, caller().access)
    if request.validates:
        _check_category(request.category)
        _validate(data, None)
    if request.temporary:
        id, is_new = _keep_temporary(request.name, data)
        detail(connection=id, temporary=True)
        if is_new:
            publish_changes({}, [id])
        return ConnectionAddResponse(connection=id, added=is_new)
    id, is_new = services().vault.connections.add(
        request.name,
        data.kind.name,
        data.sealed,
        fingerprint=data.fingerprint,
        same=data.equals,
        # The answer must not reveal an equivalent connection out of sight.
        is_visible=lambda id: bool(services().authorisation.visible(caller(), [id])),
        category=request.category,
        references=data.references,
        parent=data.parent,
        folder=data.folder,
        token=caller().token,
        labels=request.labels,
    )
    detail(connection=id, **({} if is_new else {"added": False}))
    if is_new:
        publish_changes({}, [id])
    return ConnectionAddResponse(connection=id, added=is_new)


@group.endpoint(
    "/elevate",
    about=("connection", "user"),
    raises=[errors.UnknownConnection, errors.IntegrityError],
    example={"connection": EXAMPLE, "user": "root"},
    answer={"connection": f"{EXAMPLE}+owner+root"},
)
def elevate(request: ConnectionElevateRequest) -> ConnectionElevateResponse:
    """Return the id of a connection that runs as another user, by sudo over a connection.

    Nothing is stored and no machine is asked. The elevated connection has shells, jobs and files of its own. It belongs
    to its caller: the owner's are not those of a token. Other requests take `elevate` in place of its id.
    """
    grant = caller().grant
    wanted = Wanted(request.user, caller().token, gives=True, password=request.password)
    # The password is kept below, once the connection is known to exist and to be in sight.
    [id] = each_elevated([request.connection], replace(wanted, password=None))
    if grant is not None:
        services().authorisation.visibility.require(grant, [id])
    # It exists, and the connection below it can be elevated.
    services().vault.connections.get(id)
    each_elevated([request.connection], wanted)
    return ConnectionElevateResponse(connection=id)


@group.endpoint(
    "/update",
    has_content=True,
    action=UPDATE,
    about=("connection", "name", "category"),
    raises=[*OPENING, errors.UnknownCategory, errors.ConnectionCycle, errors.ConnectionChanged, errors.ShellBusy],
    waits=True,
    example={"connection": "3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11", "name": "build server (old)"},
)
def update(request: ConnectionUpdateRequest) -> None:
    """Change a connection's name, data, category or labels. Fields that are left out stay.

    Connections in it that share its category move with it. New data stops the shell of the connection, and the shells
    of connections over it.
    """
    id = request.connection
    connections = services().vault.connections
    stored = connections.get(id)
    raw = request.data
    if raw is None and request.validates:
        # What is validated then is the connection as it is stored.
        raw = {"type": stored.type, **stored.data}
    data = None if raw is None else ConnectionData.load(raw, caller().access, kind=stored.type)
    if data is not None and request.validates:
        _check_category(request.category)
        _validate(data, stored.dependency_digest if request.data is None else None)
    fields = {"name": request.name, "category": request.category, "labels": request.labels}
    changes: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if data is not None and request.data is not None:
        changes |= {**as_fields(data), "permits": partial(services().vault.principals.permit, access=caller().access)}
    before = facts_of([id])
    moved = connections.update(id, **changes, token=caller().token, known=request.last_modified)
    detail(changed=changed_fields(stored, changes), **({"moved": moved} if moved else {}))
    publish_changes(before, [id])
    if request.data is not None:
        end_what_runs(connections.with_dependents([id]))


@group.endpoint(
    "/label",
    has_content=True,
    action=Action("connection.label", limits=[chooses_list]),
    most_values=LISTED_VALUES,
    about=("connections", "remove"),
    raises=[errors.UnknownConnection, errors.IntegrityError],
    example={"connections": [EXAMPLE], "labels": {"env": "prod"}, "remove": ["canary"]},
    answer={"changed": [EXAMPLE]},
)
def label(request: ConnectionLabelRequest) -> ConnectionLabelResponse:
    """Set labels of connections, and take labels away: on all of them, or on none.

    Labels say what a connection is for, and conditions (`where`) choose by them. They change neither where a connection
    leads nor an approval.
    """
    before = facts_of(request.connections)
    changed = services().vault.connections.relabel(request.connections, request.labels, request.remove)
    publish_changes(before, changed)
    detail(labels=dict(request.labels), changed=len(changed))
    return ConnectionLabelResponse(changed=changed)


@group.endpoint(
    "/remove",
    has_content=True,
    most_values=LISTED_VALUES,
    action=REMOVE,
    about=("connections",),
    raises=[errors.UnknownConnection, errors.ProtectedEntry, errors.ShellBusy],
    waits=True,
    example={"connections": ["3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11"]},
)
def remove(request: ConnectionRemoveRequest) -> None:
    """Remove connections and all connections over them, and stop their shells. The local machine stays.

    Their jobs are forgotten too. Running jobs go on. The files of other jobs are removed from the remote host if a link
    is open.
    """
    before = facts_of(request.connections)
    removed = services().vault.connections.remove(request.connections)
    publish_removed(removed, before)
    see_off(removed, request.connections)


@group.endpoint(
    "/refresh",
    about=("connection",),
    raises=[*OPENING, errors.ShellBusy],
    waits=True,
    example={"connection": EXAMPLE},
    answer={"added": [], "gone": [], "skipped": []},
)
def refresh(request: ConnectionRefreshRequest) -> ConnectionRefreshResponse:
    """Open a connection, store what it finds as the `state`, and close it again.

    For a tunnel, the connection that it goes through is opened. For a host of containers, each container gets a
    connection below the host's, in its category, and its `state` says whether it is `running`. The connection of a
    container that has disappeared stays, with `gone` in its `state`.
    """
    id, connections = request.connection, services().vault.connections
    stored = connections.get(id)
    if isinstance(kind := services().registry.get(stored.type), Tunnel):
        services().tunnels.probe(stored.data[kind.via or ""], caller().access)
        connections.set_state(id, {})
        publish_changes(facts_of([id]), [id])
        return NOTHING_INSIDE
    before = facts_of([id])
    services().shells.refresh(id, caller().access)
    inside = look_inside(id)
    # The states of those inside have been looked at, too.
    publish_changes(before, {*before, *inside.added})
    detail(added=len(inside.added), gone=len(inside.gone), skipped=len(inside.skipped))
    return inside


@group.endpoint(
    "/environment",
    has_content=True,
    reads=True,
    audited=False,
    about=("connection", "connections"),
    raises=[
        errors.UnknownConnection,
        errors.UnknownType,
        errors.ConnectionCycle,
        errors.IntegrityError,
        errors.TransportUnsupported,
    ],
    example={"connection": EXAMPLE},
    answer={"send": ["LANG", "LC_*"], "set": {}},
)
def environment(request: ConnectionEnvironmentRequest) -> ConnectionEnvironmentResponse:
    """Tell which variables of its environment a client sends, as `ssh` does by SendEnv, and which are set by SetEnv.

    They come from the setting `send-env`, from `~/.ssh/config`, and from `sendEnv` and `setEnv` of the connection.
    """
    vault, registry = services().vault, services().registry
    rule = partial(environment_of, vault, registry, send_env=services().settings.send_env)
    if request.connection is not None:
        variables = rule(Target.stored(vault.connections.get(request.connection)))
        return ConnectionEnvironmentResponse(send=list(variables.patterns), set=variables.values)
    # One that has been removed is the business of the request that follows.
    require_ids(request.connections or ())
    names: dict[str, None] = {}
    for stored in vault.connections.each(request.connections or ()).values():
        # What is wrong with one of them, the request to it reports.
        with suppress(errors.ConnmgrError):
            if isinstance(stored, Connection):
                names |= dict.fromkeys(rule(Target.stored(stored)).patterns)
    return ConnectionEnvironmentResponse(send=list(names), set={})


@group.endpoint(
    "/login",
    action=Action("connection.login", limits=[lends_agent]),
    about=("connection",),
    raises=[*OPENING, errors.ShellBusy],
    waits=True,
    example={"connection": EXAMPLE, "agent": "/tmp/ssh-4gkVLnZ0/agent.4711"},  # noqa: S108 - an example
    answer={"opened": True},
)
def login(request: ConnectionLoginRequest) -> ConnectionLoginResponse:
    """Log in to a connection with what the client lends, and keep the link open for at least a minute.

    After `auth_failed` a client can lend what the error names: passphrases for its `key`, and an ssh-agent if it has
    `agent`. Then it repeats its request. The daemon uses both for this login alone, and keeps neither; an agent that
    the connection forwards (`forwardAgent`) is used until the link closes. The link is shared as any other.
    """
    daemon, path = services(), request.agent
    if path is not None and not path.startswith("/"):
        raise errors.InvalidRequest("agent: Not an absolute path.")
    if path is not None and path == os.environ.get("SSH_AUTH_SOCK"):
        # Its keys would only use up the host's attempts once more.
        raise errors.InvalidRequest("agent: The daemon's own agent, which it asks by itself.")
    asker = replace(
        caller().access.asker,
        agent=None if path is None else partial(connected_to_own, path),
        passphrases={lent.key: lent.passphrase for lent in request.passphrases},
    )
    detail(**({"agent": "lent"} if path is not None else {}), passphrases=len(asker.passphrases))
    access = Lending(caller().access, asker)
    deadline = Deadline(daemon.settings.start_timeout)
    lease = lease_live_link(daemon.links, request.connection, access, deadline, cancellation())
    try:
        daemon.idle_links.keep(request.connection, lease)
    finally:
        lease.release()
    detail(opened=lease.opener)
    note_forwarding(lease.link.first)
    return ConnectionLoginResponse(opened=lease.opener)


@group.endpoint(
    "/types",
    reads=True,
    audited=False,
    answer={
        "types": [
            {
                "type": "local",
                "usageCategory": "shell",
                "description": "The machine that the daemon runs on.",
                "distribution": "connmgr",
                "version": "0.1.0",
                "toggled": False,
                "schema": {
                    "type": "object",
                    "properties": {"type": {"const": "local"}, "shell": {"type": "string"}},
                    "required": ["type"],
                    "additionalProperties": False,
                    "examples": [{"type": "local"}],
                },
            }
        ],
        "sources": [
            {
                "source": "bw",
                "description": "The password of an item of Bitwarden.",
                "schema": {
                    "type": "object",
                    "properties": {"item": {"type": "string"}},
                    "required": ["item"],
                    "additionalProperties": False,
                    "examples": [{"item": "web1"}],
                },
            }
        ],
        "problems": [],
    },
)
def types() -> TypesResponse:
    """Describe the installed connection types and secret sources, and the plugins that cannot be used."""
    return TypesResponse(
        types=[
            TypeInfo(
                name=entry.type.name,
                usage=entry.type.usage_category,
                description=entry.type.description,
                distribution=entry.distribution,
                version=entry.version,
                toggled=isinstance(entry.type, Toggled),
                schema=json_schema(entry.type),
            )
            for entry in services().registry
        ],
        sources=[
            SourceInfo(name=source.name, description=source.description, schema=source_schema(source))
            for source in services().registry.sources
        ],
        problems=[message_of(ProblemInfo, problem) for problem in services().registry.problems],
    )


@group.endpoint(
    "/toggle",
    action=Action("connection.toggle", limits=[toggles]),
    about=("connection", "state"),
    raises=[
        *OPENING,
        errors.NotToggleable,
        errors.PortInUse,
        errors.PermissionDenied,
        errors.ConnectionCycle,
        errors.StreamLimit,
    ],
    waits=True,
    example={"connection": TUNNEL, "state": True},
)
def toggle(request: ConnectionToggleRequest) -> None:
    """Open or close a tunnel, or start or stop the system that a connection leads to.

    The answer comes after the first attempt to open a tunnel. A machine that cannot be reached now is not an error: the
    tunnel is tried again until it is toggled off, and `/tunnel/query` shows its state. `sessionEnabled` in the
    connection's `cache` stores the wanted state, which the daemon restores when it starts again. A tunnel that a token
    has toggled on ends with the token.
    """
    daemon, id, state = services(), request.connection, request.state
    record = daemon.vault.connections.get(id)
    if isinstance(daemon.registry.get(record.type), Toggled):
        timeout = daemon.settings.start_timeout
        toggle_remote(daemon.vault, daemon.registry, daemon.links, record, state, caller().access, timeout)
        daemon.vault.connections.set_cache(id, {**record.cache, "sessionEnabled": state})
        daemon.vault.connections.set_states({id: {**record.state, "running": state}})
        publish_changes(facts_of([id]), [id])
    elif state:
        asking = caller()
        daemon.tunnels.start(
            id, asking.access, token=asking.token, holder=asking.holder, has_ended=lambda: asking.ended
        )
    else:
        daemon.tunnels.stop(id)


@group.endpoint(
    "/browse",
    reads=True,
    about=("connection",),
    raises=[errors.UnknownConnection, errors.UnknownType, errors.IntegrityError],
    example={"connection": EXAMPLE, "directory": "/etc"},
    answer={},
)
def browse(request: ConnectionBrowseRequest) -> ShownResponse:
    """Ask for a page with a connection's files. There is none in this version, and the answer is empty."""
    _require_shell(request.connection, "file system")
    return ShownResponse()


@group.endpoint(
    "/terminal",
    reads=True,
    about=("connection",),
    raises=[errors.UnknownConnection, errors.UnknownType, errors.IntegrityError],
    example={"connection": EXAMPLE},
    answer={},
)
def terminal(request: ConnectionTerminalRequest) -> ShownResponse:
    """Ask for a page with a terminal on a connection. There is none in this version, and the answer is empty.

    `/terminal/open` opens a terminal for programs.
    """
    _require_shell(request.connection, "shell")
    return ShownResponse()


def _require_shell(connection: str, what: str) -> None:
    daemon = services()
    kind = daemon.registry.get(daemon.vault.connections.get(connection).type)
    if isinstance(kind, Tunnel) or kind.usage_category == "group":
        raise errors.InvalidRequest(f"connection: Type {kind.name} is not a {what} connection.")


def _keep_temporary(name: str, data: ConnectionData) -> tuple[str, bool]:
    if data.references:
        raise errors.InvalidRequest("data: A temporary connection cannot run over another one; store it.")
    temporary = services().vault.connections.temporary
    visible = set(services().authorisation.visible(caller(), temporary.ids))
    return temporary.add(
        name,
        data.kind.name,
        data.sealed,
        fingerprint=data.fingerprint,
        same=data.equals,
        is_visible=lambda id: id in visible,
        share=caller().holder,
    )


def _check_category(category: str | None) -> None:
    """Refuse an unknown category before a machine is contacted."""
    if category is not None:
        services().vault.categories.infos([category])


def _validate(data: ConnectionData, way: str | None) -> None:
    try:
        if isinstance(data.kind, Tunnel):
            services().tunnels.probe(data.references[0], caller().access)
            return
        services().shells.probe(Target(data.kind.name, data.sealed, dependency_digest=way), caller().access)
    except OperationError as error:
        raise ValidationFailed(error) from error
