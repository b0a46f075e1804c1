"""The ground of an approval: the connection, and the state of its shell, on which the person saw a request.

The words of a request do not say where they run: a connection can be changed to lead to another host, and a command can
move the shell to another directory or change its PATH. So an approval is bound to its ground too, and the ground is
compared once more when the command begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from connmgr.contract.common import CommandOptions
from connmgr.contract.job import JobStartRequest
from connmgr.contract.shell import BroadcastRequest, ExecRequest, PipeRequest
from connmgr.contract.terminal import TerminalOpenRequest
from connmgr.errors import ApprovalRequired
from connmgr.rights.programs import LOCALE, runs_others, steers

RunRequest = ExecRequest | JobStartRequest | BroadcastRequest | PipeRequest | TerminalOpenRequest
"""The requests that say what to run."""

SEND_AGAIN = " Send the request again to ask for a new approval."
"""The end of the message of a request whose ground has moved, while nobody is asked."""


@dataclass(frozen=True)
class ShellState:
    """The state of a shell, compared with its start; values of variables are as the shell quotes them."""

    directory: str | None = None
    """Its directory; None if it is still the first one."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    """The exported variables that were changed; None for a variable that is not exported any more."""

    at: str | None = None
    """Its directory, even if it is the first one; None if no shell runs yet."""

    received: Mapping[str, str | None] = field(default_factory=dict)
    """The variables that earlier clients have sent of their environments, where no command has changed them."""


@dataclass(frozen=True)
class Reads:
    """The part of a shell's state that a request depends on."""

    directory: bool = True
    ignored: frozenset[str] = frozenset()
    """The variables that do not count. All others do: no list has each by which some program chooses where it acts."""

    sent: frozenset[str] = frozenset()
    """The variables that the request sends of its client's environment, in place of those that the shell received."""

    @classmethod
    def of(cls, request: RunRequest) -> Reads:
        """Return what the command of a request depends on: not on variables that the request sets itself.

        Locale and former directory count only for a text, and for a program that runs others: these may use them.
        """
        cwd = request.cwd if isinstance(request, CommandOptions) else None
        directory, ignored = not (cwd or "").startswith("/"), frozenset(request.env or ())
        if request.argv and not runs_others(request.argv[0]):
            ignored |= LOCALE | {"OLDPWD"}
        return cls(directory, ignored, frozenset(request.send_env or ()))

    def variables(self, state: ShellState) -> dict[str, str | None]:
        """Return the changed and the received variables of ``state`` that count."""
        received = {name: value for name, value in state.received.items() if name not in self.sent}
        return {name: value for name, value in {**received, **state.variables}.items() if name not in self.ignored}


@dataclass(frozen=True)
class Ground:
    """The ground of a request on one connection; ``state`` is None for a process without a shell."""

    connection: str
    name: str
    digest: str
    """A digest of the connection's data, and of all that it runs over."""

    hosts: tuple[str, ...] = ()
    """``user@host:port`` in the order in which they are dialled; empty on the daemon's machine."""

    user: str | None = None
    state: ShellState | None = None
    reads: Reads = Reads()

    @property
    def bound(self) -> list[Any]:
        """The part by which two grounds are compared, as JSON."""
        if self.state is None:
            return [self.connection, self.digest, self.hosts, self.user]
        directory = self.state.directory if self.reads.directory else None
        return [self.connection, self.digest, self.hosts, self.user, directory, self.reads.variables(self.state)]

    def shown(self) -> dict[str, Any]:
        """Return what the deciding person sees, as JSON; of variables that do not steer, only the names."""
        shown: dict[str, Any] = {"connection": self.connection, "hosts": list(self.hosts), "user": self.user}
        if self.state is None:
            return shown
        if self.reads.directory:
            shown["directory"] = self.state.at
        changed = self.reads.variables(self.state)
        if steering := {name: value for name, value in changed.items() if steers(name)}:
            shown["variables"] = steering
        if others := sorted(name for name in changed if not steers(name)):
            shown["otherVariables"] = others
        return shown

    def stored(self) -> dict[str, Any]:
        """Return it as JSON, from which :meth:`loaded` makes it again."""
        state = None
        if self.state is not None:
            variables, received = dict(self.state.variables), dict(self.state.received)
            state = {**vars(self.state), "variables": variables, "received": received}
        reads = {**vars(self.reads), "ignored": sorted(self.reads.ignored), "sent": sorted(self.reads.sent)}
        return {**vars(self), "hosts": list(self.hosts), "state": state, "reads": reads}

    @classmethod
    def loaded(cls, stored: Mapping[str, Any]) -> Ground:
        """Return the ground that was stored as JSON."""
        state = None if stored["state"] is None else ShellState(**stored["state"])
        raw = stored["reads"]
        # Older versions did not store what the request sends.
        reads = Reads(raw["directory"], frozenset(raw["ignored"]), frozenset(raw.get("sent", ())))
        # JSON knows neither tuples nor sets, and a ground is compared with one that was never stored.
        return cls(**{**stored, "hosts": tuple(stored["hosts"]), "state": state, "reads": reads})

    def require(self, digest: str | None, state: ShellState | None = None) -> None:
        """Return if this is still the ground: of the connection when its link was opened, and of its shell now.

        :raises ApprovalRequired: it has moved; without an ``approval``, because nobody was asked yet.
        """
        # The digest is that with which the link was opened. One that is read now could be of a connection that was
        # changed and changed back, while the link leads to what it was in between.
        if digest != self.digest:
            raise _moved(f"{self.name} was changed")
        if self.state is not None and state is not None:
            now = replace(self, state=state)
            if now.bound != self.bound:
                raise _moved("; ".join(differences(self.shown(), now.shown())) or "a variable of the shell has changed")


