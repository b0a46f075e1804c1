"""What a name means: the one rule by which every client of the daemon chooses connections.

A **name** is the end of what ``connmgr ls --format names`` prints, in whole segments: ``default/web/root`` is also
``web/root`` and ``root``. A whole path (``web/root``, or with its category) goes before the ends of others. If several
connections have a name, it means none of them. A uuid is a name too, and ``local`` is one of the local machine.

A **pattern** has ``*``, ``?``, ``[`` or ``{a,b}``, and means all connections that it matches: with a ``/`` it is held
against paths, with the category or without it; without a ``/`` against last names. ``*`` matches all.

Nothing else means a connection. A part of a name is an error, so that a name never reaches another machine than the one
that has it: ``cache1`` is not ``cache10``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from connmgr.client.errors import ClientError
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.contract.connection import ConnectionInfo as Connection
    from connmgr.contract.connection import FoundName

UUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
"""The pattern of a uuid; :func:`is_uuid` needs no regular expression, whose compilation every command would pay."""
UNKNOWN = "unknown_connection"

LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The uuid of the connection to the daemon's own machine."""

LOCAL = "local"
"""A last name that the local machine has beside its own, whatever that is."""

MAX_CANDIDATES = 20
"""Candidates listed for an ambiguous name."""

MAX_SUGGESTIONS = 3
MIN_LIKENESS = 0.6
"""A ratio of difflib: 0 for nothing in common, 1 for equal."""

MIN_SHORT_CHARACTERS = 8
"""Hexadecimal digits at the beginning of a uuid that suffice for reading."""

_PATTERN = r"[*?\[]|\{[^}]*,"
_WILDCARDS = r"[*?{}\[\]!]+"
_SHORT = r"[0-9A-Fa-f]{8}[0-9A-Fa-f-]*"
_LITERALLY = {ord(character): f"[{character}]" for character in "*?[]{},"}
_HEXADECIMAL = frozenset("0123456789ABCDEFabcdef")
_HYPHENS = [8, 13, 18, 23]


class Name(NamedTuple):
    """The name of a connection; ``name`` and ``category`` are paths, the latter without the root.

    ``usage`` is None if no installed plugin offers the type.
    """

    id: str
    category: tuple[str, ...]
    name: tuple[str, ...]
    type: str
    usage: str | None

    @property
    def path(self) -> str:
        """The name as one text, ``web/root``."""
        return "/".join(self.name)

    @classmethod
    def of(cls, id: str, found: FoundName) -> Name:
        """Return the name that a query has found for the connection ``id``."""
        return cls(id, found.category, tuple(found.name), found.type, found.usage_category)


class Listing(Protocol):
    """The connections of a vault, by filters of ``/connection/query``."""

    def names(self, name: str = "*", *, path: str = "*", category: str = "*", type: str = "*") -> list[Name]:
        """Return the names of the connections that all filters match."""


class ConditionalListing(Listing, Protocol):
    """Such connections, which can also be chosen by a condition on labels and facts."""

    def names(
        self, name: str = "*", *, path: str = "*", category: str = "*", type: str = "*", where: str | None = None
    ) -> list[Name]:
        """Return the names of the connections that all filters match, and for which ``where`` holds."""


class _Narrowed(NamedTuple):
    """The connections of a listing for which a condition holds."""

    whole: ConditionalListing
    where: str

    def names(self, name: str = "*", *, path: str = "*", category: str = "*", type: str = "*") -> list[Name]:
        return self.whole.names(name, path=path, category=category, type=type, where=self.where)


def is_uuid(text: str) -> bool:
    """Whether ``text`` is a uuid, in letters of either case."""
    hyphens = [index for index, character in enumerate(text) if character == "-"]
    return len(text) == 36 and hyphens == _HYPHENS and all(one in _HEXADECIMAL for one in text.replace("-", ""))


def is_pattern(text: str) -> bool:
    """Whether ``text`` means all connections that it matches, not one that is called so."""
    return bool(re.search(_PATTERN, text))


