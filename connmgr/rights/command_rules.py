"""Applies a token's rules over commands to one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from connmgr.contract.common import Saved
from connmgr.contract.message import changed
from connmgr.errors import PolicyDenied
from connmgr.rights.action import Action
from connmgr.rights.approvals import Approvals
from connmgr.rights.argv import as_argv
from connmgr.rights.grant import Grant, Seen
from connmgr.rights.ground import Ground, Reads
from connmgr.rights.programs import LOCALE
from connmgr.rights.rules import Decision, RequestedCommand, combined, not_too_free, rule_of
from connmgr.rights.scopes import ARGV, TEXT

GroundOf = Callable[[str, str | None, Reads | None, bool], Ground]
"""Returns the ground of a request on a connection, in a ``session``, with what it reads; True: in a fresh shell."""

_BOUND = ("argv", "command", "session", "cwd", "env", "stdin", "input", "encoding", "fresh")
"""The fields of a request to which an approval is bound, besides its connections."""


@dataclass(frozen=True)
class Permitted:
    """A request that may be carried out, unchanged or with another command in place of the requested one."""

    request: Any
    reasons: Mapping[str, Any]
    """The deciding ``rule`` and ``approval``, if any, for the audit log."""

    grounds: Mapping[str, Ground] = field(default_factory=dict)
    """On what an approved request was approved, by connections."""

    requested: Any = None
    """An approved request as it was, before a rule put another command in its place."""


class CommandRules:
    """Decides about a request to run something on the connections ``seen``."""

    def __init__(self, grant: Grant, action: Action, request: Mapping[str, Any], seen: list[Seen]) -> None:
        self._grant, self._action, self._seen = grant, action, seen
        self._request = _as_scoped(grant, request)
        self._ruled = [] if "tcp" in request else [one for one in grant.lineage if one.rules.over_commands]
        self._wanted = [_wanted(request, on, action) for on in seen if self._ruled]

    def decision(self) -> Decision | None:
        """Return the decision about the request, or None if no rule applies to commands."""
        if not self._wanted:
            return None
        return combined([one.rules.decide_command(wanted) for one in self._ruled for wanted in self._wanted])

    def permitted(self, approvals: Approvals, ground_of: GroundOf) -> Permitted:
        """Return how the request may be carried out, and on which grounds it was approved.

        :raises PolicyDenied: a rule denies it, or none allows it.
        :raises connmgr.errors.ApprovalRequired, connmgr.errors.ApprovalDenied: a rule asks about it.
        """
        decision = self.decision()
        if decision is None:
            return Permitted(self._request, {})
        rule = rule_of(decision)
        if decision.effect == "deny":
            what = "No rule of the token allows it." if rule is None else "A rule of the token denies it."
            saved: Saved | None = self._request.get("saved")
            if saved is not None and saved.too_free is not None and (why := saved.too_free("allow", {})):
                what += f" No rule allows every argument of this command: {why}"
            raise PolicyDenied(what, rule=rule)
        decided = _decided(self._request, decision)
        reasons = {} if rule is None else {"rule": rule}
        if decision.effect == "ask":
            wait = self._request.get("wait", 0)
            grounds = self._grounds(decided, ground_of)
            asked = self._asked(decided)
            reasons["approval"] = approvals.require(self._grant, asked, wait, self._askers(), grounds)
            return Permitted(decided, reasons, {ground.connection: ground for ground in grounds}, self._request)
        return Permitted(decided, reasons)

    def _asked(self, decided: Any) -> dict[str, Any]:
        asked: dict[str, Any] = {name: decided[name] for name in _BOUND if decided.get(name)}
        if "stdin" not in asked:
            # Only the encoding of input and answer, which is irrelevant to the decision.
            asked.pop("encoding", None)
        if "input" in asked:
            asked["input"] = "unknown: the client sends it while the command runs"
        if sent := _sent(decided):
            asked["sendEnv"] = sent
        seen = {"connections": [one.id for one in self._seen], "names": [one.path for one in self._seen]}
        return {**asked, "action": self._action.name, **seen, "terminal": self._action.on_terminal(self._request)}

    def _grounds(self, decided: Any, ground_of: GroundOf) -> list[Ground]:
        reads = Reads.of(decided) if self._action.in_shell(decided) else None
        session, fresh = decided.get("session"), bool(decided.get("fresh"))
        return [ground_of(one.id, session, reads, fresh) for one in self._seen]

    def _askers(self) -> list[str]:
        return [
            one.id
            for one in self._ruled
            if any(one.rules.decide_command(wanted).effect == "ask" for wanted in self._wanted)
        ]


def scope_to_run(request: Mapping[str, Any]) -> frozenset[str]:
    """Return scopes, one of which a token needs for the command of a request."""
    if "tcp" in request:
        return frozenset({"tunnel"})
    is_argv = "argv" in request or "saved" in request or as_argv(request.get("command", "")) is not None
    return ARGV if is_argv else TEXT


def _as_scoped(grant: Grant, request: Any) -> Any:
    """Return the request, with an argv in place of a text if the token may run only argvs."""
    argv = as_argv(request.get("command", ""))
    if argv is None or not TEXT.isdisjoint(grant.scopes):
        return request
    return changed(request, command=None, argv=list(argv))


def _sent(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the client's environment, without those of the locale: they choose only a language."""
    return {name: value for name, value in (request.get("sendEnv") or {}).items() if name not in LOCALE}


def _wanted(request: Mapping[str, Any], on: Seen, action: Action) -> RequestedCommand:
    saved: Saved | None = request.get("saved")
    return RequestedCommand(
        names=on.names,
        user=on.user,
        argv=tuple(request["argv"]) if "argv" in request else None,
        text=request.get("command"),
        saved=None if saved is None else (saved.name, saved.arguments),
        too_free=not_too_free if saved is None or saved.too_free is None else saved.too_free,
        # What a client sends counts as what a request sets, whether the connection admits it or not.
        env={**_sent(request), **(request.get("env") or {})},
        cwd=request.get("cwd"),
        has_stdin=action.takes_input or bool(request.get("stdin") or request.get("input")),
        has_pty=action.on_terminal(request),
    )


def _decided(request: Any, decision: Decision) -> Any:
    """Return the request with the approved command in place of the requested one."""
    if decision.argv is not None:
        request = changed(request, command=None, argv=list(decision.argv))
    if decision.path is not None:
        request = changed(request, env={**(request.get("env") or {}), "PATH": decision.path})
    return request
