"""``/connection``, ``/category`` and ``/hostkey`` of the client; most commands load this to find their connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from connmgr.client.group import Group
from connmgr.client.names import Name, choose, find
from connmgr.contract import connection as messages
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
        request = messages.ConnectionQueryRequest(
            category_filter=category,
            connection_filter=connection,
            type_filter=type,
            name_filter="*" if name is None else name,
            where=where,
        )
        return self._ask("/connection/query", request, messages.ConnectionQueryResponse).found

    def names(
        self, name: str = "*", *, path: str = "*", category: str = "*", type: str = "*", where: str | None = None
    ) -> list[Name]:
        """Return the names of the connections that all filters match, by their paths; the rest as in :meth:`query`."""
        request = messages.ConnectionQueryRequest(
            category_filter=category,
            connection_filter=path,
            type_filter=type,
            name_filter=name,
            names=True,
            where=where,
        )
        answer = self._ask("/connection/query", request, messages.ConnectionQueryResponse)
        return [Name.of(id, name) for id, name in zip(answer.found, answer.names or (), strict=True)]

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

    def info(self, connections: Sequence[str]) -> list[messages.ConnectionInfo]:
        """Describe connections; an unknown one fails the whole request."""
        request = messages.ConnectionInfoRequest(connections=list(connections))
        return self._ask("/connection/info", request, messages.ConnectionInfoResponse).infos

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
        request = messages.ConnectionAddRequest(
            name=name,
            data=dict(data),
            validates=validate,
            category=category,
            temporary=bool(temporary),
            labels=None if labels is None else dict(labels),
        )
        answer = self._ask("/connection/add", request, messages.ConnectionAddResponse)
        return answer.connection, answer.added

    def elevate(self, connection: str, user: str = "root", *, password: str | None = None) -> str:
        """Return the id of a connection that runs as ``user``, by sudo over ``connection``; no machine is asked.
        Without a ``password``, sudo gets the stored one. The id is accepted wherever one of a connection is."""
        request = messages.ConnectionElevateRequest(connection=connection, user=user, password=password)
        return self._ask("/connection/elevate", request, messages.ConnectionElevateResponse).connection

    def update(
        self,
        connection: str,
        *,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        category: str | None = None,
        validate: bool = False,
        labels: Mapping[str, str] | None = None,
        last_modified: datetime | None = None,
    ) -> None:
        """Change the given fields; ``data``, with its ``type``, and ``labels`` replace all that are stored.

        With ``last_modified`` as it was read, the change of somebody else since then is not overwritten: the error is
        ``connection_changed``.
        """
        stored = None if data is None else dict(data)
        self._tell(
            "/connection/update",
            messages.ConnectionUpdateRequest(
                connection=connection,
                name=name,
                data=stored,
                category=category,
                validates=validate,
                labels=None if labels is None else dict(labels),
                last_modified=last_modified,
            ),
        )

    def label(
        self, connections: Sequence[str], labels: Mapping[str, str] | None = None, remove: Sequence[str] = ()
    ) -> list[str]:
        """Set ``labels`` of connections, take the labels called ``remove`` away, and return those that are changed."""
        request = messages.ConnectionLabelRequest(
            connections=list(connections), labels=dict(labels or {}), remove=list(remove)
        )
        return self._ask("/connection/label", request, messages.ConnectionLabelResponse).changed

    def remove(self, connections: Sequence[str]) -> None:
        """Remove connections, and all connections over them."""
        self._tell("/connection/remove", messages.ConnectionRemoveRequest(connections=list(connections)))

    def environment(self, connection: str) -> tuple[list[str], dict[str, str]]:
        """Return the names, with * and ?, of the variables that a client sends, and those that are set anyway."""
        request = messages.ConnectionEnvironmentRequest(connection=connection)
        answer = self._ask("/connection/environment", request, messages.ConnectionEnvironmentResponse)
        return answer.send, dict(answer.set)

    def login(self, connection: str, *, agent: str | None = None, passphrases: Mapping[str, str] | None = None) -> bool:
        """Log in with what this client lends, for this login alone; return whether a link was opened.

        ``agent`` is the path of an ssh-agent's socket. ``passphrases`` are by ``key`` of the error ``auth_failed``.
        """
        entries = [messages.LentPassphrase(key=key, passphrase=phrase) for key, phrase in (passphrases or {}).items()]
        request = messages.ConnectionLoginRequest(connection=connection, agent=agent, passphrases=entries)
        return self._ask("/connection/login", request, messages.ConnectionLoginResponse).opened

    def refresh(self, connection: str) -> messages.ConnectionRefreshResponse:
        """Open a connection as a test, and store its state."""
        request = messages.ConnectionRefreshRequest(connection=connection)
        return self._ask("/connection/refresh", request, messages.ConnectionRefreshResponse)

    def toggle(self, connection: str, state: bool) -> None:
        """Open or close a tunnel, or start or stop the system that a connection leads to."""
        self._tell("/connection/toggle", messages.ConnectionToggleRequest(connection=connection, state=state))

    def browse(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a connection's files, or an empty dict if there is none."""
        where = ABSENT if directory is None else directory
        return dict(
            self._tell("/connection/browse", messages.ConnectionBrowseRequest(connection=connection, directory=where))
        )

    def terminal(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a terminal on a connection, or an empty dict if there is none."""
        where = ABSENT if directory is None else directory
        return dict(
            self._tell(
                "/connection/terminal", messages.ConnectionTerminalRequest(connection=connection, directory=where)
            )
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
        members = self._http.post("/connection/apply", **{name: list(value) for name, value in fields.items()})
        answer = from_json(messages.ApplyResponse, members)
        return Applied([(connection.connection, connection.added) for connection in answer.added], answer.removed)

    def types(self) -> list[messages.TypeInfo]:
        """Describe the installed connection types."""
        return self._ask("/connection/types", None, messages.TypesResponse).types


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
        self._tell("/hostkey/trust", messages.HostKeyTrustRequest(connection=connection, host=host, host_key=key))

    def forget(self, connection: str, host: str | None = None) -> list[messages.ForgottenHostKey]:
        """Remove the known keys of ``host``, by default the host that the connection leads to, and return them."""
        request = messages.HostKeyForgetRequest(connection=connection, host=host)
        return self._ask("/hostkey/forget", request, messages.HostKeyForgetResponse).keys
