"""The rights of one token: its scopes, visibility, rules and limits, within those of the token that created it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from connmgr.contract.token import MAX_DAYS as MAX_DAYS
from connmgr.contract.token import MAX_FILTERS as MAX_FILTERS
from connmgr.errors import ConnmgrError, InvalidRequest, ScopeDenied, TokenExpired, TokenRevoked
from connmgr.rights.rule import FS_ACTIONS, WRITE
from connmgr.rights.rules import Rules, load_rules
from connmgr.rights.scopes import LOOKING, missing
from connmgr.vault import names
from connmgr.vault.documents import Document
from connmgr.vault.names import SEPARATOR

LOOPBACK = "127.0.0.1"
REVOKED = "The token was revoked."


class Paths:
    """Decides by filters (:mod:`connmgr.vault.names`) whether a path is in sight.

    :raises InvalidRequest: a malformed filter; the message names its place within ``member``.
    """

    def __init__(self, filters: Sequence[str], member: str, *, below_root: bool = False) -> None:
        self.filters = tuple(filters)
        alternatives: list[names.Alternative] = []
        self.is_everything = False
        for place, filter_text in enumerate(filters):
            try:
                compiled = names.compile_pattern(filter_text, below_root=below_root)
            except InvalidRequest as error:
                raise InvalidRequest(f"{member}[{place}]: {error.message}") from None
            self.is_everything |= compiled is None
            alternatives += compiled or []
        self._matches = names.Matcher(alternatives)

    def __call__(self, path: str) -> bool:
        return self.is_everything or self._matches(path)


@dataclass(frozen=True)
class ConnectionFacts:
    """A connection as rights see it: its path, the path of its category, and its user."""

    id: str
    path: str
    category: str
    user: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which filters may find it."""
        return self.path, f"{self.category.partition(SEPARATOR)[2]}{SEPARATOR}{self.path}"


