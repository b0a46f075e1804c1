"""``/multiplex``: control sockets for OpenSSH's ``ssh``, and the way of their clients into the pipeline."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import flask

from connmgr import errors
from connmgr.api.body import LISTED_VALUES
from connmgr.api.connection_data import require_ids
from connmgr.api.context import CALLER, CANCELLATION, caller, detail, open_context_of
from connmgr.api.endpoint import Group
from connmgr.api.record import recorder
from connmgr.api.running import EXAMPLE, OPENING
from connmgr.api.services import services
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.contract.multiplex import (
    ControlSocketInfo,
    ForwardFields,
    MultiplexCancelRequest,
    MultiplexCloseRequest,
    MultiplexCloseResponse,
    MultiplexConfigRequest,
    MultiplexConfigResponse,
    MultiplexForgetResponse,
    MultiplexForwardRequest,
    MultiplexForwardResponse,
    MultiplexKeepResponse,
    MultiplexOpenRequest,
    MultiplexOpenResponse,
    MultiplexQueryResponse,
    MultiplexRenewRequest,
    SshHostInfo,
)
from connmgr.errors import ConnmgrError, InternalError
from connmgr.multiplex.config import UNSAID_USER, Rendered, Wanted, hosts_of
from connmgr.multiplex.passengers import Passenger, Sender
from connmgr.multiplex.sockets import ControlSocket, ForwardedPort
from connmgr.rights.actions import Action, forwards, renews_link
from connmgr.rights.authorisation import Work
from connmgr.vault.search import Listed

_EXAMPLE = {
    "connection": EXAMPLE,
    "name": ["web1"],
    "hosts": ["web1"],
    "path": "/run/user/1000/connmgr/ssh/5d0c1cf4d64a01e1c0f7",
}

group = Group(
    "multiplex",
    "Control sockets: OpenSSH's `ssh` finds a connection at such a path by its option `ControlPath`, with all that "
    "runs over ssh: scp, sftp, rsync, git, editors.",
)


@group.endpoint(
    "/open",
    has_content=True,
    most_values=LISTED_VALUES,
    about=("connections",),
    raises=[errors.UnknownConnection, errors.NoControlSocket],
    example={"connections": [EXAMPLE]},
    answer={"sockets": [_EXAMPLE]},
)
def open(request: MultiplexOpenRequest) -> MultiplexOpenResponse:
    """Open control sockets, one for each connection; those that are open stay so.

    What comes by a socket has the rights of the caller that has opened it last: a token, with which the socket ends, or
    the owner. Sockets of the owner are open until they are closed or the daemon stops.
    """
    listed = _with_shells()
    if request.connections is not None:
        services().vault.connections.infos(list(dict.fromkeys(request.connections)))
        wanted = set(request.connections)
    else:
        wanted = set(listed)
    hosts = hosts_of(listed.values())
    paths = services().sockets.open({id: "/".join(row.path) for id, row in listed.items() if id in wanted}, caller())
    detail(sockets=len(paths))
    return MultiplexOpenResponse(
        sockets=[
            ControlSocketInfo(
                connection=id, name=list(listed[id].path), hosts=hosts[id], path=str(path), token=caller().token
            )
            for id, path in paths.items()
        ]
    )


_HOSTS: dict[str, Any] = {
    "hosts": [{"connection": EXAMPLE, "names": ["web1"], "user": "deploy", "port": 22}],
    "unnamed": [],
}


_WANTED: dict[str, Any] = {
    "has_content": True,
    "most_values": LISTED_VALUES,
    "about": ("connections",),
    "raises": [errors.UnknownConnection, errors.NoControlSocket],
    "example": {"program": ["/home/me/.local/bin/connmgr"]},
}


@group.endpoint(
    "/config",
    **_WANTED,
    answer={
        **_HOSTS,
        "text": 'Host web1\n    ControlPath "/run/user/1000/connmgr/ssh/5d0c1cf4d64a01e1c0f7.%p.%r"\n',
    },
)
def config(request: MultiplexConfigRequest) -> MultiplexConfigResponse:
    """Open control sockets as `/multiplex/open` does, and return the configuration by which `ssh` finds them.

    `ssh` finds the socket of a host only with the user and the port that the connection has; otherwise it runs
    `program`, which says why.
    """
    daemon, is_owner = services(), caller().token is None
    daemon.vault.connections.infos(list(dict.fromkeys(request.connections or ())))
    chosen, listed, left_out = daemon.ssh_configs.choose(_choice(request), for_owner=is_owner)
    visible = {id: listed[id] for id in daemon.authorisation.visible(caller(), listed)}
    paths = daemon.sockets.open({id: "/".join(visible[id].path) for id in chosen if id in visible}, caller())
    detail(sockets=len(paths))
    rendered = daemon.ssh_configs.render(visible, paths, request.program)
    return MultiplexConfigResponse(text=rendered.text, hosts=_host_infos(rendered), unnamed=left_out + rendered.unnamed)


@group.endpoint("/keep", **_WANTED, answer={**_HOSTS, "file": "/home/me/.config/connmgr/ssh_config"})
def keep(request: MultiplexConfigRequest) -> MultiplexKeepResponse:
    """Write the configuration of `/multiplex/config` into a file beside the daemon's settings, and keep it current.

    It follows what is added, renamed and removed, until `/multiplex/forget`. After a restart the daemon opens its
    sockets again. Only the owner may, whose rights they have.
    """
    daemon = services()
    daemon.vault.connections.infos(list(dict.fromkeys(request.connections or ())))
    try:
        file, rendered = daemon.kept_config.keep(_choice(request), caller())
    except OSError as error:
        raise InternalError(f"The file for ssh cannot be written: {error}") from error
    detail(sockets=len(rendered.hosts))
    return MultiplexKeepResponse(file=str(file), hosts=_host_infos(rendered), unnamed=rendered.unnamed)


@group.endpoint("/forget", answer={"file": "/home/me/.config/connmgr/ssh_config"})
def forget() -> MultiplexForgetResponse:
    """Remove the file of `/multiplex/keep`, and close its sockets. What runs through them runs on."""
    file = services().kept_config.forget()
    return MultiplexForgetResponse(file=None if file is None else str(file))


def _host_infos(rendered: Rendered) -> list[SshHostInfo]:
    return [
        SshHostInfo(
            connection=id, names=list(host.names), user=None if host.user == UNSAID_USER else host.user, port=host.port
        )
        for id, host in rendered.hosts.items()
    ]


def _choice(request: MultiplexConfigRequest) -> Wanted:
    filters = None
    if request.filters is not None:
        filters = [(filter.connection_filter, filter.name_filter) for filter in request.filters]
    return Wanted(filters, request.connections or [], request.program)


@group.endpoint(
    "/close",
    has_content=True,
    most_values=LISTED_VALUES,
    about=("connections",),
    raises=[errors.UnknownConnection],
    example={"connections": [EXAMPLE]},
    answer={"closed": 1},
)
def close(request: MultiplexCloseRequest) -> MultiplexCloseResponse:
    """Close control sockets of the caller: a token's own ones, or the owner's. What runs through them runs on."""
    require_ids(request.connections or ())
    closed = services().sockets.close(caller().token, request.connections)
    detail(sockets=closed)
    return MultiplexCloseResponse(closed=closed)


@group.endpoint("/query", reads=True, audited=False, answer={"sockets": [_EXAMPLE]})
def query() -> MultiplexQueryResponse:
    """List the control sockets that are open."""
    works = ((socket, Work(socket.connection, socket.token)) for socket in services().sockets.all())
    seen: list[ControlSocket] = list(services().authorisation.visible_work(caller(), works))
    listed = _with_shells()
    hosts = hosts_of(listed.values())
    # In the order of the paths, as in the configuration of ssh.
    places = {id: place for place, id in enumerate(listed)}
    return MultiplexQueryResponse(
        sockets=[
            ControlSocketInfo(
                connection=socket.connection,
                name=list(listed[socket.connection].path),
                hosts=hosts[socket.connection],
                path=str(socket.path),
                token=socket.token,
            )
            for socket in sorted(
                (socket for socket in seen if socket.connection in places), key=lambda socket: places[socket.connection]
            )
        ]
    )


_FORWARD = {"connection": EXAMPLE, "kind": "local", "port": 8080, "to": {"host": "localhost", "port": 80}}


@group.endpoint(
    "/forward",
    action=Action("multiplex.forward", limits=[forwards]),
    about=("connection", "kind", "host", "port", "socket", "to", "to_socket"),
    raises=[*OPENING, errors.PortInUse, errors.PermissionDenied, errors.StreamLimit],
    waits=True,
    example=_FORWARD,
    answer={"host": "127.0.0.1", "port": 8080},
)
def forward(request: MultiplexForwardRequest) -> MultiplexForwardResponse:
    """Open a forward of the caller's control socket for a connection, as `ssh -O forward` does.

    It ends with the socket, by `/multiplex/cancel`, or when the connection is changed. One that is open already is
    answered again. Unlike `ssh`, the daemon opens a lost link again, as for a stored tunnel.
    """
    asking = caller()
    opened = services().sockets.forward(request.connection, asking.access, asking, _forwarded_port(request))
    return MultiplexForwardResponse(host=opened.address[0], port=opened.address[1])


@group.endpoint(
    "/cancel",
    about=("connection", "kind", "host", "port", "socket", "to", "to_socket"),
    raises=[errors.UnknownConnection],
    example=_FORWARD,
)
def cancel(request: MultiplexCancelRequest) -> None:
    """Close a forward of the caller's control socket, named as it was opened. Its connections end."""
    if not services().sockets.cancel(request.connection, caller().token, _forwarded_port(request)):
        raise errors.InvalidRequest("port: No such forward is open at the control socket.")


