"""The one place that decides, before a request is carried out, whether its caller may do what it asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from connmgr.errors import PolicyDenied, ScopeDenied, UnknownJob, UnknownTerminal
from connmgr.plugin import Caller as PluginCaller
from connmgr.registry import Registry
from connmgr.rights.approvals import Approvals
from connmgr.rights.argv import as_argv
from connmgr.rights.grant import Grant, Seen, joined
from connmgr.rights.path_rules import ACTIONS, PathRules
from connmgr.rights.rules import Decision, Wanted, combined, rule_of
from connmgr.rights.scopes import ARGV, RUNS_COMMANDS, TEXT
from connmgr.rights.sight import Sight, is_loopback
from connmgr.rights.subjects import NAMES, SubjectsOf, Work
from connmgr.vault import Vault
from connmgr.vault.path import segment
from connmgr.vault.sealed import within
from connmgr.vault.wellknown import LOCAL

_UNKNOWN: Mapping[str, Callable[[str], Exception]] = {"job": UnknownJob, "terminal": UnknownTerminal}
_BOUND = ("argv", "command", "session", "cwd", "env", "stdin", "encoding", "fresh")
"""The fields of a request that an approval is bound to, beside its connections."""

_RUNS = ("shell", "commands")
"""Members of a connection's data that tell what is run when it is opened."""

_TAKES_INPUT = frozenset({"shell.pipe", "terminal.open"})
"""Actions whose program reads what the caller sends it afterwards."""

_ON_PATHS = {
    "fs.list": "fs.read",
    "fs.stat": "fs.read",
    "fs.mkdir": "fs.write",
    "fs.move": "fs.write",
    "fs.remove": "fs.write",
}
"""As which action rules over paths look at others."""


class Caller(PluginCaller, Protocol):
    """Who sent a request; ``grant`` is None for the owner."""

    @property
    def grant(self) -> Grant | None: ...


@dataclass(frozen=True)
class Permitted:
    """A request that may be carried out: as it came, or with what is run in place of what was asked for."""

    request: Any
    reasons: Mapping[str, Any]
    """What decided, for the audit trail: ``rule`` and ``approval`` where there are."""


