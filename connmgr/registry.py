"""Finds connection types through the entry-point group ``connmgr``, and isolates broken plugins."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import pluggy

from connmgr.errors import InvalidRequest, UnknownType
from connmgr.fields import every_field
from connmgr.json_schema import json_schema
from connmgr.plugin import (
    AnyConnectionType,
    ConnectionType,
    Reference,
    Schema,
    Secret,
    SecretSource,
    SshSigner,
    Tunnel,
    ValidationError,
    Wrapper,
    hooks,
)
from connmgr.secret_sources import SecretSources

logger = logging.getLogger("connmgr.registry")

GROUP = "connmgr"
BUNDLED = "connmgr"
USAGE_CATEGORIES = ("shell", "tunnel", "command", "group")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOOK = re.compile(r"connmgr_\w+")
Kind = TypeVar("Kind", SshSigner, SecretSource)
SLOW_SECONDS = 2.0
"""After this time a plugin that is still loading is named in the log."""


@dataclass(frozen=True)
class Registered:
    """A connection type and its distribution."""

    type: AnyConnectionType
    distribution: str
    version: str

    @property
    def name(self) -> str:
        return self.type.name


@dataclass(frozen=True)
class Offered(Generic[Kind]):
    """A signer of SSH certificates or a secret source that a plugin offers, and its distribution."""

    kind: Kind
    distribution: str

    @property
    def name(self) -> str:
        return self.kind.name


Entry = TypeVar("Entry", Registered, Offered[SshSigner], Offered[SecretSource])


@dataclass(frozen=True)
class Problem:
    """A plugin that cannot be used, and why."""

    plugin: str
    distribution: str
    reason: str


class Registry:
    """The connection types of this installation, by name, and its secret sources."""

    def __init__(
        self,
        registered: Iterable[Registered],
        problems: Iterable[Problem] = (),
        plugins: pluggy.PluginManager | None = None,
        signers: Iterable[Offered[SshSigner]] = (),
        sources: Iterable[Offered[SecretSource]] = (),
    ) -> None:
        self.plugins = plugins or _manager()
        """Calls the hooks of all usable plugins."""
        self.problems = list(problems)
        types = {entry.name: entry for entry in self._without_rivals("connection type", registered)}
        self._types = MappingProxyType(dict(sorted(types.items())))
        self._schemas: dict[str, Schema] = {}
        self._signers = {entry.name.lower(): entry.kind for entry in self._without_rivals("signer", signers)}
        self.sources = SecretSources(entry.kind for entry in self._without_rivals("secret source", sources))

    @classmethod
    def load(cls) -> Registry:
        """Load every installed plugin; ``problems`` lists those that fail."""
        registered: list[Registered] = []
        signers: list[Offered[SshSigner]] = []
        problems: list[Problem] = []
        sources: list[Offered[SecretSource]] = []
        plugins = _manager()
        for entry_point in metadata.entry_points(group=GROUP):
            with _contained(problems, entry_point.name, _owner(entry_point.dist)):
                owner, version = _named(entry_point.dist)
                with _added(plugins, entry_point.load(), f"{owner} {entry_point.name}") as plugin:
                    kinds = _types_of(plugins, plugin)
                    offered = _checked(SshSigner, "type", _offered(plugins, plugin, "connmgr_ssh_signers"))
                    signers += [Offered(kind, owner) for kind in offered]
                    offered = _checked(SecretSource, "source", _offered(plugins, plugin, "connmgr_secret_sources"))
                    sources += [Offered(kind, owner) for kind in offered]
                    registered += [Registered(kind, owner, version) for kind in kinds]
        return cls(registered, problems, plugins, signers, sources)

    def prepare(self, directory: Path) -> None:
        """Tell every type the daemon's data ``directory``; one that fails stays in use, and ``problems`` lists it."""
        for entry in self:
            with _contained(self.problems, entry.type.name, entry.distribution, "prepare: "):
                entry.type.prepare(directory)

    def _without_rivals(self, what: str, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield one entry of each name: of rivals the bundled one, or none."""
        by_name: dict[str, list[Entry]] = {}
        for entry in entries:
            # In lower case, because people type names and filters ignore case.
            by_name.setdefault(entry.name.lower(), []).append(entry)
        for rivals in by_name.values():
            bundled = [entry for entry in rivals if entry.distribution == BUNDLED]
            winner = (bundled or rivals)[0] if len(rivals) == 1 or bundled else None
            if winner is not None:
                yield winner
            for rival in rivals:
                if rival is not winner:
                    reason = _refusal(what, rival, [entry for entry in rivals if entry is not rival])
                    self.problems.append(Problem(rival.name, rival.distribution, reason))

    def get(self, name: str) -> AnyConnectionType:
        """Return the connection type called ``name``.

        :raises UnknownType: no usable plugin offers it.
        """
        try:
            return self._types[name].type
        except KeyError:
            installed = ", ".join(self._types) or "none"
            raise UnknownType(f"Unknown connection type: {name} (installed: {installed})") from None

    def schema(self, name: str) -> Schema:
        """Return the schema of the data of the connection type called ``name``; raise as :meth:`get`.

        It is one object, for whoever only looks for fields: making one takes longer than many a request.
        """
        schema = self._schemas.get(name)
        if schema is None:
            schema = self._schemas[name] = self.get(name).schema()
        return schema

    def signer(self, name: str) -> SshSigner:
        """Return the kind of signers called ``name``.

        :raises InvalidRequest: no usable plugin offers it.
        """
        signer = self._signers.get(name.lower())
        if signer is None:
            installed = ", ".join(sorted(self._signers)) or "none"
            raise InvalidRequest(f"Unknown type of signers: {name} (installed: {installed})")
        return signer

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._types.values())


@contextmanager
def _contained(problems: list[Problem], plugin: str, owner: str, step: str = "") -> Iterator[None]:
    """Run third-party code, and contain all that it raises (even an exit) or prints."""
    message = "Plugin %s of %s: loading it takes more than %g s."
    slow = threading.Timer(SLOW_SECONDS, logger.warning, (message, plugin, owner, SLOW_SECONDS))
    slow.daemon = True
    slow.start()
    try:
        # Stdout is reserved for the program: the daemon's ready line, or JSON.
        with redirect_stdout(sys.stderr):
            yield
    except BaseException as error:
        # With Python's own handler, the signal may come from a person.
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            logger.warning("Interrupted while the plugin %s of %s was loaded.", plugin, owner)
            raise
        problems.append(Problem(plugin, owner, f"{step}{type(error).__name__}: {error}"))
    finally:
        slow.cancel()


def _refusal(what: str, rival: Entry, others: Iterable[Entry]) -> str:
    # Neither of two plugins gets a name that both claim: choosing one would be a guess, and connections hold secrets.
    owners = {entry.distribution for entry in others} - {rival.distribution}
    by = f"also offered by {', '.join(sorted(owners))}" if owners else "offered twice by this distribution"
    spellings = sorted({repr(entry.name) for entry in others} - {repr(rival.name)})
    as_well = f", as {', '.join(spellings)}; case makes no difference" if spellings else ""
    return f"refused: the {what} {rival.name!r} is {by}{as_well}"


def _manager() -> pluggy.PluginManager:
    plugins = pluggy.PluginManager("connmgr")
    plugins.add_hookspecs(hooks)
    return plugins


@contextmanager
def _added(plugins: pluggy.PluginManager, plugin: object, name: str) -> Iterator[object]:
    """Register ``plugin``, once for all its entry points, unless the ``with`` block raises."""
    is_registered = plugins.is_registered(plugin)
    if not is_registered:
        plugins.register(plugin, name)
    try:
        plugins.check_pending()
        yield plugin
    except BaseException:
        if not is_registered:
            plugins.unregister(plugin)
        raise


def _offered(plugins: pluggy.PluginManager, plugin: object, name: str) -> list[Any] | None:
    """Return what ``plugin`` alone returns for the hook ``name``; None if it does not implement it."""
    others = [other for other in plugins.get_plugins() if other is not plugin]
    hook = plugins.subset_hook_caller(name, others)
    if not any(implementation.plugin is plugin for implementation in hook.get_hookimpls()):
        return None
    return [offer for offers in hook() for offer in offers]


def _types_of(plugins: pluggy.PluginManager, plugin: object) -> Sequence[AnyConnectionType]:
    """Return the types that ``plugin`` offers; none if it implements only other hooks.

    :raises LookupError: it implements none, or a function with the name of a hook would never be called.
    """
    for name in filter(_HOOK.fullmatch, dir(hooks)):
        # Next to others, a `connmgr_authorise` that nobody calls would let everything pass.
        if callable(getattr(plugin, name, None)) and plugins.parse_hookimpl_opts(plugin, name) is None:
            raise LookupError(f"its {name} lacks @hookimpl, so connmgr would never call it")
    if not plugins.get_hookcallers(plugin):
        raise LookupError("it implements no hook of connmgr")
    types: list[AnyConnectionType] | None = _offered(plugins, plugin, "connmgr_connection_types")
    for kind in types or ():
        _check(kind)
    if types == []:
        raise LookupError("it offers no types")
    return types or []


def _checked(contract: Any, ours: str, offered: Sequence[Any] | None) -> Sequence[Any]:
    """Return what a plugin offers of the kind ``contract``; in its data, the field ``ours`` is connmgr's."""
    for kind in offered or ():
        if not isinstance(kind, contract):
            raise TypeError(f"not an instance of {contract.__name__}: {kind!r}")
        _check_words(kind, ("name", "description"))
        for path, field in every_field(_check_fields(kind, ours)):
            if isinstance(field, Reference):
                owner = type(kind).__name__
                raise TypeError(f"{owner}.schema: {path} is a reference to a connection, which only types have")
    return offered or ()


def _check(kind: object) -> None:
    if not isinstance(kind, ConnectionType | Wrapper | Tunnel):
        raise TypeError(f"not an instance of ConnectionType, Wrapper or Tunnel: {kind!r}")
    owner = type(kind).__name__
    _check_words(kind, ("name", "description", "usage_category"))
    if kind.usage_category not in USAGE_CATEGORIES:
        raise ValueError(f"{owner}.usage_category is {kind.usage_category!r}, not one of {', '.join(USAGE_CATEGORIES)}")
    _check_schema(owner, kind)
    _check_description(owner, kind)


def _check_words(kind: AnyConnectionType | SshSigner | SecretSource, attributes: Iterable[str]) -> None:
    owner = type(kind).__name__
    for attribute in attributes:
        value = getattr(kind, attribute, None)
        if not isinstance(value, str) or not value:
            raise TypeError(f"{owner}.{attribute} is {value!r}, not a text")
    if not _NAME.fullmatch(kind.name):
        raise ValueError(f"{owner}.name is {kind.name!r}, not made of letters, digits, hyphens, dots and underscores")


def _check_fields(kind: AnyConnectionType | SshSigner | SecretSource, ours: str = "type") -> Schema:
    owner, schema = type(kind).__name__, getattr(kind, "schema", None)
    if not isinstance(schema, type) or not issubclass(schema, Schema):
        raise TypeError(f"{owner}.schema is {schema!r}, not a subclass of connmgr.plugin.Schema")
    schema_instance = schema()
    if ours in schema_instance.fields:
        raise TypeError(f"{owner}.schema has a field `{ours}`, which is connmgr's")
    for path, field in every_field(schema_instance):
        _check_place(f"{owner}.schema: {path}", field)
    return schema_instance


def _check_schema(owner: str, kind: AnyConnectionType) -> None:
    schema_instance = _check_fields(kind)
    via = schema_instance.fields.get(kind.via) if kind.via is not None else None
    if not isinstance(via, Reference) and (kind.via is not None or isinstance(kind, Wrapper | Tunnel)):
        raise TypeError(f"{owner}.via is {kind.via!r}, not the name of a Reference field")


def _check_description(owner: str, kind: AnyConnectionType) -> None:
    """Refuse a type that ``/connection/types`` cannot describe, because the answer would fail for all types."""
    if not isinstance(kind.example, Mapping):
        raise TypeError(f"{owner}.example is {kind.example!r}, not a mapping")
    described = {"the JSON Schema": json_schema(kind)}
    # A type with required fields and no example can still be described.
    if kind.example:
        try:
            described["the example as the schema loads it"] = kind.schema().load(kind.example)
        except ValidationError as error:
            raise ValueError(f"{owner}.example is refused by its schema: {error}") from error
    for what, value in described.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{owner}: {what} is not JSON: {error}") from error


def _check_place(path: str, field: Any) -> None:
    """Refuse a secret where secrets are not looked for, because it would be stored in plain text."""
    if {field.attribute, field.data_key} - {None, field.name}:
        raise TypeError(f"{path} is stored under another name, by `attribute` or `data_key`")
    if isinstance(getattr(field, "key_field", None), Secret | Reference):
        raise TypeError(f"{path} has keys that are secrets or references: only values can be")


def _owner(distribution: metadata.Distribution | None) -> str:
    try:
        return _named(distribution)[0]
    except Exception:  # noqa: BLE001 - what is wrong is told where the plugin is loaded
        return "unknown"


def _named(distribution: metadata.Distribution | None) -> tuple[str, str]:
    # A third-party finder may raise an exception where the standard one returns nothing.
    with suppress(FileNotFoundError):
        # Each access to the metadata parses the file.
        facts = None if distribution is None else distribution.metadata
        if facts is not None and "Name" in facts:
            version = facts["Version"] if "Version" in facts else ""  # noqa: SIM401 - before 3.12 there is no get
            return facts["Name"], version or "unknown"
    raise LookupError("its distribution is damaged: it has no name")
