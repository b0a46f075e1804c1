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
import shlex
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

_USUAL_NAME = "local machine"
"""The name that the local machine has in a new vault."""

MAX_CANDIDATES = 20
"""Candidates listed for an ambiguous name."""

MAX_SUGGESTIONS = 3
MIN_LIKENESS = 0.6
"""A ratio of difflib: 0 for nothing in common, 1 for equal."""

MIN_SHORT_CHARACTERS = 8
"""Hexadecimal digits at the beginning of a uuid that suffice for reading."""

_PATTERN = r"[*?\[]|\{[^}]*,"
_WILDCARDS = r"[*?{}\[\]!]+"
_SHORT = rf"[0-9A-Fa-f]{{{MIN_SHORT_CHARACTERS}}}[0-9A-Fa-f-]*"
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
    def of(cls, id: str, answer: FoundName) -> Name:
        """Return the name that a query has found for the connection ``id``."""
        return cls(id, answer.category, tuple(answer.name), answer.type, answer.usage_category)


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
    return (
        len(text) == 36
        and hyphens == _HYPHENS
        and all(character in _HEXADECIMAL for character in text.replace("-", ""))
    )


def is_pattern(text: str) -> bool:
    """Whether ``text`` means all connections that it matches, and not the one connection with that name."""
    return bool(re.search(_PATTERN, text))


def resolve_name(connections: Listing, name: str, *, category: str = "*", type: str = "*") -> list[Name]:
    """Return the connections that ``name`` means, among those in a matching category and of a matching type.

    None is an unknown name, several are an ambiguous one. Wildcards in ``name`` stand for themselves. A blank means no
    connection: it is what a script's empty variable leaves.
    """
    if not all(map(is_text, (name, category, type))) or not name.strip():
        return []
    if is_uuid(name):
        return [
            candidate for candidate in connections.names(category=category, type=type) if candidate.id == name.lower()
        ]
    own: list[Name] = []
    if "/" in name:
        candidates = connections.names(f"**/{escape(name)}", category=category, type=type)
    elif name.lower() == LOCAL:
        # Most people have not renamed the local machine: one request finds it, too.
        found = connections.names(path=f"**/{{{LOCAL},{_USUAL_NAME}}}", category=category, type=type)
        candidates = [candidate for candidate in found if candidate.name[-1].lower() == LOCAL]
        own = [candidate for candidate in found if candidate.id == LOCAL_MACHINE]
    else:
        candidates = connections.names(path=f"**/{escape(name)}", category=category, type=type)
    # A whole path wins over the end of another's, so that a connection can always be named by its path: `web` is the
    # connection web although db/web ends with it.
    size = len(name.split("/"))
    # The category may begin with the root, which answers leave out.
    whole = [
        candidate
        for candidate in candidates
        if size - len(candidate.name) in (0, len(candidate.category), len(candidate.category) + 1)
    ]
    if whole or name.lower() != LOCAL:
        return whole or candidates
    # Its type narrows the answer, which could otherwise be the whole vault.
    own = own or connections.names(category=category, type=LOCAL if type == "*" else type)
    return [
        *candidates,
        *(candidate for candidate in own if candidate.id == LOCAL_MACHINE and candidate not in candidates),
    ]


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
        ids = (
            [name.lower()]
            if is_uuid(name)
            else [candidate.id for candidate in require_unique(resolve_name(connections, name), name)]
        )
        if ids:
            return ids[0]
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
    selection: dict[str, Name] = {}
    problems: list[str] = []
    for selector in selectors or ["*"]:
        if is_pattern(selector):
            means = matching(within, selector, category=category, type=type)
        else:
            means = require_unique(resolve_name(within, selector, category=category, type=type), selector)
        usable = [mean for mean in means if usage in (None, mean.usage)]
        selection.update((connection.id, connection) for connection in usable)
        if not usable and selectors and (selector != "*" or where is not None):
            problems.append(_no_match(within, selector, means, category, type, usage))
    if problems:
        raise ClientError("\n".join(problems), UNKNOWN, 0)
    return sorted(selection.values(), key=lambda connection: (connection.category, connection.name))


