"""``/multiplex``: control sockets, at which OpenSSH's ``ssh`` finds connections."""

from __future__ import annotations

from typing import Annotated

from connmgr.contract.common import Located
from connmgr.contract.message import DISTINCT, ID, Length, Message, OneOf, Pattern, Range, Wrong
from connmgr.contract.shell import Address

LOCAL, REMOTE, DYNAMIC = "local", "remote", "dynamic"


class MultiplexOpenRequest(Message):
    connections: Annotated[
        list[str] | None, DISTINCT, "The connections to open sockets for. Without it: all with a shell that it sees."
    ] = None


class ControlSocketInfo(Message):
    connection: Annotated[str, ID, "The connection behind the socket."]
    name: Annotated[list[str], "The connection's path, as in `/connection/info`."]
    hosts: Annotated[
        list[str],
        "The names by which `ssh` may call it, the shortest first: its last name where no other connection that the "
        "caller sees has that, and its path with `+` between the names. Empty: its names have characters that `ssh` or "
        "`scp` reads in another way.",
    ]
    path: Annotated[str, "The path of the socket, for `ControlPath`."]
    token: Annotated[str | None, "The uuid of the token whose rights it has. Absent: it has those of the owner."] = None


class MultiplexOpenResponse(Message):
    sockets: Annotated[list[ControlSocketInfo], "One for each connection, by their paths."]


class HostFilter(Message):
    connection_filter: Annotated[str, "A filter for paths, as in `/connection/query`."] = "*"
    name_filter: Annotated[str, "A filter for paths, or categories and paths, as in `/connection/query`."] = "*"


class MultiplexConfigRequest(Message):
    filters: Annotated[
        list[HostFilter] | None, Length(0, 1000), "Which connections, by the filters; without it all with a shell."
    ] = None
    connections: Annotated[list[str] | None, DISTINCT, "Further connections, if there are `filters`."] = None
    program: Annotated[
        list[str],
        Length(1, 100),
        "The words that call `connmgr`, with the options by which it finds this daemon and its credential: `ssh` runs "
        "it where it finds no socket.",
    ]


class SshHostInfo(Message):
    connection: Annotated[str, ID, "The connection behind it."]
    names: Annotated[list[str], "Its names for `ssh`, the shortest first."]
    user: Annotated[str | None, "The user that `ssh` takes it for. Absent: the connection does not say one."] = None
    port: Annotated[int, "The port that `ssh` takes it for."]


class MultiplexConfigResponse(Message):
    text: Annotated[str, "The configuration, for ssh_config(5)."]
    hosts: Annotated[list[SshHostInfo], "Its hosts."]
    unnamed: Annotated[
        list[list[str]],
        "The paths of connections that it leaves out: `ssh` takes none of their names, or not their user; or, for the "
        "owner, a token has made or changed them, and `connections` does not name them.",
    ]


class MultiplexKeepResponse(Message):
    file: Annotated[str, "The path of the file."]
    hosts: Annotated[list[SshHostInfo], "As in `/multiplex/config`."]
    unnamed: Annotated[list[list[str]], "As in `/multiplex/config`."]


class MultiplexForgetResponse(Message):
    file: Annotated[str | None, "The path of the file that was removed. Absent: none was kept."] = None


class MultiplexCloseRequest(Message):
    connections: Annotated[list[str] | None, DISTINCT, "Whose sockets to close. Without it: all of the caller's."] = (
        None
    )


class MultiplexCloseResponse(Message):
    closed: Annotated[int, "How many were closed."]


class MultiplexQueryResponse(Message):
    sockets: Annotated[list[ControlSocketInfo], "The open sockets that the caller sees, by the connections' paths."]


SOCKET_PATH = Pattern(r"/[^\0]+", "A Unix socket is named by its absolute path.", published="^/[^\\u0000]+$")


class ForwardFields(Located):
    """A forward, as the options ``-L``, ``-R`` and ``-D`` of ssh name it."""

    connection: Annotated[str, ID, "The connection through which it leads."]
    kind: Annotated[
        str,
        OneOf((LOCAL, REMOTE, DYNAMIC)),
        "`local` listens on the daemon's machine (`-L`), `dynamic` too, for SOCKS clients (`-D`); `remote` listens on "
        "the remote host and leads to addresses that the daemon's machine reaches (`-R`).",
    ]
    host: Annotated[str, Length(1, 255), "The address to listen on."] = "localhost"
    port: Annotated[
        int | None, Range(0, 65535), "The port to listen on; 0 for a free one. Either this or `socket`."
    ] = None
    socket: Annotated[
        str | None,
        SOCKET_PATH,
        Length(2, 107),
        "The path of a Unix socket to make and to listen at, in place of `host` and `port`. Nothing that exists is "
        "removed for it. On the daemon's machine it has the mode 0600, and is removed in the end.",
    ] = None
    to: Annotated[
        Address | None,
        "Where connections lead. Without it and `toSocket`, of which `local` needs one: where each asks for by SOCKS.",
    ] = None
    to_socket: Annotated[
        str | None, SOCKET_PATH, Length(2, 107), "The path of the Unix socket where connections lead."
    ] = None

    def check(self) -> None:
        super().check()
        if (self.port is None) == (self.socket is None):
            raise Wrong("A forward listens on a port, or at a socket.", "port")
        targets = (self.to is not None) + (self.to_socket is not None)
        if targets > 1:
            raise Wrong("A forward leads to a port, or to a socket.", "toSocket")
        if not targets if self.kind == LOCAL else targets and self.kind == DYNAMIC:
            raise Wrong("A local forward needs it, and a dynamic one cannot have it.", "to")


class MultiplexForwardRequest(ForwardFields):
    pass


class MultiplexForwardResponse(Message):
    host: Annotated[str, "The address at which it listens, or the path of its Unix socket."]
    port: Annotated[int, "The port at which it listens; 0 for a Unix socket."]


class MultiplexCancelRequest(ForwardFields):
    pass


class MultiplexRenewRequest(Located):
    connection: Annotated[str, ID, "The connection whose next session gets a link of its own."]