class Authorisation:
    """Lets tokens do what they are for, and each plugin with the hook ``connmgr_authorise`` refuse a request."""

    def __init__(self, registry: Registry, vault: Vault, subjects: SubjectsOf, approvals: Approvals) -> None:
        self.subjects = subjects
        self.sight = Sight(vault, registry)
        self._vault = vault
        self._approvals = approvals
        self._hook = registry.plugins.hook.connmgr_authorise
        self._has_plugins = bool(self._hook.get_hookimpls())

    def concerns(self, caller: Caller) -> bool:
        """Whether anything decides about ``caller``; otherwise there is no need to find out what a request is about."""
        return self._has_plugins or caller.grant is not None

    def check(self, caller: Caller, action: str, request: Any, names: Collection[str] = NAMES) -> Permitted:
        """Return how ``caller`` may carry out the loaded ``request``, of which the fields ``names`` name subjects.

        :raises ScopeDenied: its token is not for this.
        :raises PolicyDenied: a rule of its token, or a plugin, refuses it. What else a plugin raises refuses it too.
        :raises connmgr.errors.UnknownConnection, connmgr.errors.UnknownCategory, UnknownJob, UnknownTerminal: it names
            what is out of its token's sight.
        """
        permitted = Permitted(request, {})
        about = {name: request[name] for name in names if name in request} if request else {}
        if caller.grant is not None:
            permitted = self._by_grant(caller.grant, action, request or {}, about)
        if self._has_plugins:
            self._hook(caller=caller, action=action, subjects=self.subjects(about))
        return permitted

    def path_rules(
        self, caller: Caller, connection: str, asked: Mapping[str, Any] | None, wait: float
    ) -> PathRules | None:
        """Return the rules over paths of the caller's token for one request, or None if there are none.

        ``asked`` and ``wait`` are as in :class:`PathRules`.
        """
        grant = caller.grant
        if grant is None or not any(one.rules.over_paths(action) for one in grant.lineage for action in ACTIONS):
            return None
        [seen] = self.sight.require(grant, [connection])
        return PathRules(grant, seen, self._approvals, asked, wait)

    def visible(self, caller: Caller, connections: Iterable[str]) -> list[str]:
        """Return those of ``connections`` that ``caller`` may see, in their order."""
        grant = caller.grant
        return list(connections) if grant is None or grant.sees_all else self.sight.visible(grant, connections)

    def visible_categories(self, caller: Caller, categories: Iterable[str]) -> list[str]:
        """Return those of ``categories`` that ``caller`` may see, in their order."""
        grant = caller.grant
        return list(categories) if grant is None or grant.sees_all else self.sight.visible_categories(grant, categories)

    def visible_work(self, caller: Caller, work: Iterable[tuple[Any, Work]]) -> Iterator[Any]:
        """Yield the first members of pairs whose job or terminal ``caller`` may see."""
        pairs = list(work)
        seen = set(self.visible(caller, {of.connection for _, of in pairs}))
        yield from (one for one, of in pairs if of.connection in seen and _is_open(caller.grant, of))

    def sees(self, caller: Caller, entry: Mapping[str, Any]) -> bool:
        """Whether ``caller`` may see an entry of the audit trail: its token's own, or on what is in its sight."""
        grant = caller.grant
        if grant is None or entry.get("token") == grant.id:
            return True
        named = [*([entry["connection"]] if "connection" in entry else []), *entry.get("connections", ())]
        if not named or "category" in entry or "categories" in entry:
            return grant.sees_all
        return len(self.visible(caller, named)) == len(named)

    def _by_grant(self, grant: Grant, action: str, request: Mapping[str, Any], about: Mapping[str, Any]) -> Permitted:
        seen = self._admitted(grant, action, request, about)
        return self._by_rules(grant, action, request, seen) if action in RUNS_COMMANDS else Permitted(request, {})

    def _admitted(self, grant: Grant, action: str, request: Mapping[str, Any], about: Mapping[str, Any]) -> list[Seen]:
        """Return the connections that a request is about, as far as scopes and sight let a token do it at all."""
        grant.require_scope(action, *(_needed_to_run(request) if action in RUNS_COMMANDS else ()))
        if "data" in about and "secret.decrypt" not in grant.scopes and next(within(about["data"]), None):
            # Else a sealed secret could be sent to a machine of the caller's.
            raise ScopeDenied("The token lacks the scope secret.decrypt: secrets in data must be plain.")
        seen = self.sight.require(grant, self.subjects.connections(about))
        self.sight.require_categories(grant, self.subjects.categories(about))
        for name, work in self.subjects.works(about):
            if work is None or not _is_open(grant, work):
                raise _UNKNOWN[name](about[name])
            seen += self.sight.require(grant, [work.connection])
        if action == "connection.toggle":
            self._require_toggle(grant, request["connection"])
        if action in ("connection.add", "connection.update"):
            self._require_data(grant, action, request)
        if action == "shell.stop" and request.get("all") and not grant.is_unbound:
            raise ScopeDenied("The token may not stop what others use: it may not run anything it likes.")
        self._require_places(grant, action, request)
        return seen

    def _require_data(self, grant: Grant, action: str, request: Mapping[str, Any]) -> None:
        """Refuse data, and names, by which a token would reach or run more than it may."""
        if any(one.rules.go_by_connections for one in grant.lineage):
            raise ScopeDenied("The token has rules for certain connections, and may neither make nor change any.")
        if not isinstance(data := request.get("data"), Mapping):
            return
        if action == "connection.update":
            [stored] = self._vault.connections.infos([request["connection"]])
            data = {"type": stored.type, **data}
        if self.sight.is_tunnel(data):
            self._require_tunnel(grant, data)
        wraps, dials = self.sight.ways_of(data)
        if not grant.is_unbound and (wraps or any(data.get(name) for name in _RUNS)):
            raise ScopeDenied("The token may not run anything it likes, and not choose what a connection runs.")
        if not wraps and not dials and not self.sight.visible(grant, [LOCAL]):
            raise ScopeDenied("The token does not see the daemon's machine, and may have no connection there.")

    def _require_tunnel(self, grant: Grant, data: Mapping[str, Any]) -> None:
        """Refuse a tunnel that would be opened without the token, or let other machines into the daemon's."""
        if "tunnel" not in grant.scopes:
            raise ScopeDenied("The token lacks the scope tunnel, and may not make a tunnel that others would open.")
        forward = self.sight.forward(data)
        if forward is None:
            return
        if forward.auto_start:
            raise ScopeDenied("What a token opens ends with it: the token may make no tunnel with autoStart.")
        if not is_loopback(forward.host) and not self.sight.visible(grant, [LOCAL]):
            raise ScopeDenied("The token does not see the daemon's machine, and may listen on its loopback alone.")

    def _require_toggle(self, grant: Grant, connection: str) -> None:
        """Refuse to toggle a tunnel, or what a far side runs, without the scope that either needs."""
        [stored] = self._vault.connections.infos([connection])
        data = {"type": stored.type, **stored.data}
        is_tunnel = self.sight.is_tunnel(data)
        grant.require_scope("connection.toggle", frozenset({"tunnel"}) if is_tunnel else TEXT)
        if not is_tunnel and not grant.is_unbound:
            raise ScopeDenied("The token may not run anything it likes, and neither start nor stop what machines run.")
        if is_tunnel and not self.sight.ways_of(data)[1] and not self.sight.visible(grant, [LOCAL]):
            raise ScopeDenied("The token does not see the daemon's machine, and may open no tunnel that leads there.")

    def foretold(self, grant: Grant, action: str, request: Mapping[str, Any], names: Collection[str]) -> Decision:
        """Return what :meth:`check` would decide for a token, without asking anybody; plugins are not asked either.

        Paths are taken as they are in the request; the far side may find that they lead elsewhere.

        :raises ConnmgrError: as :meth:`check`, but for what a rule denies or asks about.
        """
        about = {name: request[name] for name in names if name in request}
        seen = self._admitted(grant, action, request, about)
        if action in RUNS_COMMANDS:
            return _decision(grant, action, request, seen) or Decision("allow")
        action = _ON_PATHS.get(action, action)
        decisions = [
            one.rules.decide_path(action, path if isinstance(path, bytes) else str(path).encode(), on.names, on.user)
            for one in grant.lineage
            for on in seen
            for path in self.subjects(about).paths
            if action in ACTIONS and one.rules.over_paths(action)
        ]
        return combined(decisions) if decisions else Decision("allow")

    def _require_places(self, grant: Grant, action: str, request: Mapping[str, Any]) -> None:
        """Refuse to put something out of sight, or to remove or move what is."""
        if grant.sees_all:
            return
        if action in ("connection.remove", "connection.update"):
            named = request["connections"] if action == "connection.remove" else [request["connection"]]
            ids = self._vault.connections.with_dependents(named)
            if len(self.sight.visible(grant, ids)) < len(ids):
                raise ScopeDenied("The token may neither remove nor change what other connections run over.")
        if action == "connection.add":
            path = self.sight.place(request["name"], request["data"], request.get("places", {}))
            self.sight.require_place(grant, path, request.get("category"))
        elif action == "connection.update":
            self._require_new_place(grant, request)
        elif action in ("category.add", "category.remove"):
            # What is below a category, and what a new one is called, filters cannot tell.
            raise ScopeDenied("The token sees certain connections alone, and may not change categories.")

    def _require_new_place(self, grant: Grant, request: Mapping[str, Any]) -> None:
        [stored] = self._vault.connections.infos([request["connection"]])
        name = request.get("name", stored.name)
        if "data" in request:
            path = self.sight.place(name, {"type": stored.type, **request["data"]}, request.get("places", {}))
        else:
            path = joined((*stored.path[:-1], segment(name)))
        self.sight.require_place(grant, path, request.get("category", stored.category))

    def _by_rules(self, grant: Grant, action: str, request: Mapping[str, Any], seen: list[Seen]) -> Permitted:
        decision = _decision(grant, action, request, seen)
        if decision is None:
            return Permitted(_as_scoped(grant, request), {})
        rule = rule_of(decision)
        if decision.effect == "deny":
            what = "No rule of the token allows it." if rule is None else "A rule of the token denies it."
            raise PolicyDenied(what, rule=rule)
        decided = _decided(_as_scoped(grant, request), decision)
        reasons = {} if rule is None else {"rule": rule}
        if decision.effect == "ask":
            asked: dict[str, Any] = {name: decided[name] for name in _BOUND if decided.get(name)}
            if "stdin" not in asked:
                # It tells how input is read, and the answer is written, which decides nothing.
                asked.pop("encoding", None)
            asked |= {"action": action, "connections": [one.id for one in seen], "names": [one.path for one in seen]}
            askers = [one.id for one in grant.lineage if _asks(one, action, request, seen)]
            reasons["approval"] = self._approvals.require(grant, asked, request.get("wait", 0), askers)
        return Permitted(decided, reasons)