def named(connections: Listing, name: str, *, category: str = "*", type: str = "*") -> list[Name]:
    """Return the connections that ``name`` means, among those in a matching category and of a matching type.

    None is an unknown name, several are an ambiguous one. Wildcards in ``name`` stand for themselves. A blank means no
    connection: it is what a script's empty variable leaves.
    """
    if not all(map(is_text, (name, category, type))) or not name.strip():
        return []
    if is_uuid(name):
        return [one for one in connections.names(category=category, type=type) if one.id == name.lower()]
    if "/" in name:
        found = connections.names(f"**/{escape(name)}", category=category, type=type)
    else:
        found = connections.names(path=f"**/{escape(name)}", category=category, type=type)
    size = len(name.split("/"))
    # The category may begin with the root, which answers leave out.
    whole = [one for one in found if size - len(one.name) in (0, len(one.category), len(one.category) + 1)]
    if whole or name.lower() != LOCAL:
        return whole or found
    # Its type narrows the answer, which could otherwise be the whole vault.
    own = connections.names(category=category, type=LOCAL if type == "*" else type)
    return [*found, *(one for one in own if one.id == LOCAL_MACHINE and one not in found)]


def matching(connections: Listing, pattern: str, *, category: str = "*", type: str = "*") -> list[Name]:
    """Return the connections that ``pattern`` matches, in a matching category and of a matching type."""
    if not all(map(is_text, (pattern, category, type))):
        return []
    return connections.names(**filters_of(pattern), category=category, type=type)


def filters_of(pattern: str) -> dict[str, str]:
    """Return the filters of :meth:`Listing.names` for the connections that ``pattern`` matches."""
    if "/" in pattern:
        return {"name": pattern}
    # Within a last name there is nothing that ** could match and * could not.
    last = re.sub(r"\*+", "*", pattern)
    return {"path": "*" if last == "*" else f"**/{last}"}


def find(
    connections: Listing,
    *names: str,
    accepts: Callable[[Name], bool] = lambda _: True,
    noun: str = "connection",
    listing: str = " `connmgr ls` lists them.",
) -> str:
    """Return the uuid of the connection that the first of ``names`` means that means any; a uuid means itself.

    The error suggests connections that ``accepts`` accepts, by names that it would find.
    :raises ClientError: ``unknown_connection``: no connection is meant, or several are, which are listed.
    """
    for name in names:
        found = [name.lower()] if is_uuid(name) else [one.id for one in alone(named(connections, name), name)]
        if found:
            return found[0]
    raise _unknown(connections, names, accepts, noun, listing)


def choose(
    connections: ConditionalListing,
    selectors: Sequence[str],
    *,
    category: str = "*",
    type: str = "*",
    usage: str | None = None,
    where: str | None = None,
) -> list[Name]:
    """Return what names and patterns mean, by category and path; without ``selectors``, all that the filters match.

    ``usage`` excludes connections of other usages, ``where`` those for which a condition on labels and facts is false.
    :raises ClientError: ``unknown_connection``: one of ``selectors`` means none, or is the name of several.
    """
    within: Listing = connections if where is None else _Narrowed(connections, where)
    found: dict[str, Name] = {}
    problems: list[str] = []
    for selector in selectors or ["*"]:
        if is_pattern(selector):
            means = matching(within, selector, category=category, type=type)
        else:
            means = alone(named(within, selector, category=category, type=type), selector)
        usable = [mean for mean in means if usage in (None, mean.usage)]
        found.update((one.id, one) for one in usable)
        if not usable and selectors and (selector != "*" or where is not None):
            problems.append(_unmatched(within, selector, means, category, type, usage))
    if problems:
        raise ClientError("\n".join(problems), UNKNOWN, 0)
    return sorted(found.values(), key=lambda one: (one.category, one.name))


def _unmatched(
    connections: Listing, selector: str, means: Sequence[Name], category: str, type: str, usage: str | None
) -> str:
    """Return the message about a selector that chooses nothing; ``means`` are those of other usages."""
    if means and not is_pattern(selector):
        [one] = means
        return f"{visible(one.path)!r} has the type {one.type}, and a connection with a {usage} is needed here."
    narrowed = f" in category {category!r}" if category != "*" else ""
    narrowed += f" of type {type!r}" if type != "*" else ""
    narrowed += f" where {connections.where!r} holds" if isinstance(connections, _Narrowed) else ""
    runs = " that runs commands" if usage == "shell" and means else ""
    verb = "matches" if is_pattern(selector) else "is called"
    said = f"No connection{runs}{narrowed} {verb} {selector!r}."
    if not all(map(is_text, (selector, category, type))):
        return said
    everything = connections.names()
    usable = {name.id for name in connections.names(category=category, type=type) if usage in (None, name.usage)}
    hint = suggested(selector, everything, lambda one: one.id in usable, patterns=True)
    return f"{said}{hint} `connmgr ls` lists them."


