"""Applies a token's rules over paths when the remote host has resolved the real paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connmgr.contract.message import path_to_json
from connmgr.errors import PolicyDenied
from connmgr.rights.approvals import Approvals
from connmgr.rights.elements import is_clean
from connmgr.rights.grant import ConnectionFacts, Grant
from connmgr.rights.ground import Ground
from connmgr.rights.rules import Decision, Rules, combined, rule_of


class PathRules:
    """Decides for one request about its real paths on one connection.

    ``asked`` is what an approval is bound to besides the path; None if approvals are impossible, because the content is
    not known in advance. The request waits ``wait`` seconds for a decision. ``ground`` returns where the link in use
    leads, or raises an error if that was changed meanwhile.
    """

    def __init__(
        self,
        grant: Grant,
        on: ConnectionFacts,
        approvals: Approvals,
        asked: Mapping[str, Any] | None,
        wait: float,
        ground: Callable[[], Ground],
    ) -> None:
        self._grant, self._on, self._approvals, self._asked, self._wait = grant, on, approvals, asked, wait
        self._ground = ground
        self._approved: str | dict[str, str] | None = None
        """The real path that was approved, in the form of JSON, for the operation may ask about it again."""

        self.reasons: dict[str, Any] = {}
        """The deciding rule and approval, for the audit log."""

    def check(self, action: str, path: bytes) -> None:
        """Return if ``action`` is allowed on a real, absolute ``path``.

        :raises PolicyDenied: a rule denies it, or none allows it.
        :raises connmgr.errors.ApprovalRequired, connmgr.errors.ApprovalDenied: a rule asks about it.
        """
        decision = self._decision(action, path)
        rule = rule_of(decision)
        if decision.effect == "deny":
            raise denied(rule)
        self.reasons |= {} if rule is None else {"rule": rule}
        if decision.effect == "ask":
            self._ask(action, path)

    def covers(self, action: str, directory: bytes) -> None:
        """Return if ``action`` is allowed on a real, absolute ``directory`` and on everything below it.

        :raises PolicyDenied: something below it is denied, asked about, or not allowed.
        """
        for one in self._grant.lineage:
            rules = one.rules
            if rules.over_paths(action) and not rules.covers(action, directory, self._on.names, self._on.user):
                raise denied(None)

    def allows(self, action: str, path: bytes) -> bool:
        """Whether a rule allows ``action`` on a real, absolute ``path``, and none asks about it."""
        return self._decision(action, path).effect == "allow"

    def _decision(self, action: str, path: bytes) -> Decision:
        names, user = self._on.names, self._on.user
        ruled = [one.rules for one in self._grant.lineage if one.rules.over_paths(action)]
        return combined([rules.decide_path(action, path, names, user) for rules in ruled] or [Decision("allow")])

    def _ask(self, action: str, path: bytes) -> None:
        shown = path_to_json(path)
        if self._asked is None:
            raise PolicyDenied("A rule asks about this: send the content as a blob first, and write that.", rule=None)
        if self._approved is not None:
            if shown == self._approved or shown in self._asked.values():
                return
            raise PolicyDenied(
                "The approval is for another path than this one; send a request for each path.", rule=None
            )
        names, user = self._on.names, self._on.user
        ruled = [one for one in self._grant.lineage if one.rules.over_paths(action)]
        askers = [one.id for one in ruled if one.rules.decide_path(action, path, names, user).effect == "ask"]
        asked = {**self._asked, "action": action, "connections": [self._on.id], "names": [self._on.path]}
        self.reasons["approval"] = self._approvals.require(
            self._grant, {**asked, "realPath": shown}, self._wait, askers, [self._ground()]
        )
        self._approved = shown


def dry_run_of_paths(
    grant: Grant, connections: Sequence[ConnectionFacts], paths: Sequence[tuple[bytes, str]], *, whole: bool
) -> Decision | None:
    """Return the decision of rules about ``paths`` as written, each with its action; if ``whole``, about all below too.

    None means that the remote host decides: where a relative path begins, or whether a path is a directory.
    """
    decisions = [
        _dry_run(one.rules, action, path, on, whole=whole)
        for one in grant.lineage
        for on in connections
        for path, action in paths
        if one.rules.over_paths(action)
    ]
    known = combined([decision for decision in decisions if decision is not None] or [Decision("allow")])
    return None if None in decisions and known.effect != "deny" else known


def _dry_run(rules: Rules, action: str, path: bytes, on: ConnectionFacts, *, whole: bool) -> Decision | None:
    if not is_clean(os.fsdecode(path)):
        return None
    decision = rules.decide_path(action, path, on.names, on.user)
    covered = "allow" if rules.covers(action, path, on.names, on.user) else "deny"
    return None if whole and decision.effect != covered else decision


def denied(rule: int | str | None) -> PolicyDenied:
    """Return the refusal by a token's ``rule``, or for want of one that allows it."""
    text = "No rule of the token allows it." if rule is None else "A rule of the token denies it."
    return PolicyDenied(text, rule=rule)
