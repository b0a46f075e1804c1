"""Decides, before a request is carried out, whether its caller may do it; nothing else decides that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from connmgr.errors import ScopeDenied, UnknownJob, UnknownTerminal
from connmgr.plugin import Caller as PluginCaller
from connmgr.registry import Registry
from connmgr.rights.action import Action
from connmgr.rights.approvals import Approvals
from connmgr.rights.command_rules import CommandRules, GroundOf, Permitted, scope_to_run
from connmgr.rights.grant import Grant, Seen
from connmgr.rights.ground import Ground
from connmgr.rights.path_rules import PathRules, foretold_of_paths
from connmgr.rights.rules import Decision
from connmgr.rights.scopes import TERMINAL
from connmgr.rights.subjects import NAMES, SubjectsOf, Work
from connmgr.rights.visibility import Visibility
from connmgr.vault import Vault
from connmgr.vault.connection_rows import sealed_secrets
from connmgr.vault.names import elevation_of

_UNKNOWN: Mapping[str, Callable[[str], Exception]] = {"job": UnknownJob, "terminal": UnknownTerminal}


class GrantedCaller(PluginCaller, Protocol):
    """The sender of a request; ``grant`` is None for the owner."""

    @property
    def grant(self) -> Grant | None: ...


class Authorisation:
    """Applies the rights of tokens, and lets each plugin with the hook ``connmgr_authorise`` refuse a request."""

    def __init__(
        self, registry: Registry, vault: Vault, subjects: SubjectsOf, approvals: Approvals, ground_of: GroundOf
    ) -> None:
        self.subjects = subjects
        self.visibility = Visibility(vault, registry)
        self._approvals = approvals
        self._ground_of = ground_of
        self._hook = registry.plugins.hook.connmgr_authorise
        self._has_plugins = bool(self._hook.get_hookimpls())

    def concerns(self, caller: GrantedCaller) -> bool:
        """Whether anything decides about ``caller``; if not, the subjects of a request need not be found."""
        return self._has_plugins or caller.grant is not None

    def check(self, caller: GrantedCaller, action: Action, request: Any, names: Collection[str] = NAMES) -> Permitted:
        """Return how ``caller`` may carry out the loaded ``request``, whose fields ``names`` name its subjects.

        :raises ScopeDenied: its token lacks a scope.
        :raises PolicyDenied: a rule of its token or a plugin refuses it, or a plugin raised another exception.
        :raises connmgr.errors.UnknownConnection, connmgr.errors.UnknownCategory, UnknownJob, UnknownTerminal: a subject
            is out of its token's sight.
        """
        permitted = Permitted(request, {})
        about = {name: request[name] for name in names if name in request} if request else {}
        if caller.grant is not None:
            permitted = self._by_grant(caller.grant, action, request or {}, about)
        if self._has_plugins:
            self._hook(caller=caller, action=action.name, subjects=self.subjects(about))
        return permitted

    def path_rules(
        self, caller: GrantedCaller, connection: str, asked: Mapping[str, Any] | None, wait: float, way: str | None
    ) -> PathRules | None:
        """Return the rules over paths of the caller's token for one request, or None if there are none.

        ``asked`` and ``wait`` are as in :class:`PathRules`. ``way`` is the digest to which the link in use was opened.
        """
        grant = caller.grant
        if grant is None or not grant.has_rules_over_paths:
            return None
        [seen] = self.visibility.require(grant, [connection])

        def ground() -> Ground:
            found = self._ground_of(connection, None, None, False)
            found.require(way)
            return found

        return PathRules(grant, seen, self._approvals, asked, wait, ground)

    def visible(self, caller: GrantedCaller, connections: Iterable[str]) -> list[str]:
        """Return those of ``connections`` that ``caller`` may see, in their order."""
        grant, found = caller.grant, list(connections)
        # A token that sees everything does not see the elevated connections of others.
        if grant is None or (grant.sees_all and not any(map(elevation_of, found))):
            return found
        return self.visibility.visible(grant, found)

    def knows(self, caller: GrantedCaller, connections: Collection[str]) -> bool:
        """Whether ``caller`` may read about ``connections``: all are in sight, or would be if they were its own."""
        grant, wanted = caller.grant, set(connections)
        if grant is None or grant.sees_all:
            return True
        found = self.visibility.of(wanted)
        return found.keys() == wanted and all(map(grant.sees, found.values()))

    def visible_categories(self, caller: GrantedCaller, categories: Iterable[str]) -> list[str]:
        """Return those of ``categories`` that ``caller`` may see, in their order."""
        grant = caller.grant
        return (
            list(categories)
            if grant is None or grant.sees_all
            else self.visibility.visible_categories(grant, categories)
        )

    def visible_work(self, caller: GrantedCaller, work: Iterable[tuple[Any, Work]]) -> Iterator[Any]:
        """Yield the first members of pairs whose job or terminal ``caller`` may see."""
        pairs = list(work)
        seen = set(self.visible(caller, {of.connection for _, of in pairs}))
        yield from (one for one, of in pairs if of.connection in seen and _is_open(caller.grant, of))

    def sees(self, caller: GrantedCaller, entry: Mapping[str, Any]) -> bool:
        """Whether ``caller`` may see an entry of the audit log: its token's own, or one about visible subjects."""
        grant = caller.grant
        if grant is None or entry.get("token") == grant.id:
            return True
        named = [*([entry["connection"]] if "connection" in entry else []), *entry.get("connections", ())]
        if not named or "category" in entry or "categories" in entry:
            return grant.sees_all
        return self.knows(caller, named)

    def foretold(
        self, grant: Grant, action: Action, request: Mapping[str, Any], names: Collection[str]
    ) -> Decision | None:
        """Return the decision about a request, without asking a person or plugin; None if the far side decides.
        :raises ConnmgrError: as :meth:`check`, except for decisions of rules.
        """
        # Paths count as they are written; the far side may resolve them to others.
        about = {name: request[name] for name in names if name in request}
        seen = self._admitted(grant, action, request, about)
        if action.runs:
            return CommandRules(grant, action, request, seen).decision() or Decision("allow")
        return foretold_of_paths(grant, seen, action, request)

    def _by_grant(
        self, grant: Grant, action: Action, request: Mapping[str, Any], about: Mapping[str, Any]
    ) -> Permitted:
        seen = self._admitted(grant, action, request, about)
        if not action.runs:
            return Permitted(request, {})
        return CommandRules(grant, action, request, seen).permitted(self._approvals, self._ground_of)

    def _admitted(
        self, grant: Grant, action: Action, request: Mapping[str, Any], about: Mapping[str, Any]
    ) -> list[Seen]:
        """Return the connections of a request that only a rule may refuse; raise as :meth:`check`."""
        grant.require_scope(action.name)
        if action.runs:
            grant.require_one(scope_to_run(request))
            if action.on_terminal(request):
                grant.require_one(TERMINAL)
        if "data" in about and "secret.decrypt" not in grant.scopes and next(sealed_secrets(about["data"]), None):
            # Otherwise the caller could have a sealed secret sent to a machine of its own.
            raise ScopeDenied("The token lacks the scope secret.decrypt: secrets in data must be plain.")
        seen = self._seen(grant, about)
        for limit in action.limits:
            limit(self.visibility, grant, request)
        return seen

    def _seen(self, grant: Grant, about: Mapping[str, Any]) -> list[Seen]:
        """Return the connections of a request, those of jobs and terminals last; all must be in sight."""
        seen = self.visibility.require(grant, self.subjects.connections(about))
        self.visibility.require_categories(grant, self.subjects.categories(about))
        for name, work in self.subjects.works(about):
            if work is None or not _is_open(grant, work) or not self.visibility.visible(grant, [work.connection]):
                # The same answer for one on a hidden connection, whose id the token must not learn.
                raise _UNKNOWN[name](about[name])
            seen += self.visibility.require(grant, [work.connection])
        return seen


def _is_open(grant: Grant | None, work: Work) -> bool:
    return grant is None or grant.is_unbound or work.token == grant.id
