"""``/multiplex``: control sockets, at which OpenSSH's ``ssh`` finds connections by its option ``ControlPath``."""

from __future__ import annotations

from collections.abc import Sequence

from connmgr.client.group import Group
from connmgr.contract.multiplex import (
    LOCAL,
    ControlSocketInfo,
    HostFilter,
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
)
from connmgr.contract.shell import Address


class Multiplex(Group):
    """``/multiplex``; the sockets are those of this client's token, or the owner's."""

    def open(self, connections: Sequence[str] | None = None) -> list[ControlSocketInfo]:
        """Open control sockets for ``connections``, or for all with a shell, and describe them."""
        request = MultiplexOpenRequest(connections=None if connections is None else list(connections))
        return self._ask("/multiplex/open", request, MultiplexOpenResponse).sockets

    def close(self, connections: Sequence[str] | None = None) -> int:
        """Close the control sockets of ``connections``, or all, and return their number. What runs runs on."""
        request = MultiplexCloseRequest(connections=None if connections is None else list(connections))
        return self._ask("/multiplex/close", request, MultiplexCloseResponse).closed

    def query(self) -> list[ControlSocketInfo]:
        """Describe the open control sockets."""
        return self._ask("/multiplex/query", None, MultiplexQueryResponse).sockets

    def config(
        self,
        program: Sequence[str],
        filters: Sequence[tuple[str, str]] | None = None,
        connections: Sequence[str] = (),
    ) -> MultiplexConfigResponse:
        """Open control sockets, and return the configuration by which ``ssh`` finds them."""
        return self._ask("/multiplex/config", _wanted(program, filters, connections), MultiplexConfigResponse)

    def keep(
        self,
        program: Sequence[str],
        filters: Sequence[tuple[str, str]] | None = None,
        connections: Sequence[str] = (),
    ) -> MultiplexKeepResponse:
        """Have the daemon write that configuration into a file, and keep it current; otherwise as :meth:`config`."""
        return self._ask("/multiplex/keep", _wanted(program, filters, connections), MultiplexKeepResponse)

    def forget(self) -> str | None:
        """Remove the file of :meth:`keep`, and return its path; None if there is none."""
        return self._ask("/multiplex/forget", None, MultiplexForgetResponse).file

    def forward(
        self,
        connection: str,
        port: int,
        to: tuple[str, int] | None = None,
        *,
        kind: str = LOCAL,
        host: str = "localhost",
    ) -> tuple[str, int]:
        """Open a forward to the address ``to``, and return host and port where it listens.

        ``kind`` is ``local``, ``remote``, or ``dynamic``, which has no ``to``; ``port`` 0 takes a free one.
        """
        address = None if to is None else Address(host=to[0], port=to[1])
        request = MultiplexForwardRequest(connection=connection, kind=kind, host=host, port=port, to=address)
        answer = self._ask("/multiplex/forward", request, MultiplexForwardResponse)
        return answer.host, answer.port

    def cancel(
        self,
        connection: str,
        port: int,
        to: tuple[str, int] | None = None,
        *,
        kind: str = LOCAL,
        host: str = "localhost",
    ) -> None:
        """Close a forward, named as it was opened. Its connections end."""
        address = None if to is None else Address(host=to[0], port=to[1])
        request = MultiplexCancelRequest(connection=connection, kind=kind, host=host, port=port, to=address)
        self._tell("/multiplex/cancel", request)

    def renew(self, connection: str) -> None:
        """Have the next session on a connection log in anew. What runs stays on its link."""
        self._tell("/multiplex/renew", MultiplexRenewRequest(connection=connection))


def _wanted(
    program: Sequence[str], filters: Sequence[tuple[str, str]] | None, connections: Sequence[str]
) -> MultiplexConfigRequest:
    # ``program`` are the words that call connmgr. Without filters, each for paths and for names, all connections with a
    # shell are wanted; with them also ``connections``.
    some = None
    if filters is not None:
        some = [HostFilter(connection_filter=path, name_filter=name) for path, name in filters]
    return MultiplexConfigRequest(program=list(program), filters=some, connections=list(connections) or None)