def _moved(why: str) -> ApprovalRequired:
    return ApprovalRequired(f"The approved request was not carried out: {why}.{SEND_AGAIN}")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two grounds as :meth:`Ground.shown` returns them."""
    if before.get("hosts") != now.get("hosts"):
        yield f"the connection led to {_hosts(before)}, leads to {_hosts(now)}"
    if before.get("user") != now.get("user"):
        yield f"the user was {before.get('user')}, is {now.get('user')}"
    if before.get("directory") != now.get("directory"):
        yield f"the directory was {_directory(before)}, is {_directory(now)}"
    old, new = before.get("variables", {}), now.get("variables", {})
    steering = {name for name in {*old, *new} if old.get(name) != new.get(name) or (name in old) != (name in new)}
    others = {*before.get("otherVariables", ())} ^ {*now.get("otherVariables", ())}
    for name in sorted({*steering, *others}):
        yield f"the exported variable {name} has changed"


def all_differences(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what has moved between two requests that are otherwise equal, on all their connections."""
    texts = [
        text if len(now) == 1 else f"{later['connection']}: {text}"
        for earlier, later in zip(before, now, strict=False)
        for text in differences(earlier, later)
    ]
    return texts or ["the connection, one that it runs over, or a variable of the shell was changed"]


def shell_state(
    directory: bytes,
    variables: Mapping[bytes, bytes],
    start: tuple[bytes, Mapping[bytes, bytes]],
    received: Mapping[bytes, bytes],
) -> ShellState:
    """Return the state of a shell in ``directory``, whose ``variables`` are the statements that set them.

    Those that clients have sent (``received``) are part of its ``start``, and of its state, too.
    """
    first_directory, first = start
    changed = [name for name in {*variables, *first} if not _are_alike(variables.get(name), first.get(name))]
    values = {_text(name): _value(name, variables[name]) if name in variables else None for name in changed}
    at = _text(directory)
    sent = {_text(name): _value(name, statement) for name, statement in received.items() if name not in changed}
    return ShellState(None if directory == first_directory else at, values, at, sent)


# Of characters that are the same in all quotes.
_PLAIN = re.compile(rb"""export \w+=(['"]?)(?P<value>[\w.,:/@%+=-]*)\1;""")


def _are_alike(statement: bytes | None, other: bytes | None) -> bool:
    """Whether two statements certainly set a variable alike: shells quote in their own ways."""
    if statement == other or statement is None or other is None:
        return statement == other
    plain = [match and match["value"] for match in map(_PLAIN.fullmatch, (statement, other))]
    return None not in plain and plain[0] == plain[1]


def _text(raw: bytes) -> str:
    # Names of files may be bytes of any encoding: two that differ must not be shown, or compared, as one text.
    return raw.decode(errors="backslashreplace")


def _value(name: bytes, statement: bytes) -> str:
    return _text(statement.removeprefix(b"export " + name).removeprefix(b"=").removesuffix(b";"))


def _hosts(shown: Mapping[str, Any]) -> str:
    return " and ".join(shown.get("hosts", ())) or "the daemon's machine"


def _directory(shown: Mapping[str, Any]) -> str:
    return shown.get("directory") or "where a new shell starts"