@dataclass(frozen=True)
class Grant:
    """A token as it was last read. Its rights never exceed those of ``parent``, with which it was created."""

    id: str
    name: str
    expires: datetime
    revoked: bool
    own_scopes: frozenset[str]
    connections: Paths
    categories: Paths
    rules: Rules
    quota_per_day: int | None
    max_concurrent: int | None
    networks: tuple[IPv4Network | IPv6Network, ...]
    own_read_only: bool
    parent: Grant | None
    lineage: tuple[Grant, ...] = field(init=False)
    """This token, its parent, and so on."""

    scopes: frozenset[str] = field(init=False)
    """Its own scopes, as far as all its ancestors have them too."""

    def __post_init__(self) -> None:
        above = self.parent.lineage if self.parent else ()
        object.__setattr__(self, "lineage", (self, *above))
        object.__setattr__(self, "scopes", self.own_scopes & self.parent.scopes if self.parent else self.own_scopes)

    @classmethod
    def load(cls, document: Document, parent: Grant | None, *, is_new: bool = False) -> Grant:
        """Return the grant of a stored token, or of one that ``is_new`` and about to be stored.

        :raises InvalidRequest: a filter, an address or a rule is malformed; the message names its place.
        """
        body = document.body
        return cls(
            id=document.id,
            name=body["name"],
            expires=document.expires or document.created,
            revoked=body.get("revoked") is not None,
            own_scopes=frozenset(body["scopes"]),
            connections=Paths(body["connections"], "connections"),
            categories=Paths(body["categories"], "categories", below_root=True),
            rules=load_rules(body["rules"], are_stored=not is_new),
            quota_per_day=body.get("quotaPerDay"),
            max_concurrent=body.get("maxConcurrent"),
            networks=tuple(networks(body.get("from", ()))),
            own_read_only=body.get("readOnly") is True,
            parent=parent,
        )

    def require_valid(self, at: datetime) -> None:
        """Raise :class:`TokenRevoked` or :class:`TokenExpired` unless it and all its ancestors are valid."""
        if why := self.invalid(at):
            raise why

    def invalid(self, at: datetime) -> ConnmgrError | None:
        """Return the error of an invalid token, or None."""
        return why_invalid(((grant.revoked, grant.expires) for grant in self.lineage), at)

    def require_address(self, address: str | None) -> None:
        """Raise :class:`ScopeDenied` unless the token may be used from ``address``.

        Anything but an IP address means this machine's Unix socket, which counts as 127.0.0.1.
        """
        if not any(grant.networks for grant in self.lineage):
            return
        try:
            from_ = ip_address(address or LOOPBACK)
        except ValueError:
            from_ = ip_address(LOOPBACK)
        for grant in self.lineage:
            if grant.networks and not any(from_ in network for network in grant.networks):
                raise ScopeDenied("The token may not be used from this address.")

    def require_scope(self, action: str) -> None:
        """Raise :class:`ScopeDenied` unless the token has the scopes that ``action`` needs."""
        if self.read_only and action not in LOOKING:
            raise ScopeDenied(f"The token may only look (readOnly), and {action} does more than that.")
        lacking = missing(action, self.scopes)
        if lacking is not None:
            raise _lacks(lacking)

    def require_one(self, scopes: frozenset[str]) -> None:
        """Raise :class:`ScopeDenied` unless the token has one of ``scopes``."""
        if scopes.isdisjoint(self.scopes):
            raise _lacks(scopes)

    # A token may do only what the tokens above it may. Each is asked in turn, here and for rules: whether one filter or
    # rule allows less than another cannot be decided in general, so none is compared with another.

    def sees(self, facts: ConnectionFacts) -> bool:
        """Whether a connection is in its sight."""
        return all(grant.connections(facts.path) and grant.categories(facts.category) for grant in self.lineage)

    def may_see_category(self, path: str) -> bool:
        """Whether a category may be in its sight, by its filters alone."""
        return all(grant.categories(path) for grant in self.lineage)

    @property
    def lineage_ids(self) -> list[str]:
        return [grant.id for grant in self.lineage]

    @property
    def sees_all(self) -> bool:
        return all(grant.connections.is_everything and grant.categories.is_everything for grant in self.lineage)

    @property
    def has_rules_over_paths(self) -> bool:
        return any(grant.rules.over_paths(action) for grant in self.lineage for action in FS_ACTIONS)

    def writable_roots(self, on: ConnectionFacts) -> list[bytes]:
        """Return the paths that its own rules, or else the rules of its parent, let it write on a connection."""
        # Of the nearest that has rules: those above it may allow more, but every rule of the line has to allow a write.
        for grant in self.lineage:
            if grant.rules.over_paths(WRITE):
                return grant.rules.writable_roots(on.names, on.user)
        return []

    @property
    def read_only(self) -> bool:
        """Whether it may only look: what it runs cannot change anything on its machine."""
        return any(grant.own_read_only for grant in self.lineage)

    @property
    def is_unbound(self) -> bool:
        """Whether it may run any command. It can then affect the work of others on the machine anyway."""
        is_bound = self.read_only or any(grant.rules.closes_commands for grant in self.lineage)
        return "shell.any" in self.scopes and not is_bound


def _lacks(scopes: frozenset[str]) -> ScopeDenied:
    needed = " or ".join(sorted(scopes))
    return ScopeDenied(f"The token lacks the scope {needed}." if needed else "Only the owner may do this.")


def why_invalid(line: Iterable[tuple[bool, datetime]], at: datetime) -> ConnmgrError | None:
    """Return the error of an invalid token, or None; ``line`` has (revoked, expiry) of it and its ancestors."""
    ends = list(line)
    if any(revoked for revoked, _ in ends):
        return TokenRevoked(REVOKED)
    if any(expires <= at for _, expires in ends):
        return TokenExpired("The token has expired: ask for a new one.")
    return None


def networks(texts: Iterable[str]) -> Iterable[IPv4Network | IPv6Network]:
    """Yield the networks of addresses in CIDR notation.

    :raises InvalidRequest: one is malformed.
    """
    for place, text in enumerate(texts):
        try:
            yield ip_network(text)
        except ValueError as error:
            raise InvalidRequest(f"from[{place}]: Not an IP address or network: {error}") from None
