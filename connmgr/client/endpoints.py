"""The daemon's endpoints as methods, one class per group: ``/shell/exec`` is ``client.shell.exec``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from connmgr.client.names import choose, find
from connmgr.client.results import (
    Applied,
    Category,
    Connection,
    ConnectionType,
    DaemonStatus,
    ForgottenKey,
    Name,
    Refreshed,
    RemovedUser,
    VaultStatus,
    Version,
)


class Post(Protocol):
    """Sends fields to an endpoint and returns its answer."""

    def __call__(self, path: str, /, **fields: Any) -> Any: ...


class Group:
    """Endpoints below one path."""

    def __init__(self, post: Post) -> None:
        self._post = post


class Categories(Group):
    """``/category``."""

    def query(self, filter: str = "*") -> list[str]:
        """Return the ids of the categories whose path the filter matches."""
        return list(self._post("/category/query", filter=filter)["found"])

    def info(self, categories: Sequence[str]) -> list[Category]:
        """Describe categories; an unknown one fails the whole request."""
        return [Category.read(one) for one in self._post("/category/info", categories=list(categories))["infos"]]

    def add(self, name: str, parent: str) -> str:
        """Return the id of the category ``name`` under ``parent``; add it if it is missing."""
        return str(self._post("/category/add", name=name, parent=parent)["category"])

    def remove(self, categories: Sequence[str], *, children: bool = False, contents: bool = False) -> None:
        """Remove categories. By default their children move up, and their connections to the default category."""
        options = {"removeChildrenCategories": children, "removeContents": contents}
        self._post("/category/remove", categories=list(categories), **options)


class Connections(Group):
    """``/connection``."""

    def query(
        self, connection: str = "*", *, category: str = "*", type: str = "*", name: str | None = None
    ) -> list[str]:
        """Return the ids of the connections that all filters match; ``name`` matches the path, or category and path."""
        filters = {"categoryFilter": category, "connectionFilter": connection, "typeFilter": type}
        return list(self._post("/connection/query", **filters, **given(nameFilter=name))["found"])

    def names(self, name: str = "*", *, path: str = "*", category: str = "*", type: str = "*") -> list[Name]:
        """Return the names of the connections that all filters match, by their paths; ``name`` as in :meth:`query`."""
        filters = {"categoryFilter": category, "connectionFilter": path, "typeFilter": type, "nameFilter": name}
        answer = self._post("/connection/query", **filters, names=True)
        return [Name.read(id, one) for id, one in zip(answer["found"], answer["names"], strict=True)]

    def find(self, *names: str) -> str:
        """Return the id that the first known of these names means, by the rule in :mod:`connmgr.client.names`."""
        return find(self, *names)

    def choose(self, *selectors: str, category: str = "*", type: str = "*", usage: str | None = None) -> list[Name]:
        """Return what names and patterns mean; as :func:`connmgr.client.names.choose`."""
        return choose(self, selectors, category=category, type=type, usage=usage)

    def info(self, connections: Sequence[str]) -> list[Connection]:
        """Describe connections; an unknown one fails the whole request."""
        return [Connection.read(one) for one in self._post("/connection/info", connections=list(connections))["infos"]]

    def add(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        validate: bool = False,
        category: str | None = None,
        temporary: bool | None = None,
    ) -> str:
        """Store a connection as :meth:`ensure` does, and return its id."""
        return self.ensure(name, data, validate=validate, category=category, temporary=temporary)[0]

    def ensure(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        validate: bool = False,
        category: str | None = None,
        temporary: bool | None = None,
    ) -> tuple[str, bool]:
        """Return the id of a connection with ``data``, which includes its ``type``, and whether it is new.

        An equivalent one that is stored keeps its name. A ``temporary`` one stays in the daemon's memory while it has a
        shell, and for a minute more.
        """
        more = given(category=category, temporary=temporary)
        answer = self._post("/connection/add", name=name, data=dict(data), validate=validate, **more)
        return str(answer["connection"]), bool(answer["added"])

    def elevate(self, connection: str, user: str = "root", *, password: str | None = None) -> str:
        """Return the id of a connection that runs as ``user``, by sudo over ``connection``; no machine is asked.
        Without a ``password``, sudo gets the stored one. The id is accepted wherever one of a connection is."""
        answer = self._post("/connection/elevate", connection=connection, user=user, **given(password=password))
        return str(answer["connection"])

    def update(
        self,
        connection: str,
        *,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        category: str | None = None,
        validate: bool = False,
    ) -> None:
        """Change the given fields; ``data`` replaces all stored data and includes the ``type``."""
        changes = {"name": name, "data": None if data is None else dict(data), "category": category}
        given = {key: value for key, value in changes.items() if value is not None}
        self._post("/connection/update", connection=connection, validate=validate, **given)

    def remove(self, connections: Sequence[str]) -> None:
        """Remove connections, and all connections over them."""
        self._post("/connection/remove", connections=list(connections))

    def environment(self, connection: str) -> tuple[list[str], dict[str, str]]:
        """Return the names, with * and ?, of the variables that a client sends, and those that are set anyway."""
        answer = self._post("/connection/environment", connection=connection)
        return list(answer["send"]), dict(answer["set"])

    def login(self, connection: str, *, agent: str | None = None, passphrases: Mapping[str, str] | None = None) -> bool:
        """Log in with what this client lends, for this login alone; return whether a link was opened.

        ``agent`` is the path of an ssh-agent's socket. ``passphrases`` are by ``key`` of the error ``auth_failed``.
        """
        lent = [{"key": key, "passphrase": passphrase} for key, passphrase in (passphrases or {}).items()]
        return bool(
            self._post("/connection/login", connection=connection, passphrases=lent, **given(agent=agent))["opened"]
        )

    def refresh(self, connection: str) -> Refreshed:
        """Open a connection as a test, and store its state."""
        return Refreshed.read(self._post("/connection/refresh", connection=connection))

    def toggle(self, connection: str, state: bool) -> None:
        """Open or close a tunnel, or start or stop the system that a connection leads to."""
        self._post("/connection/toggle", connection=connection, state=state)

    def browse(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a connection's files, or an empty dict if there is none."""
        return dict(self._post("/connection/browse", connection=connection, **given(directory=directory)))

    def terminal(self, connection: str, directory: str | None = None) -> dict[str, Any]:
        """Return the ``url`` of a page with a terminal on a connection, or an empty dict if there is none."""
        return dict(self._post("/connection/terminal", connection=connection, **given(directory=directory)))

    def apply(
        self,
        *,
        categories: Sequence[Sequence[str]] = (),
        add: Sequence[Mapping[str, Any]] = (),
        change: Sequence[Mapping[str, Any]] = (),
        remove: Sequence[str] = (),
    ) -> Applied:
        """Make all changes in one step, or none; the entries are those of ``/connection/apply``."""
        fields = {"categories": categories, "add": add, "change": change, "remove": remove}
        return Applied.read(self._post("/connection/apply", **{name: list(value) for name, value in fields.items()}))

    def types(self) -> list[ConnectionType]:
        """Describe the installed connection types."""
        return [ConnectionType.read(one) for one in self._post("/connection/types")["types"]]


