"""``/tunnel`` and ``/multiplex``: ports that lead through connections, and the sockets of OpenSSH's ``ssh``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connmgr.client.group import Group, list_of
from connmgr.contract import multiplex as messages
from connmgr.contract.shell import Address
from connmgr.contract.tunnel import TunnelQueryRequest


class Tunnels(Group):
    """``/tunnel``; :meth:`Connections.toggle` opens and closes tunnels."""

    def query(self, connections: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Describe the tunnels of ``connections``, or all; each is a dict as in docs/API.md."""
        ids = list_of(connections)
        return list(self._tell("/tunnel/query", TunnelQueryRequest(connections=ids))["tunnels"])


class Multiplex(Group):
    """``/multiplex``; the sockets are those of this client's token, or the owner's."""

    def open(self, connections: Sequence[str] | None = None) -> list[messages.ControlSocketInfo]:
        """Open control sockets for ``connections``, or for all with a shell, and describe them."""
        request = messages.MultiplexOpenRequest(connections=list_of(connections))
        return self._ask("/multiplex/open", request, messages.MultiplexOpenResponse).sockets

    def close(self, connections: Sequence[str] | None = None) -> int:
        """Close the control sockets of ``connections``, or all, and return their number. What runs runs on."""
        request = messages.MultiplexCloseRequest(connections=list_of(connections))
        return self._ask("/multiplex/close", request, messages.MultiplexCloseResponse).closed

    def query(self) -> list[messages.ControlSocketInfo]:
        """Describe the open control sockets."""
        return self._ask("/multiplex/query", None, messages.MultiplexQueryResponse).sockets

    def config(
        self,
        program: Sequence[str],
        filters: Sequence[tuple[str, str]] | None = None,
        connections: Sequence[str] = (),
    ) -> messages.MultiplexConfigResponse:
        """Open control sockets, and return the configuration by which ``ssh`` finds them."""
        return self._ask(
            "/multiplex/config", _config_request(program, filters, connections), messages.MultiplexConfigResponse
        )

    def keep(
        self,
        program: Sequence[str],
        filters: Sequence[tuple[str, str]] | None = None,
        connections: Sequence[str] = (),
    ) -> messages.MultiplexKeepResponse:
        """Have the daemon write that configuration into a file, and keep it current; otherwise as :meth:`config`."""
        return self._ask(
            "/multiplex/keep", _config_request(program, filters, connections), messages.MultiplexKeepResponse
        )

    def forget(self) -> str | None:
        """Remove the file of :meth:`keep`, and return its path; None if there is none."""
        return self._ask("/multiplex/forget", None, messages.MultiplexForgetResponse).file

    def forward(
        self,
        connection: str,
        port: int | str,
        to: tuple[str, int] | str | None = None,
        *,
        kind: str = messages.LOCAL,
        host: str = "localhost",
    ) -> tuple[str, int]:
        """Open a forward to the address ``to``, and return host and port where it listens.

        ``kind`` is ``local``, ``remote``, or ``dynamic``, which has no ``to``; ``port`` 0 takes a free one. ``port``
        and ``to`` may be paths of Unix sockets: ``host`` is not used then, and the path is returned with the port 0.
        """
        request = messages.MultiplexForwardRequest(connection=connection, kind=kind, **_ends(host, port, to))
        answer = self._ask("/multiplex/forward", request, messages.MultiplexForwardResponse)
        return answer.host, answer.port

    def cancel(
        self,
        connection: str,
        port: int | str,
        to: tuple[str, int] | str | None = None,
        *,
        kind: str = messages.LOCAL,
        host: str = "localhost",
    ) -> None:
        """Close a forward, named as it was opened. Its connections end."""
        request = messages.MultiplexCancelRequest(connection=connection, kind=kind, **_ends(host, port, to))
        self._tell("/multiplex/cancel", request)

    def renew(self, connection: str) -> None:
        """Have the next session on a connection log in anew. What runs stays on its link."""
        self._tell("/multiplex/renew", messages.MultiplexRenewRequest(connection=connection))


def _ends(host: str, port: int | str, to: tuple[str, int] | str | None) -> dict[str, Any]:
    """Return the fields of a message for the two ends of a forward."""
    ends: dict[str, Any] = {"socket": port} if isinstance(port, str) else {"host": host, "port": port}
    if isinstance(to, str):
        ends["to_socket"] = to
    elif to is not None:
        ends["to"] = Address(host=to[0], port=to[1])
    return ends


def _config_request(
    program: Sequence[str], filters: Sequence[tuple[str, str]] | None, connections: Sequence[str]
) -> messages.MultiplexConfigRequest:
    # ``program`` are the words that call connmgr. Without filters, each for paths and for names, all connections with a
    # shell are wanted; with them also ``connections``.
    host_filters = None
    if filters is not None:
        host_filters = [messages.HostFilter(connection_filter=path, name_filter=name) for path, name in filters]
    return messages.MultiplexConfigRequest(
        program=list(program), filters=host_filters, connections=list(connections) or None
    )
