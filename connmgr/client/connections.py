"""``/connection`` of the client; it needs little of the contract, so that a command finds its connection at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from connmgr.client.group import Group
from connmgr.client.names import Name, choose, find
from connmgr.contract.connection import (
    ApplyResponse,
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
    ConnectionRemoveRequest,
    ConnectionTerminalRequest,
    ConnectionToggleRequest,
    ConnectionUpdateRequest,
    LentPassphrase,
    TypesResponse,
)
from connmgr.contract.connection import ConnectionInfo as Connection
from connmgr.contract.connection import ConnectionRefreshResponse as Refreshed
from connmgr.contract.connection import TypeInfo as ConnectionType
from connmgr.contract.message import ABSENT, from_json


class Applied(NamedTuple):
    """The result of a batch: for each entry its connection's id and whether it is new, and the removed connections."""

    added: list[tuple[str, bool]]
    removed: list[str]


class Connections(Group):
    """``/connection``."""

    def query(
        self,
        connection: str = "*",
        *,
        category: str = "*",
        type: str = "*",
        name: str | None = None,
        where: str | None = None,
    ) -> list[str]:
        """Return the ids of the connections that all filters match; ``name`` matches the path, or category and path.

        ``where`` is a condition on labels and facts, such as ``env=prod and os.id=debian``.
        """
        request = ConnectionQueryRequest(
            category_filter=category,
            connection_filter=connection,
            type_filter=type,
            name_filter="*" if name is None else name,
            where=where,
        )
        return self._ask("/connection/query", request, ConnectionQueryResponse).found

    def names(
        self, name: str = "*", *, path: str = "*", category: str = "*", type: str = "*", where: str | None = None
    ) -> list[Name]:
        """Return the names of the connections that all filters match, by their paths; the rest as in :meth:`query`."""
        request = ConnectionQueryRequest(
            category_filter=category,
            connection_filter=path,
            type_filter=type,
            name_filter=name,
            names=True,
            where=where,
        )
        answer = self._ask("/connection/query", request, ConnectionQueryResponse)
        return [Name.of(id, one) for id, one in zip(answer.found, answer.names or (), strict=True)]

    def find(self, *names: str) -> str:
        """Return the id that the first known of these names means, by the rule in :mod:`connmgr.client.names`."""
        return find(self, *names)

    def choose(
        self,
        *selectors: str,
        category: str = "*",
        type: str = "*",
        usage: str | None = None,
        where: str | None = None,
    ) -> list[Name]:
        """Return what names and patterns mean; as :func:`connmgr.client.names.choose`."""
        return choose(self, selectors, category=category, type=type, usage=usage, where=where)

    def info(self, connections: Sequence[str]) -> list[Connection]:
        """Describe connections; an unknown one fails the whole request."""
        request = ConnectionInfoRequest(connections=list(connections))
        return self._ask("/connection/info", request, ConnectionInfoResponse).infos

    def add(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        validate: bool = False,
        category: str | None = None,
        temporary: bool | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Store a connection as :meth:`ensure` does, and return its id."""
        return self.ensure(name, data, validate=validate, category=category, temporary=temporary, labels=labels)[0]

    def ensure(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        validate: bool = False,
        category: str | None = None,
        temporary: bool | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> tuple[str, bool]:
        """Return the id of a connection with ``data``, which includes its ``type``, and whether it is new.

        An equivalent one that is stored keeps its name and labels. A ``temporary`` one stays in the daemon's memory
        while it has a shell, and for a minute more.
        """
        request = ConnectionAddRequest(
            name=name,
            data=dict(data),
            validates=validate,
            category=category,
            temporary=bool(temporary),
            labels=None if labels is None else dict(labels),
        )
        answer = self._ask("/connection/add", request, ConnectionAddResponse)
        return answer.connection, answer.added

    def elevate(self, connection: str, user: str = "root", *, password: str | None = None) -> str:
        """Return the id of a connection that runs as ``user``, by sudo over ``connection``; no machine is asked.
        Without a ``password``, sudo gets the stored one. The id is accepted wherever one of a connection is."""
        request = ConnectionElevateRequest(connection=connection, user=user, password=password)
        return self._ask("/connection/elevate", request, ConnectionElevateResponse).connection

    def update(
        self,
        connection: str,
        *,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        category: str | None = None,
        validate: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Change the given fields; ``data``, with its ``type``, and ``labels`` replace all that are stored."""
        stored = None if data is None else dict(data)
        self._tell(
            "/connection/update",
            ConnectionUpdateRequest(
                connection=connection,
                name=name,
                data=stored,
                category=category,
                validates=validate,
                labels=None if labels is None else dict(labels),
            ),
        )

    def label(
        self, connections: Sequence[str], labels: Mapping[str, str] | None = None, remove: Sequence[str] = ()
    ) -> list[str]:
        """Set ``labels`` of connections, take the labels called ``remove`` away, and return those that are changed."""
        request = ConnectionLabelRequest(connections=list(connections), labels=dict(labels or {}), remove=list(remove))
        return self._ask("/connection/label", request, ConnectionLabelResponse).changed

    def remove(self, connections: Sequence[str]) -> None:
        """Remove connections, and all connections over them."""
        self._tell("/connection/remove", ConnectionRemoveRequest(connections=list(connections)))

    def environment(self, connection: str) -> tuple[list[str], dict[str, str]]:
        """Return the names, with * and ?, of the variables that a client sends, and those that are set anyway."""
        request = ConnectionEnvironmentRequest(connection=connection)
        answer = self._ask("/connection/environment", request, ConnectionEnvironmentResponse)
        return answer.send, dict(answer.set)

    def login(self, connection: str, *, agent: str | None = None, passphrases: Mapping[str, str] | None = None) -> bool:
        """Log in with what this client lends, for this login alone; return whether a link was opened.

        ``agent`` is the path of an ssh-agent's socket. ``passphrases`` are by ``key`` of the error ``auth_failed``.
        """
        lent = [LentPassphrase(key=key, passphrase=phrase) for key, phrase in (passphrases or {}).items()]
        request = ConnectionLoginRequest(connection=connection, agent=agent, passphrases=lent)
        return self._ask("/connection/login", request, ConnectionLoginResponse).opened

    def refresh(self, connection: str) -> Refreshed:
        """Open a connection as a test, and store its state."""
        request = ConnectionRefreshRequest(connection=connection)
        return self._ask("/connection/refresh", request, Refreshed)

    def toggle(self, connection: str, state: bool) -> None:
        """Open or close a tunnel, or start or stop the system that a connection leads to."""
        self._tell("/connection/toggle", ConnectionToggleRequest(connection=connection, state=state))

    def browse(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a connection's files, or an empty dict if there is none."""
        where = ABSENT if directory is None else directory
        return dict(self._tell("/connection/browse", ConnectionBrowseRequest(connection=connection, directory=where)))

    def terminal(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a terminal on a connection, or an empty dict if there is none."""
        where = ABSENT if directory is None else directory
        return dict(
            self._tell("/connection/terminal", ConnectionTerminalRequest(connection=connection, directory=where))
        )

    def apply(
        self,
        *,
        categories: Sequence[Sequence[str]] = (),
        add: Sequence[Mapping[str, Any]] = (),
        change: Sequence[Mapping[str, Any]] = (),
        remove: Sequence[str] = (),
    ) -> Applied:
        """Make all changes in one step, or none; the entries are those of ``/connection/apply``."""
        # The caller writes the entries as JSON has them, with labels in place of connections.
        fields = {"categories": categories, "add": add, "change": change, "remove": remove}
        members = self._post("/connection/apply", **{name: list(value) for name, value in fields.items()})
        answer = from_json(ApplyResponse, members)
        return Applied([(one.connection, one.added) for one in answer.added], answer.removed)

    def types(self) -> list[ConnectionType]:
        """Describe the installed connection types."""
        return self._ask("/connection/types", None, TypesResponse).types