@group.endpoint(
    "/renew",
    action=Action("multiplex.renew", limits=[renews_link]),
    about=("connection",),
    raises=[errors.UnknownConnection],
    example={"connection": EXAMPLE},
)
def renew(request: MultiplexRenewRequest) -> None:
    """Have the next session on a connection log in anew, as after `ssh -O exit`. What runs stays on its link."""
    services().vault.connections.get(request.connection)
    services().links.forget([request.connection])


def _forwarded_port(request: ForwardFields) -> ForwardedPort:
    to = request.to_socket if request.to is None else (request.to.host, request.to.port)
    at = request.socket if request.port is None else (request.host, request.port)
    assert at is not None, "the message has one of both"  # noqa: S101
    return ForwardedPort(request.kind, at, to)


def _with_shells() -> dict[str, Listed]:
    """Return the connections that the caller sees and that have shells, by their ids, in the order of their paths."""
    listed = services().ssh_configs.with_shells()
    return {id: listed[id] for id in services().authorisation.visible(caller(), listed)}


_ADDRESS = "localhost"
"""Where a request of the daemon itself comes from, and goes to."""


class Entrance:
    """The way of what comes by a control socket into the pipeline of ``app``: as requests of the socket's sender."""

    def __init__(self, app: flask.Flask) -> None:
        self._app = app

    def stream(self, sender: Sender, path: str, passenger: Passenger) -> None:
        """Have the endpoint ``path`` serve ``passenger``, or refuse it."""
        endpoint = self._app.view_functions[path]
        assert isinstance(endpoint, StreamEndpoint), "others answer by HTTP"  # noqa: S101
        environ = {
            "REQUEST_METHOD": "GET",
            "REMOTE_ADDR": _ADDRESS,
            CALLER: sender,
            CANCELLATION: passenger.cancellation,
        }
        # Without a request of Flask: to make one and its answer would take a third of the time that passes before the
        # remote host gets the command.
        with self._app.app_context():
            context = open_context_of(environ, path)
            try:
                endpoint.serve(passenger)
            finally:
                recorder(context, HTTPStatus.SWITCHING_PROTOCOLS)()

    def post(
        self, sender: Sender, path: str, members: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the answer of the endpoint ``path`` to a request with ``members``; raise its error.

        ``more`` goes into the WSGI environment.
        """
        body = json.dumps(members).encode()
        sent = {"wsgi.input": io.BytesIO(body), "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body))}
        status, answer = self._answer(sender, path, {**sent, **(more or {})})
        if status != 200:
            raise _refusal(status, answer)
        answered: dict[str, Any] = json.loads(answer) if answer else {}
        return answered

    def _answer(self, sender: Sender, path: str, more: dict[str, Any]) -> tuple[int, bytes]:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "REMOTE_ADDR": _ADDRESS,
            "SERVER_NAME": _ADDRESS,
            "SERVER_PORT": "0",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            CALLER: sender,
            **more,
        }
        statuses: list[str] = []

        def start(status: str, _headers: object, _error: object = None) -> Any:
            statuses.append(status)

        # A context of its own, because Flask would reuse that of a request within which this is called: the outer one
        # would then go on, and into the audit log, as this one.
        with self._app.app_context():
            pieces: Iterable[bytes] = self._app(environ, start)
            try:
                body = b"".join(pieces)
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
        return int(statuses[-1].split()[0]), body


def _refusal(status: int, body: bytes) -> ConnmgrError:
    """Return the error in an answer of HTTP."""
    members: dict[str, Any] = json.loads(body) if body else {}
    members = members.get("error", members)
    refusal = ConnmgrError(str(members.pop("message", "The request failed.")))
    refusal.code, refusal.status = str(members.pop("code", refusal.code)), status  # type: ignore[misc]
    refusal.details = members
    return refusal
