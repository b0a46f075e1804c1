"""Patterns that the daemon proposes beside a request that waits for an approval, and the rules that are learnt so.

Somebody who approves a pattern gives the token an ordinary rule, on the connections of the request and for a while. A
pattern is proposed only where its free word names a thing, such as a service, and can be neither an option nor a path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from connmgr.contract.message import time_to_json
from connmgr.errors import InvalidRequest
from connmgr.rights import programs
from connmgr.rights.grant import ConnectionFacts
from connmgr.rights.ground import Ground
from connmgr.rights.rule import ArgvRule, read_rule
from connmgr.rights.rules import Decision, RequestedCommand, Rules

NAME = r"[A-Za-z0-9_][A-Za-z0-9_@:-]*(?:\.service)?"
"""The name of a service: no option, no path, no pattern, and no target such as ``poweroff.target``."""

_STARTS = ("restart", "reload", "start", "stop", "status")
NAMED_BY_THEIR_LAST_WORD: Mapping[str, tuple[str, ...]] = {
    "systemctl": (*_STARTS, "try-restart", "reload-or-restart", "is-active", "is-enabled", "is-failed", "reset-failed"),
    "sv": _STARTS,
    "rcctl": _STARTS,
}
"""Programs whose command is their first word, and whose second and last word then names one service."""

MAX_CONNECTIONS = 100
PREFIX = "approval "
"""The name of a learnt rule begins so, and goes on with the beginning of the approval's id."""


@dataclass(frozen=True)
class Proposal:
    """A pattern for several words, and the rule by which each token whose rules ask would allow it."""

    words: tuple[str, ...]
    names: tuple[str, ...]
    rules: Mapping[str, Mapping[str, Any]]
    """By the ids of tokens, without ``name`` and ``until``."""

    def stored(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"words": list(self.words), "names": list(self.names), "rules": {**self.rules}}


def propose(
    decision: Decision,
    on: Sequence[ConnectionFacts],
    wanted: Sequence[RequestedCommand],
    askers: Mapping[str, Rules],
    token: str,
    grounds: Sequence[Ground],
) -> Proposal | None:
    """Return the pattern beside a request of ``token`` that rules of ``askers``, by the ids of their tokens, ask about.

    It holds for that token and those below it alone, and while the connections are what they are on these ``grounds``.
    """
    argv = decision.argv
    if not argv or len(argv) != 3 or len(on) > MAX_CONNECTIONS or not decision.exact:
        return None
    if argv[1] not in NAMED_BY_THEIR_LAST_WORD.get(programs.last_segment(argv[0]), ()):
        return None
    if any(one.env or one.has_stdin or one.has_pty or one.saved is not None for one in wanted):
        return None
    rule: dict[str, Any] = {
        "effect": "allow",
        "argv": [argv[0], argv[1], {"re": NAME}],
        "connections": [_literally(one.names[1]) for one in on],
        # The word is bounded by its form; the person who approves it decides about all services.
        "mayRunOthers": True,
        "stdin": False,
        "only": {"token": token, "connections": {ground.connection: ground.digest for ground in grounds}},
    }
    directories = {one.cwd for one in wanted}
    if len(directories) > 1:
        return None
    if (directory := directories.pop()) is not None:
        rule["cwd"] = _literally(directory)
    rules: dict[str, Mapping[str, Any]] = {}
    for id, asker in askers.items():
        numbers = [asker.asking(one) for one in wanted]
        if any(found is None for found in numbers):
            return None
        rules[id] = {**rule, "answers": sorted({number for found in numbers for number in found or ()})}
        try:
            rule_read = read_rule({**rules[id], "until": time_to_json(datetime.now(timezone.utc))}, 0)
        except InvalidRequest:
            # Such as a path that no pattern can name.
            return None
        if not rules[id]["answers"] or not (isinstance(rule_read, ArgvRule) and rule_read.permits(argv[1:])):
            return None
    return Proposal((argv[0], argv[1], "NAME"), tuple(one.path for one in on), rules)


def learnt(rule: Mapping[str, Any], approval: str, at: datetime, seconds: float) -> dict[str, Any]:
    """Return the rule of a proposal as a token gets it."""
    return {**rule, "name": name_of(approval), "until": time_to_json(at + timedelta(seconds=seconds))}


def name_of(approval: str) -> str:
    """Return the name of the rules that an approval has given."""
    return f"{PREFIX}{approval[:8]}"


def without_learnt(rules: Sequence[Any], at: datetime, approval: str | None = None) -> list[Any]:
    """Return the rules of a token without learnt ones whose time is over, or that ``approval`` has given.

    Only those after all other rules are left out, because rules name others by their numbers.
    """
    first = len(rules)
    while first and _is_learnt(rules[first - 1]):
        first -= 1
    name = None if approval is None else name_of(approval)
    kept = [
        rule for rule in rules[first:] if rule["until"] > time_to_json(at) and (name is None or rule["name"] != name)
    ]
    return [*rules[:first], *kept]


def _is_learnt(rule: Any) -> bool:
    return isinstance(rule, Mapping) and "answers" in rule and str(rule.get("name")).startswith(PREFIX)


def _literally(path: str) -> str:
    return "".join(f"[{one}]" if one in "*?[]{}," else one for one in path)