def _no_match(
    connections: Listing, selector: str, means: Sequence[Name], category: str, type: str, usage: str | None
) -> str:
    """Return the message about a selector that chooses nothing; ``means`` are those of other usages."""
    if means and not is_pattern(selector):
        [other] = means
        return f"{visible(other.path)!r} has the type {other.type}, and a connection with a {usage} is needed here."
    narrowed = f" in category {category!r}" if category != "*" else ""
    narrowed += f" of type {type!r}" if type != "*" else ""
    narrowed += f" where {connections.where!r} holds" if isinstance(connections, _Narrowed) else ""
    runs = " that runs commands" if usage == "shell" and means else ""
    verb = "matches" if is_pattern(selector) else "is called"
    problem = f"No connection{runs}{narrowed} {verb} {selector!r}."
    if not all(map(is_text, (selector, category, type))):
        return problem
    everything = connections.names()
    usable = {name.id for name in connections.names(category=category, type=type) if usage in (None, name.usage)}
    hint = suggest(selector, everything, lambda candidate: candidate.id in usable, patterns=True)
    if "=" in selector and not isinstance(connections, _Narrowed):
        hint += f" A condition on labels and facts goes into `where`: `--where {shlex.quote(selector)}`."
    return f"{problem}{hint} `connmgr ls` lists them."


def require_unique(candidates: list[Name], name: str) -> list[Name]:
    """Return ``candidates``; raise ``unknown_connection`` with the candidates if ``name`` means several."""
    if len(candidates) < 2:
        return candidates
    lines = sorted(f"  {candidate.id}  {visible(full_path(candidate))}" for candidate in candidates)[:MAX_CANDIDATES]
    if len(candidates) > len(lines):
        lines.append(f"  and {len(candidates) - len(lines)} more")
    message = f"{name!r} is the name of {len(candidates)} connections; write the category before it, or the uuid:"
    raise ClientError("\n".join([message, *lines]), UNKNOWN, 0)


def _unknown(
    connections: Listing, names: Sequence[str], accepts: Callable[[Name], bool], noun: str, listing: str
) -> ClientError:
    words = " or ".join(repr(name) for name in dict.fromkeys(names))
    problem = f"No {noun} is called {words}."
    if is_pattern(names[0]):
        problem += f" It is a pattern, and one {noun} is needed here."
    hint = suggest(names[0], connections.names(), accepts) if is_text(names[0]) else ""
    return ClientError(f"{problem}{hint}{listing}", UNKNOWN, 0)


def suggest(word: str, names: Sequence[Name], accepts: Callable[[Name], bool], *, patterns: bool = False) -> str:
    """Return a sentence, after a blank, with those of ``names`` that are most like ``word``; ``""`` if none is.

    ``names`` are all connections, of which only those that ``accepts`` accepts are suggested, each by a text that means
    it alone. With ``patterns`` a pattern is suggested for a category, and no name that would be a pattern.
    """
    texts = telling(names, in_category="/" in word)
    offers: dict[str, str] = {}
    for candidate in filter(accepts, names):
        text = texts[candidate.id]
        # Whoever types one segment may have left out those before it.
        for like in (full_path(candidate), candidate.path) if "/" in word else (candidate.path, candidate.name[-1]):
            offers.setdefault(like, candidate.id if patterns and is_pattern(text) else text)
        if patterns and "/" in word:
            above = "/".join(candidate.category)
            offers[f"{above}/"] = f"{escape(above)}/*"
    return did_you_mean(word, offers)


def telling(names: Iterable[Name], *, in_category: bool = False) -> dict[str, str]:
    """Return for each uuid of ``names`` a text that means it alone: its path, category and path, or the uuid.

    The first that does is taken; ``in_category`` prefers the one with the category.
    """
    texts = {name.id: [name.path, full_path(name)][:: -1 if in_category else 1] for name in names}
    times = Counter(text for some in texts.values() for text in set(some))
    return {id: next((text for text in some if times[text] == 1), id) for id, some in texts.items()}


def full_path(connection: Connection | Name) -> str:
    """Return category and path of a connection as one text."""
    return "/".join([*connection.category, *connection.name])


def did_you_mean(word: str, offers: Mapping[str, str]) -> str:
    """Return a sentence, after a blank, with suggestions for ``word``; ``""`` if no name is like it.

    ``offers`` maps each name to the text that is shown for it. Letter case and the wildcards of a GLOB do not count.
    """
    # Imported here: it takes longer than the comparison, and most names exist.
    from difflib import get_close_matches

    plain = re.sub(_WILDCARDS, "", word).lower()
    if not plain:
        return ""
    folded = {name.lower(): text for name, text in offers.items()}
    longer = sorted(
        (name for name in folded if plain in name), key=lambda name: (not name.startswith(plain), len(name))
    )
    near = get_close_matches(plain, folded, MAX_SUGGESTIONS, MIN_LIKENESS)
    suggestions = list(dict.fromkeys(visible(folded[name]) for name in [*longer, *near]))[:MAX_SUGGESTIONS]
    return f" Did you mean {', '.join(suggestions)}?" if suggestions else ""


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