def _decision(grant: Grant, action: str, request: Mapping[str, Any], seen: list[Seen]) -> Decision | None:
    """Return what the rules over commands decide, or None where there are none."""
    ruled = [one for one in grant.lineage if one.rules.over_commands]
    if "tcp" in request or not ruled or not seen:
        return None
    return combined([one.rules.decide_command(_wanted(action, request, on)) for one in ruled for on in seen])


def _asks(one: Grant, action: str, request: Mapping[str, Any], seen: list[Seen]) -> bool:
    wanted = [_wanted(action, request, on) for on in seen]
    return one.rules.over_commands and any(one.rules.decide_command(each).effect == "ask" for each in wanted)


def _is_open(grant: Grant | None, work: Work) -> bool:
    return grant is None or grant.is_unbound or work.token == grant.id


def _needed_to_run(request: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    if "tcp" in request:
        yield frozenset({"tunnel"})
    elif "argv" in request or "saved" in request or as_argv(request.get("command", "")) is not None:
        yield ARGV
    else:
        yield TEXT


def _as_scoped(grant: Grant, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the request with an argv in place of a text, where a token may run argvs alone."""
    argv = as_argv(request.get("command", ""))
    if argv is None or "shell.any" in grant.scopes:
        return request
    return {name: value for name, value in request.items() if name != "command"} | {"argv": list(argv)}


def _wanted(action: str, request: Mapping[str, Any], on: Seen) -> Wanted:
    return Wanted(
        names=on.names,
        user=on.user,
        argv=tuple(request["argv"]) if "argv" in request else None,
        text=request.get("command"),
        saved=request.get("saved"),
        env=request.get("env") or {},
        cwd=request.get("cwd"),
        has_stdin=action in _TAKES_INPUT or bool(request.get("stdin")),
    )


def _decided(request: Mapping[str, Any], decision: Decision) -> dict[str, Any]:
    """Return the request with what was decided about in place of what was asked for."""
    changed = dict(request)
    if decision.argv is not None:
        changed.pop("command", None)
        changed["argv"] = list(decision.argv)
    if decision.path is not None:
        changed["env"] = {**(changed.get("env") or {}), "PATH": decision.path}
    return changed
