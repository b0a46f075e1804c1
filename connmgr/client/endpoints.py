"""The daemon's endpoints as methods, one class per group: ``/category/add`` is ``client.category.add``.

A method builds the request as a message of the contract, and returns what the answer's message holds. Groups with much
of their own have modules of their own: shells, files, jobs, terminals, rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connmgr.client.group import Group
from connmgr.contract.category import (
    CategoryAddRequest,
    CategoryAddResponse,
    CategoryInfoRequest,
    CategoryInfoResponse,
    CategoryQueryRequest,
    CategoryQueryResponse,
    CategoryRemoveRequest,
)
from connmgr.contract.category import CategoryInfo as Category
from connmgr.contract.connection import ForgottenHostKey as ForgottenKey
from connmgr.contract.connection import (
    HostKeyForgetRequest,
    HostKeyForgetResponse,
    HostKeyTrustRequest,
)
from connmgr.contract.daemon import DaemonStatusResponse as DaemonStatus
from connmgr.contract.daemon import VersionResponse as Version
from connmgr.contract.tunnel import TunnelQueryRequest
from connmgr.contract.web import WebConfirmRequest, WebConfirmResponse, WebTicketRequest
from connmgr.contract.web import WebTicketResponse as PageTicket


class Categories(Group):
    """``/category``."""

    def query(self, filter: str = "*") -> list[str]:
        """Return the ids of the categories whose path the filter matches."""
        return self._ask("/category/query", CategoryQueryRequest(filter=filter), CategoryQueryResponse).found

    def info(self, categories: Sequence[str]) -> list[Category]:
        """Describe categories; an unknown one fails the whole request."""
        request = CategoryInfoRequest(categories=list(categories))
        return self._ask("/category/info", request, CategoryInfoResponse).infos

    def add(self, name: str, parent: str) -> str:
        """Return the id of the category ``name`` under ``parent``; add it if it is missing."""
        request = CategoryAddRequest(name=name, parent=parent)
        return self._ask("/category/add", request, CategoryAddResponse).category

    def remove(self, categories: Sequence[str], *, children: bool = False, contents: bool = False) -> None:
        """Remove categories. By default their children move up, and their connections to the default category."""
        self._tell(
            "/category/remove",
            CategoryRemoveRequest(
                categories=list(categories), remove_children_categories=children, remove_contents=contents
            ),
        )


class HostKeys(Group):
    """``/hostkey``."""

    def trust(self, connection: str, host: str, key: str) -> None:
        """Accept ``key`` of ``host``: ``hostKey`` and ``host`` in the details of the error ``host_key_unknown``."""
        self._tell("/hostkey/trust", HostKeyTrustRequest(connection=connection, host=host, host_key=key))

    def forget(self, connection: str, host: str | None = None) -> list[ForgottenKey]:
        """Remove the known keys of ``host``, by default the host that the connection leads to, and return them."""
        request = HostKeyForgetRequest(connection=connection, host=host)
        return self._ask("/hostkey/forget", request, HostKeyForgetResponse).keys


class Tunnels(Group):
    """``/tunnel``; :meth:`Connections.toggle` opens and closes tunnels."""

    def query(self, connections: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Describe the tunnels of ``connections``, or all; each is a dict as in docs/API.md."""
        named = None if connections is None else list(connections)
        return list(self._tell("/tunnel/query", TunnelQueryRequest(connections=named))["tunnels"])


class DaemonItself(Group):
    """``/daemon``."""

    def version(self) -> Version:
        """Return the versions of the API, the daemon and its runtime."""
        return self._ask("/daemon/version", None, Version)

    def status(self) -> DaemonStatus:
        """Describe the running daemon: its shells and the resources in use."""
        return self._ask("/daemon/status", None, DaemonStatus)

    def stop(self) -> None:
        """Tell the daemon to stop."""
        self._tell("/daemon/stop")


class Page(Group):
    """``/web``."""

    def ticket(self, *, same_user: bool = False) -> PageTicket:
        """Return a ticket that opens the daemon's page with this client's rights; if so, for its own user alone."""
        return self._ask("/web/ticket", WebTicketRequest(same_user=same_user), PageTicket)

    def confirm(self, user: str | None = None, passphrase: str | None = None, *, wait: float = 0) -> float:
        """Show again who uses a page, as the setting ``web-step-up`` asks; return for how many seconds that counts."""
        request = WebConfirmRequest(user=user, passphrase=passphrase, wait=wait)
        return self._ask("/web/confirm", request, WebConfirmResponse).valid

    def logout(self) -> None:
        """End this client's session."""
        self._tell("/web/logout")
