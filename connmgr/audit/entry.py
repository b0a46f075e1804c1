"""An entry of the audit log: the facts of a request, what is recorded of its command, and the names of its subjects."""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from connmgr.errors import ConnmgrError
from connmgr.vault import Vault
from connmgr.vault.names import SEPARATOR, elevation_of, segment
from connmgr.vault.search import paths_of

MAX_TEXT = 4096
"""Most characters of a token's command that an entry has; the rest is counted."""

CUT_OUT = "[secret]"
"""Stands in a recorded command for a secret."""

LEAST_SECRET = 4
"""Shorter secrets are not searched for: they occur everywhere by chance."""

TEXTS = frozenset({"command", "commandSecrets", "commandLeftOut"})
"""The members of an entry that tell the text of a command."""

RECORDED = "recorded"
"""The member of a request's facts with the argv to record, if some of the words that ran are secret."""

_COMMANDS = {"command", "argv", RECORDED}
# Members of a request whose names are those of facts: `token` of an entry is the one with which the request was sent.
_MEMBERS = {"path": "file", "session": "shell", "id": "subject", "token": "subject"}
# The two parts of a sealed secret, as docs/SECURITY.md describes it, however a shell quotes it.
_SEALED = re.compile(r"""((?:"token"|"encryptedValue")\s*:\s*")[A-Za-z0-9+/=_-]{16,}(")""")


def moment() -> str:
    """Return the current time in the form of entries."""
    return text_of(datetime.now(timezone.utc))


def text_of(at: datetime) -> str:
    """Return ``at``, which is aware, in the form of entries: UTC, ISO 8601 with milliseconds."""
    return at.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def entry_of(
    facts: Mapping[str, Any],
    about: Mapping[str, Any],
    details: Mapping[str, Any],
    mac: Callable[[bytes], bytes],
    text: CommandText,
) -> dict[str, Any]:
    """Return the members of an entry about a request, except the members of the chain and the names of its subjects."""
    entry: dict[str, Any] = {"time": moment()}
    entry |= {name: value for name, value in facts.items() if value is not None and name != "method"}
    entry |= {_MEMBERS.get(name, name): _printable(about[name]) for name in about if name not in _COMMANDS}
    command = shlex.join(about["argv"]) if "argv" in about else about.get("command")
    if command is not None:
        data = command.encode()
        entry |= {"commandMac": mac(data).hex(), "commandBytes": len(data), **text.of(about, entry)}
    return {**entry, **details}