def alone(found: list[Name], name: str, noun: str = "connection") -> list[Name]:
    """Return ``found``; raise ``unknown_connection`` with the candidates if ``name`` means several."""
    if len(found) < 2:
        return found
    lines = sorted(f"  {one.id}  {visible(qualified(one))}" for one in found)[:MAX_CANDIDATES]
    if len(found) > len(lines):
        lines.append(f"  and {len(found) - len(lines)} more")
    message = f"{name!r} is the name of {len(found)} {noun}s; write the category before it, or the uuid:"
    raise ClientError("\n".join([message, *lines]), UNKNOWN, 0)


def _unknown(
    connections: Listing, names: Sequence[str], accepts: Callable[[Name], bool], noun: str, listing: str
) -> ClientError:
    shown = " or ".join(repr(name) for name in dict.fromkeys(names))
    said = f"No {noun} is called {shown}."
    if is_pattern(names[0]):
        said += f" It is a pattern, and one {noun} is needed here."
    hint = suggested(names[0], connections.names(), accepts) if is_text(names[0]) else ""
    return ClientError(f"{said}{hint}{listing}", UNKNOWN, 0)


def suggested(
    word: str, names: Sequence[Name], accepts: Callable[[Name], bool] = lambda _: True, *, patterns: bool = False
) -> str:
    """Return a sentence, after a blank, with those of ``names`` that are most like ``word``; ``""`` if none is.

    ``names`` are all connections, of which only those that ``accepts`` accepts are suggested, each by a text that means
    it alone. With ``patterns`` a pattern is suggested for a category, and no name that would be a pattern.
    """
    texts = telling(names, in_category="/" in word)
    meant: dict[str, str] = {}
    for one in filter(accepts, names):
        text = texts[one.id]
        # Whoever types one segment may have left out those before it.
        for like in (qualified(one), one.path) if "/" in word else (one.path, one.name[-1]):
            meant.setdefault(like, one.id if patterns and is_pattern(text) else text)
        if patterns and "/" in word:
            above = "/".join(one.category)
            meant[f"{above}/"] = f"{escape(above)}/*"
    return did_you_mean(word, meant)


def telling(names: Iterable[Name], *, in_category: bool = False) -> dict[str, str]:
    """Return for each uuid of ``names`` a text that means it alone: its path, category and path, or the uuid.

    The first that does is taken; ``in_category`` prefers the one with the category.
    """
    texts = {name.id: [name.path, qualified(name)][:: -1 if in_category else 1] for name in names}
    times = Counter(text for some in texts.values() for text in set(some))
    return {id: next((text for text in some if times[text] == 1), id) for id, some in texts.items()}


def qualified(one: Connection | Name) -> str:
    """Return category and path of a connection as one text."""
    return "/".join([*one.category, *one.name])


def did_you_mean(word: str, meant: Mapping[str, str]) -> str:
    """Return a sentence, after a blank, with suggestions for ``word``; ``""`` if no name is like it.

    ``meant`` maps each name to the text that is shown for it. Letter case and the wildcards of a GLOB do not count.
    """
    # Importing it takes longer than the comparison.
    from difflib import get_close_matches

    plain = re.sub(_WILDCARDS, "", word).lower()
    if not plain:
        return ""
    folded = {name.lower(): shown for name, shown in meant.items()}
    longer = sorted((one for one in folded if plain in one), key=lambda one: (not one.startswith(plain), len(one)))
    near = get_close_matches(plain, folded, MAX_SUGGESTIONS, MIN_LIKENESS)
    shown = list(dict.fromkeys(visible(folded[name]) for name in [*longer, *near]))[:MAX_SUGGESTIONS]
    return f" Did you mean {', '.join(shown)}?" if shown else ""


def with_beginning(ids: Iterable[str], text: str) -> list[str]:
    """Return those of ``ids`` that begin with ``text``, at least 8 hexadecimal digits; only for commands that read."""
    return [id for id in ids if id.startswith(text.lower())] if re.fullmatch(_SHORT, text) else []


def split_elevation(id: str) -> tuple[str, str]:
    """Return the id of the connection below an elevated one, and its user; for any other ``id`` itself, and no user."""
    base, _, elevation = id.partition("+")
    return base, elevation.partition("+")[2]


def escape(name: str) -> str:
    """Return a filter that matches ``name`` literally."""
    return name.translate(_LITERALLY)


def is_text(name: str) -> bool:
    """Whether ``name`` is valid UTF-8, as every name in the vault is."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