class HostKeys(Group):
    """``/hostkey``."""

    def trust(self, connection: str, host: str, key: str) -> None:
        """Accept ``key`` of ``host``: ``hostKey`` and ``host`` in the details of the error ``host_key_unknown``."""
        self._post("/hostkey/trust", connection=connection, host=host, hostKey=key)

    def forget(self, connection: str, host: str | None = None) -> list[ForgottenKey]:
        """Remove the known keys of ``host``, by default the host that the connection leads to, and return them."""
        more = {} if host is None else {"host": host}
        found = self._post("/hostkey/forget", connection=connection, **more)["keys"]
        return [ForgottenKey.read(key) for key in found]


class Secrets(Group):
    """``/secret``."""

    def encrypt(self, value: str, principals: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the encrypted form of ``value``."""
        options = {} if principals is None else {"principals": list(principals)}
        return dict(self._post("/secret/encrypt", value=value, **options)["encrypted"])

    def decrypt(self, encrypted: Mapping[str, Any]) -> str:
        """Return the value that :meth:`encrypt` encrypted."""
        return str(self._post("/secret/decrypt", encrypted=dict(encrypted))["decrypted"])

    def sudo(self, password: str | None, *, connection: str | None = None, category: str | None = None) -> None:
        """Store the password that sudo asks for on a connection or on those of a category; None removes it."""
        self._post("/secret/sudo", password=password, **given(connection=connection, category=category))

    def sudo_source(self, *, connection: str | None = None, category: str | None = None) -> dict[str, str]:
        """Return for what the password in use is stored: ``connection`` or ``category`` with its id, or nothing."""
        return dict(self._post("/secret/sudo", **given(connection=connection, category=category)))


class Vault(Group):
    """``/vault``; unlocking affects only this client's session."""

    def status(self) -> VaultStatus:
        """Return whether the vault has users, and what this session may decrypt."""
        return VaultStatus.read(self._post("/vault/status"))

    def unlock(self, user: str, passphrase: str) -> None:
        """Unlock a user for this session."""
        self._post("/vault/unlock", user=user, passphrase=passphrase)

    def lock(self) -> None:
        """Forget the user that this session has unlocked."""
        self._post("/vault/lock")

    def add_user(self, user: str, passphrase: str) -> None:
        """Add a user."""
        self._post("/vault/user/add", user=user, passphrase=passphrase)

    def change_passphrase(self, user: str, passphrase: str, new: str) -> None:
        """Change a user's passphrase."""
        self._post("/vault/user/passphrase", user=user, passphrase=passphrase, newPassphrase=new)

    def remove_user(self, user: str, *, passphrase: str | None = None, force: bool = False) -> RemovedUser:
        """Remove a user; the user's ``passphrase`` permits it, and lets secrets be sealed anew."""
        told = self._post("/vault/user/remove", user=user, force=force, **given(passphrase=passphrase))
        return RemovedUser(told["connections"], told["resealed"], told["heir"], told["lost"])


class DaemonItself(Group):
    """``/daemon``."""

    def version(self) -> Version:
        """Return the versions of the API, the daemon and its runtime."""
        return Version.read(self._post("/daemon/version"))

    def status(self) -> DaemonStatus:
        """Describe the running daemon: its shells and the resources in use."""
        return DaemonStatus.read(self._post("/daemon/status"))

    def stop(self) -> None:
        """Tell the daemon to stop."""
        self._post("/daemon/stop")


def what_runs(command: str | None, argv: Sequence[str] | None, saved: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a command, or of a program with its words."""
    # list() would split a string into letters; unchanged, the daemon refuses it.
    words = argv if argv is None or isinstance(argv, str) else list(argv)
    return given(command=command, argv=words, saved=saved)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