@dataclass(frozen=True)
class CommandText:
    """Decides what is recorded of a command's text: by default that of tokens' requests, without known secrets.

    A secret that the daemon does not know, because somebody typed it, is recorded like any other word.
    """

    tokens: bool = True
    """Whether the commands of requests with a token are recorded, up to :data:`MAX_TEXT` characters."""

    everyone: bool = False
    """Whether all commands are, whole."""

    secrets: Callable[[Collection[str]], Iterable[str]] = lambda _: ()
    """Returns the plain secrets of connections and of those on the way to them."""

    def of(self, about: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of ``entry`` with the command that ``about`` has.

        ``command``; ``commandSecrets``, how many secrets were cut out; ``commandLeftOut``, how many characters are not
        recorded of a long one.
        """
        if not (self.everyone or (self.tokens and "token" in entry)):
            return {}
        connections = {*entry.get("connections", ()), *([entry["connection"]] if "connection" in entry else ())}
        secrets = self._known(connections)
        words: list[str] = about.get(RECORDED) or about.get("argv") or [about["command"]]
        # In the words and not in the quoted text, in which a secret may look otherwise.
        cleaned = [_without(word, secrets) for word in words]
        command = cleaned[0] if "argv" not in about else shlex.join(cleaned)
        members: dict[str, Any] = {"command": command}
        if not self.everyone and len(command) > MAX_TEXT:
            members = {"command": command[:MAX_TEXT], "commandLeftOut": len(command) - MAX_TEXT}
        hidden = sum(word.count(CUT_OUT) for word in cleaned)
        return members | ({"commandSecrets": hidden} if hidden else {})

    def cleaned(self, text: str, connection: str) -> str:
        """Return ``text``, which ``connection`` has printed, without the secrets that are known for it."""
        return _without(text, self._known([connection]))

    def _known(self, connections: Collection[str]) -> list[str]:
        return sorted(
            {secret for secret in self.secrets(connections) if len(secret) >= LEAST_SECRET}, key=len, reverse=True
        )


def _without(word: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        for form in (secret, shlex.quote(secret).strip("'")):
            word = word.replace(form, CUT_OUT)
    return _SEALED.sub(rf"\1{CUT_OUT}\2", word)


def _printable(value: object) -> object:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


FRESH_SECONDS = 1.0
"""A name of this age is read again."""

MAX_NAMES = 20_000
MAX_CHARACTERS = 256
"""Longest name in an entry, because a request may be about a thousand connections."""

_ONE = {"connection": "connectionName", "category": "categoryName"}
_MANY = {"connection": ("connections", "connectionNames"), "category": ("categories", "categoryNames")}
NAMES = frozenset({*_ONE.values(), *(member for _, member in _MANY.values())})
"""The members of an entry that tell the names of its subjects."""


class SubjectNames:
    """Names of connections and categories, at most a second old; safe to use from several threads.

    For a removed subject it knows the last name. The rows are not verified, because the uuid stands beside the name.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str | None]] = {}

    def of(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members with the names of what ``entry`` is about.

        ``connectionName`` for ``connection``, ``connectionNames`` for ``connections``, with None for unknown ones, and
        likewise for categories.
        """
        names: dict[str, Any] = {}
        for kind, member in _ONE.items():
            id = entry.get(kind)
            if id is not None and (name := self._name(kind, id)) is not None:
                names[member] = name
        for kind, (several, member) in _MANY.items():
            if several in entry:
                names[member] = self._names(kind, entry[several])
        return names

    def remember(self, names: Mapping[str, str | None]) -> None:
        """Store ``names``, current or last ones."""
        now = time.monotonic()
        with self._lock:
            if len(self._known) + len(names) > MAX_NAMES:
                self._known = {}
            self._known.update({id: (now, name) for id, name in names.items()})

    def _name(self, kind: str, id: str) -> str | None:
        entry = self._known.get(id)
        if entry is not None and time.monotonic() - entry[0] <= FRESH_SECONDS:
            return entry[1]
        return self._names(kind, [id])[0]

    def _names(self, kind: str, ids: list[str]) -> list[str | None]:
        now = time.monotonic()
        entries = {id: self._known.get(id, (-FRESH_SECONDS, None)) for id in ids}
        stale = [id for id, (at, _) in entries.items() if now - at > FRESH_SECONDS]
        if stale:
            fresh = self._look_up(kind, stale)
            renewed = {id: fresh.get(id, entries[id][1]) for id in stale}
            self.remember(renewed)
            return [renewed[id] if id in renewed else entries[id][1] for id in ids]
        return [entries[id][1] for id in ids]

    def _look_up(self, kind: str, ids: list[str]) -> dict[str, str]:
        temporary = self._vault.connections.temporary.those_of(ids) if kind == "connection" else {}
        # If the database is away or damaged, the entry has no names.
        with suppress(ConnmgrError):
            paths = paths_of(self._vault.database, kind, ids) | {
                id: SEPARATOR.join(connection.path) for id, connection in temporary.items()
            }
            elevated = {id: elevation for id in ids if (elevation := elevation_of(id)) is not None}
            if elevated:
                below = self._look_up(kind, [elevation.base for elevation in elevated.values()])
                paths |= {
                    id: SEPARATOR.join((below[elevation.base], segment(elevation.user)))
                    for id, elevation in elevated.items()
                    if elevation.base in below
                }
            return {id: path[:MAX_CHARACTERS] for id, path in paths.items()}
        return {}
