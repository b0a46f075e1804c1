"""Decides, before a request is carried out, whether its caller may do it; nothing else decides that.

A token's request passes, in the order of this module: the scopes of its action, the sight of all that it names and the
limits of its action (:meth:`Authorisation._admitted`); and if it runs something, the rules over commands
(:class:`CommandRules`), which may ask a person. Then plugins may refuse it, as they may refuse the owner's. The rules
over paths apply later, when the remote host has told the real paths (:mod:`connmgr.rights.authorisation`).
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from connmgr.computing import in_pieces
from connmgr.contract.common import AwaitsApproval, CommandOptions
from connmgr.contract.job import JobRequest
from connmgr.contract.message import (
    DISTINCT,
    FILTER,
    ID,
    SEQUENCES,
    Field,
    Message,
    fields_of,
    members,
    path_to_json,
    replace,
    unwrapped,
)
from connmgr.contract.shell import ExecRequest, OwnShell, PipeRequest
from connmgr.contract.terminal import TerminalRequest
from connmgr.errors import (
    ApprovalRequired,
    ConnmgrError,
    PolicyDenied,
    ScopeDenied,
    UnknownJob,
    UnknownTerminal,
    UnknownType,
)
from connmgr.fields import references, secret_references
from connmgr.plugin import Caller as PluginCaller
from connmgr.plugin import Subjects
from connmgr.registry import Registry
from connmgr.rights.actions import Action
from connmgr.rights.approvals import Approvals, propose
from connmgr.rights.grant import ConnectionFacts, Grant
from connmgr.rights.ground import Ground, Reads, RunRequest
from connmgr.rights.programs import LOCALE, Compound, as_argv, as_compound
from connmgr.rights.rule import is_clean
from connmgr.rights.rules import Decision, RequestedCommand, Rules, combined, not_too_free, of_parts, rule_of
from connmgr.rights.scopes import ARGV, TERMINAL, TEXT
from connmgr.rights.visibility import PlannedConnection, Visibility
from connmgr.vault import Vault
from connmgr.vault.connection_rows import sealed_secrets
from connmgr.vault.names import elevation_of

Sent = TypeVar("Sent", bound="Message | None")
Running = TypeVar("Running", bound=RunRequest)
Item = TypeVar("Item")


class GrantedCaller(PluginCaller, Protocol):
    """The sender of a request; ``grant`` is None for the owner."""

    @property
    def grant(self) -> Grant | None: ...


class Named(NamedTuple):
    """What the fields of a request name: connections and categories by ids, paths, and the name of a shell.

    ``data`` are those of a connection, which may name others.
    """

    connections: list[str]
    categories: list[str]
    paths: list[str | bytes]
    session: str | None
    data: Mapping[str, Any] | None


_SUBJECTS = frozenset(
    ["connection", "connections", "category", "categories", "parent", "path", "source", "target", "session", "data"]
)
"""The fields of requests that name subjects, wherever a message declares them."""


def named(request: Message | None) -> Named:
    """Return what the fields of a request name."""
    values = {} if request is None else {name: getattr(request, name) for name in subject_fields(type(request))}

    def each(*names: str) -> list[Any]:
        present = [values[name] for name in names if values.get(name) is not None]
        return [item for value in present for item in (value if isinstance(value, list) else [value])]

    data = values.get("data")
    return Named(
        connections=list(dict.fromkeys(each("connection", "connections"))),
        categories=list(dict.fromkeys(each("category", "categories", "parent"))),
        paths=each("path", "source", "target"),
        session=values.get("session"),
        # The input of a job is called data too, and is a text.
        data=data if isinstance(data, Mapping) else None,
    )


def subject_fields(kind: type[Message]) -> list[str]:
    """Return the fields of a class of requests that name subjects, besides a job and a terminal."""
    # By their names, so that no endpoint can forget to declare one.
    return [field.name for field in fields_of(kind) if field.name in _SUBJECTS and _names_subject(field)]


def _names_subject(field: Field) -> bool:
    if typing.get_origin(field.type) in SEQUENCES:
        # The connections and categories of a new token are filters, and those of a batch are paths.
        return DISTINCT in field.facts or ID in unwrapped(typing.get_args(field.type)[0]).facts
    return FILTER not in field.facts


class Work(NamedTuple):
    """A job or a terminal: its connection, and the id of the token that started it, None for the owner."""

    connection: str
    token: str | None


FindWork = Callable[[str], Work | None]
"""Returns the job or terminal with an id, or None."""

GroundOf = Callable[[str, str | None, Reads | None, bool], Ground]
"""Returns the ground of a request on a connection, in a ``session``, with what it reads; True: in a fresh shell."""


@dataclass(frozen=True)
class Permitted(Generic[Sent]):
    """A request that may be carried out, unchanged or with another command in place of the requested one."""

    request: Sent
    reasons: Mapping[str, Any] = field(default_factory=dict)
    """The deciding ``rule`` and ``approval``, if any, for the audit log."""

    grounds: Mapping[str, Ground] = field(default_factory=dict)
    """On what an approved request was approved, by connections."""

    requested: Sent | None = None
    """An approved request as it was, before a rule put another command in its place."""


class Authorisation:
    """Applies the rights of tokens, and lets each plugin with the hook ``connmgr_authorise`` refuse a request."""

    def __init__(
        self,
        registry: Registry,
        vault: Vault,
        find_job: FindWork,
        find_terminal: FindWork,
        approvals: Approvals,
        ground_of: GroundOf,
    ) -> None:
        self.visibility = Visibility(vault, registry)
        self._registry, self._vault = registry, vault
        self._find_job, self._find_terminal = find_job, find_terminal
        self._approvals = approvals
        self._ground_of = ground_of
        self._hook = registry.plugins.hook.connmgr_authorise
        self._has_plugins = bool(self._hook.get_hookimpls())

    def concerns(self, caller: GrantedCaller) -> bool:
        """Whether anything decides about ``caller``; if not, the subjects of a request need not be found."""
        return self._has_plugins or caller.grant is not None

    def check(
        self,
        caller: GrantedCaller,
        action: Action[Any],
        request: Sent,
        planned: Mapping[str, PlannedConnection] | None = None,
    ) -> Permitted[Sent]:
        """Return how ``caller`` may carry out a request.

        Its data may refer to ``planned`` connections by labels.

        :raises ScopeDenied: its token lacks a scope.
        :raises PolicyDenied: a rule of its token or a plugin refuses it, or a plugin raised another exception.
        :raises connmgr.errors.UnknownConnection, connmgr.errors.UnknownCategory, UnknownJob, UnknownTerminal: a subject
            is out of its token's sight.
        """
        permitted = Permitted(request)
        visibility = self.visibility.with_planned(planned) if planned else self.visibility
        if caller.grant is not None:
            permitted = self._by_grant(caller.grant, visibility, action, request)
        # Last: a plugin can refuse what the rights of the token permit, and never permit more.
        if self._has_plugins:
            self._hook(caller=caller, action=action.name, subjects=self.subjects(request, visibility))
        return permitted

    def _by_grant(self, grant: Grant, visibility: Visibility, action: Action[Any], request: Sent) -> Permitted[Sent]:
        facts = self._admitted(grant, visibility, action, request)
        if not isinstance(request, RunRequest):
            return Permitted(request)
        permitted: Permitted[Any] = self._rules(grant, visibility, action, request, facts).permitted(
            self._approvals, self._ground_of
        )
        return permitted

    def _rules(
        self,
        grant: Grant,
        visibility: Visibility,
        action: Action[Any],
        request: Running,
        facts: Sequence[ConnectionFacts],
    ) -> CommandRules[Running]:
        need_digests = any(ancestor.rules.need_digests for ancestor in grant.lineage)
        digests = visibility.digests([on.id for on in facts]) if need_digests else {}
        return CommandRules(grant, action, request, facts, digests, self._vault.database.now())

    def _admitted(
        self, grant: Grant, visibility: Visibility, action: Action[Any], request: Message | None
    ) -> list[ConnectionFacts]:
        """Return the connections of a request that only a rule may refuse; raise as :meth:`check`."""
        # First, so that a token without the scope learns nothing about what the request names.
        grant.require_scope(action.name)
        if isinstance(request, RunRequest):
            grant.require_one(_scopes_to_run(request, grant))
            if action.on_terminal(request):
                grant.require_one(TERMINAL)
            if grant.read_only and (action.on_terminal(request) or _opens_tcp(request)):
                raise ScopeDenied("The token may only look (readOnly): it has neither terminals nor TCP streams.")
        about = named(request)
        if about.data and "secret.decrypt" not in grant.scopes and next(sealed_secrets(about.data), None):
            # Otherwise the caller could have a sealed secret sent to a machine of its own.
            raise ScopeDenied("The token lacks the scope secret.decrypt: secrets in data must be plain.")
        if about.data and next(secret_references(about.data), None):
            # It could run commands on the daemon's machine, or have what its user may read sent to a host of its own.
            raise ScopeDenied(
                "Only the owner gives a connection a secret from elsewhere: no token's data may have one."
            )
        facts = visibility.require(grant, self._connections(about, visibility))
        visibility.require_categories(grant, about.categories)
        facts += self._facts_of_work(grant, request)
        if request is not None:
            for limit in action.limits:
                limit(visibility, grant, request)
        return facts

    def _facts_of_work(self, grant: Grant, request: Message | None) -> list[ConnectionFacts]:
        """Return the connection of the job or terminal that a request names; it must be in sight."""
        if not isinstance(request, JobRequest | TerminalRequest):
            return []
        work = self.work_of(request)
        if work is None or not _is_open(grant, work) or not self.visibility.visible(grant, [work.connection]):
            # The same answer for one on a hidden connection, whose id the token must not learn.
            raise UnknownJob(request.job) if isinstance(request, JobRequest) else UnknownTerminal(request.terminal)
        return self.visibility.require(grant, [work.connection])

    def work_of(self, request: Message | None) -> Work | None:
        """Return the job or terminal that a request names; None if it names none, or an unknown one."""
        if isinstance(request, JobRequest):
            return self._find_job(request.job)
        return self._find_terminal(request.terminal) if isinstance(request, TerminalRequest) else None

    def subjects(self, request: Message | None, visibility: Visibility) -> Subjects:
        """Return the subjects of a request, including all that its connections run over."""
        about, work = named(request), self.work_of(request)
        connections = {*self._connections(about, visibility), *([work.connection] if work else [])}
        return Subjects(
            frozenset(self._vault.connections.with_carriers(connections)),
            frozenset(about.categories),
            tuple(about.paths),
            about.session,
        )

    def _connections(self, about: Named, visibility: Visibility) -> list[str]:
        """Return the connections that a request names, each once, in order; those in ``data`` are last."""
        return list(dict.fromkeys([*about.connections, *self._references(about.data or {}, visibility)]))

    def _references(self, data: Mapping[str, Any], visibility: Visibility) -> Iterator[str]:
        """Yield the connections that a connection's data name; the view refuses malformed data."""
        if not isinstance(data.get("type"), str):
            return
        try:
            schema = self._registry.get(data["type"]).schema()
        except UnknownType:
            return
        for reference in references(schema, data):
            value = reference.get("storeId") if isinstance(reference, Mapping) else reference
            if planned := visibility.planned_by(reference):
                yield from planned.over
            elif isinstance(value, str):
                yield value.lower()

    def dry_run(self, grant: Grant, action: Action[Any], request: Message) -> Decision | None:
        """Return the decision about a request, without asking a person or plugin; None if the remote host decides.

        :raises ConnmgrError: as :meth:`check`, except for decisions of rules.
        """
        facts = self._admitted(grant, self.visibility, action, request)
        if isinstance(request, RunRequest):
            return self._rules(grant, self.visibility, action, request, facts).decision() or Decision("allow")
        # Paths count as they are written; the remote host may resolve them to others.
        return dry_run_of_paths(grant, facts, action.paths(request), whole=action.whole(request))

    def check_again(self, caller: GrantedCaller, action: Action[Any], request: Message, *, approved: bool) -> None:
        """Check a request that was permitted earlier, when a part of it begins, which may be much later.

        It may have been ``approved`` then, and nobody is asked again.
        :raises ConnmgrError: as :meth:`check`.
        """
        if caller.grant is not None:
            decision = self.dry_run(caller.grant, action, request)
            if decision is not None and decision.effect == "deny":
                raise denied(rule_of(decision))
            if decision is not None and decision.effect == "ask" and not approved:
                raise ApprovalRequired(
                    "A rule of the token now asks for an approval, which was not given for this run: start another run."
                )
        if self._has_plugins:
            self._hook(caller=caller, action=action.name, subjects=self.subjects(request, self.visibility))

    def path_rules(
        self, caller: GrantedCaller, connection: str, asked: Mapping[str, Any] | None, wait: float, digest: str | None
    ) -> PathRules | None:
        """Return the rules over paths of the caller's token for one request, or None if there are none.

        ``asked`` and ``wait`` are as in :class:`PathRules`. ``digest`` is the connection's when its link was opened.
        """
        grant = caller.grant
        if grant is None or not grant.has_rules_over_paths:
            return None
        [facts] = self.visibility.require(grant, [connection])

        def ground() -> Ground:
            current = self._ground_of(connection, None, None, False)
            current.require(digest)
            return current

        return PathRules(grant, facts, self._approvals, asked, wait, ground)

    def visible(self, caller: GrantedCaller, connections: Iterable[str]) -> list[str]:
        """Return the ``connections`` that ``caller`` may see, in their order."""
        grant, ids = caller.grant, list(connections)
        # A token that sees everything does not see the elevated connections of others.
        if grant is None or (grant.sees_all and not any(map(elevation_of, in_pieces(ids)))):
            return ids
        return self.visibility.visible(grant, ids)

    def visible_categories(self, caller: GrantedCaller, categories: Iterable[str]) -> list[str]:
        """Return the ``categories`` that ``caller`` may see, in their order."""
        grant = caller.grant
        if grant is None or grant.sees_all:
            return list(categories)
        return self.visibility.visible_categories(grant, categories)

    def visible_work(self, caller: GrantedCaller, work: Iterable[tuple[Item, Work]]) -> Iterator[Item]:
        """Yield the first members of pairs whose job or terminal ``caller`` may see."""
        pairs = list(work)
        visible = set(self.visible(caller, {of.connection for _, of in pairs}))
        yield from (item for item, of in pairs if of.connection in visible and _is_open(caller.grant, of))

    def knows(self, caller: GrantedCaller, connections: Collection[str]) -> bool:
        """Whether ``caller`` may read about ``connections``: all are in sight, or would be if they were its own."""
        grant, ids = caller.grant, set(connections)
        if grant is None or grant.sees_all:
            return True
        facts = self.visibility.of(ids)
        return facts.keys() == ids and all(map(grant.sees, facts.values()))

    def told(self, caller: GrantedCaller, error: ConnmgrError) -> ConnmgrError:
        """Return ``error`` as ``caller`` may read it.

        A token is told nothing of the daemon's machine, nor of a connection on the way that it does not see.
        """
        if caller.grant is None:
            return error
        if error.hop is not None and not self._sees(caller, error.hop):
            return error.veiled(
                "It runs over a connection that the token does not see, and that cannot be opened; ask its owner."
            )
        return error if error.for_tokens is None else error.veiled(error.for_tokens)

    def _sees(self, caller: GrantedCaller, connection: str) -> bool:
        try:
            return bool(self.visible(caller, [connection]))
        except ConnmgrError:
            # The vault is out of reach, and the error is told nevertheless.
            return False

    def sees_entry(self, caller: GrantedCaller, entry: Mapping[str, Any]) -> bool:
        """Whether ``caller`` may see an entry of the audit log: its token's own, or one about visible subjects."""
        grant = caller.grant
        if grant is None or entry.get("token") == grant.id:
            return True
        connections = [*([entry["connection"]] if "connection" in entry else []), *entry.get("connections", ())]
        if not connections or "category" in entry or "categories" in entry:
            return grant.sees_all
        return self.knows(caller, connections)

    def knows_subjects(self, caller: GrantedCaller, entry: Mapping[str, Any]) -> bool:
        """Whether ``caller`` may read what the subjects of an entry that it sees are called.

        Its own request may have named any by their ids, and was refused then; if it was not, it saw them. Those that do
        not exist are not told from those out of sight.
        """
        if caller.grant is None or "code" not in entry:
            return True
        connections, categories = (
            [*([entry[one]] if one in entry else []), *entry.get(several, ())]
            for one, several in (("connection", "connections"), ("category", "categories"))
        )
        return self.knows(caller, connections) and len(self.visible_categories(caller, categories)) == len(categories)


def _opens_tcp(request: RunRequest) -> bool:
    return isinstance(request, PipeRequest) and request.tcp is not None


def _is_open(grant: Grant | None, work: Work) -> bool:
    return grant is None or grant.is_unbound or work.token == grant.id


def _scopes_to_run(request: RunRequest, grant: Grant) -> frozenset[str]:
    """Return scopes, one of which a token needs for the command of a request."""
    if _opens_tcp(request):
        return frozenset({"tunnel"})
    is_argv = request.argv is not None or request.saved is not None or as_argv(request.command or "") is not None
    if not is_argv and any(ancestor.rules.closes_commands for ancestor in grant.lineage):
        # The rules decide about each part, and it is then run as these words.
        is_argv = as_compound(request.command or "") is not None
    return ARGV if is_argv else TEXT


_BOUND = ("argv", "command", "session", "cwd", "env", "stdin", "input", "encoding", "fresh", "retries")
"""The fields of a request to which an approval is bound, besides its connections."""


class CommandRules(Generic[Running]):
    """Decides by the rules of a token and its ancestors about a request to run something on ``connections``."""

    def __init__(
        self,
        grant: Grant,
        action: Action[Any],
        request: Running,
        connections: Sequence[ConnectionFacts],
        digests: Mapping[str, str],
        at: datetime,
    ) -> None:
        self._grant, self._action, self._connections = grant, action, connections
        self._request: Running = _as_scoped(grant, request)
        self._ruled = (
            [] if _opens_tcp(request) else [ancestor for ancestor in grant.lineage if ancestor.rules.over_commands]
        )
        self._compound = as_compound(self._request.command or "") if self._ruled else None
        self._commands = [
            replaced(_requested(request, on, action), tokens=grant.lineage_ids, digest=digests.get(on.id), at=at)
            for on in connections
            if self._ruled
        ]

    def decision(self) -> Decision | None:
        """Return the decision about the request, or None if no rule applies to commands."""
        if not self._commands:
            return None
        if self._compound is None:
            return self._decided_about(self._commands)
        return of_parts(self._compound, [self._decided_about(part) for part in self._parts(self._compound)])

    def _decided_about(self, commands: Sequence[RequestedCommand]) -> Decision:
        return combined([grant.rules.decide_command(command) for grant in self._ruled for command in commands])

    def _parts(self, compound: Compound) -> Iterator[list[RequestedCommand]]:
        """Yield the parts of a compound command, each on all connections, with the whole text for rules over texts."""
        for number, argv in enumerate(compound.parts):
            reads = compound.reads_pipe(number)
            yield [replaced(command, argv=argv, has_stdin=command.has_stdin or reads) for command in self._commands]

    def permitted(self, approvals: Approvals, ground_of: GroundOf) -> Permitted[Running]:
        """Return how the request may be carried out, and on which grounds it was approved.

        :raises PolicyDenied: a rule denies it, or none allows it.
        :raises connmgr.errors.ApprovalRequired, connmgr.errors.ApprovalDenied: a rule asks about it.
        """
        decision, request = self.decision(), self._request
        if decision is None:
            return Permitted(request)
        rule = rule_of(decision)
        if decision.effect == "deny":
            refusal = denied(rule)
            saved = request.saved
            if saved is not None and saved.too_free is not None and (why := saved.too_free("allow", {})):
                refusal.message += f" No rule allows every argument of this command: {why}"
            raise refusal
        decided = _decided(request, decision)
        reasons = {} if rule is None else {"rule": rule}
        if decision.effect == "allow" and not decision.is_bound:
            return Permitted(decided, reasons)
        wait = request.wait if isinstance(request, AwaitsApproval) else 0
        grounds = self._grounds(decided, ground_of)
        if decision.effect == "allow":
            # A pattern is a rule and not bound to the state of a shell; what it leads to is compared once more there.
            for command, ground in zip(self._commands, grounds, strict=True):
                ground.require(command.digest)
            return Permitted(decided, reasons, {one.connection: replaced(one, state=None) for one in grounds}, request)
        askers = self._askers()
        rules = {asker.id: asker.rules for asker in askers}
        proposal = propose(decision, self._connections, self._commands, rules, self._grant.id, grounds)
        ids = [asker.id for asker in askers]
        approval = approvals.require(self._grant, self._asked(decided), wait, ids, grounds, proposal)
        by_connection = {ground.connection: ground for ground in grounds}
        return Permitted(decided, {**reasons, "approval": approval}, by_connection, request)

    def _all_commands(self) -> Sequence[RequestedCommand]:
        if self._compound is None:
            return self._commands
        return [command for part in self._parts(self._compound) for command in part]

    def _asked(self, decided: Running) -> dict[str, Any]:
        """Return as JSON all of a request that decides what is done."""
        values = members(decided)
        facts: dict[str, Any] = {name: values[name] for name in _BOUND if values.get(name)}
        if "stdin" not in facts:
            # Only the encoding of input and answer, which is irrelevant to the decision.
            facts.pop("encoding", None)
        if "input" in facts:
            facts["input"] = "unknown: the client sends it while the command runs"
        if sent := _sent_environment(decided):
            facts["sendEnv"] = sent
        if self._compound is not None and decided.command is None:
            # What the argv of a shell means, in the words that were requested.
            facts["parts"] = self._request.command
        return {
            **facts,
            "action": self._action.name,
            "connections": [connection.id for connection in self._connections],
            "names": [connection.path for connection in self._connections],
            "terminal": self._action.on_terminal(self._request),
        }

    def _grounds(self, decided: Running, ground_of: GroundOf) -> list[Ground]:
        reads = Reads.of(decided) if self._action.in_shell(decided) else None
        session = None if isinstance(decided, PipeRequest) else decided.session
        fresh = isinstance(decided, OwnShell) and decided.fresh
        return [ground_of(connection.id, session, reads, fresh) for connection in self._connections]

    def _askers(self) -> list[Grant]:
        return [
            grant
            for grant in self._ruled
            if any(grant.rules.decide_command(command).effect == "ask" for command in self._all_commands())
        ]


def _as_scoped(grant: Grant, request: Running) -> Running:
    """Return the request, with an argv in place of a text if the token may run only argvs."""
    argv = as_argv(request.command or "")
    if argv is None or not TEXT.isdisjoint(grant.scopes):
        return request
    return replace(request, command=None, argv=list(argv))


def _sent_environment(request: RunRequest) -> dict[str, str]:
    """Return the variables of the client's environment, without those of the locale: they choose only a language."""
    return {name: value for name, value in (request.send_env or {}).items() if name not in LOCALE}


def _requested(request: RunRequest, on: ConnectionFacts, action: Action[Any]) -> RequestedCommand:
    saved = request.saved
    has_stdin = isinstance(request, CommandOptions) and bool(request.stdin)
    has_input = isinstance(request, ExecRequest) and request.input is not None
    return RequestedCommand(
        connection=on.id,
        names=on.names,
        user=on.user,
        argv=None if request.argv is None else tuple(request.argv),
        text=request.command,
        saved=None if saved is None else (saved.name, saved.arguments),
        too_free=not_too_free if saved is None or saved.too_free is None else saved.too_free,
        # What a client sends counts as what a request sets, whether the connection admits it or not.
        env={**_sent_environment(request), **(request.env or {})},
        cwd=request.cwd if isinstance(request, CommandOptions) else None,
        has_stdin=action.takes_input or has_stdin or has_input,
        has_pty=action.on_terminal(request),
    )


def _decided(request: Running, decision: Decision) -> Running:
    """Return the request with the command of the deciding rule in place of the requested one."""
    if decision.argv is not None:
        request = replace(request, command=None, argv=list(decision.argv))
    if decision.path is not None:
        request = replace(request, env={**(request.env or {}), "PATH": decision.path})
    return request


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
        for grant in self._grant.lineage:
            rules = grant.rules
            if rules.over_paths(action) and not rules.covers(action, directory, self._on.names, self._on.user):
                raise denied(None)

    def allows(self, action: str, path: bytes) -> bool:
        """Whether a rule allows ``action`` on a real, absolute ``path``, and none asks about it."""
        return self._decision(action, path).effect == "allow"

    def _decision(self, action: str, path: bytes) -> Decision:
        names, user = self._on.names, self._on.user
        ruled = [grant.rules for grant in self._grant.lineage if grant.rules.over_paths(action)]
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
        ruled = [grant for grant in self._grant.lineage if grant.rules.over_paths(action)]
        askers = [grant.id for grant in ruled if grant.rules.decide_path(action, path, names, user).effect == "ask"]
        request = {**self._asked, "action": action, "connections": [self._on.id], "names": [self._on.path]}
        self.reasons["approval"] = self._approvals.require(
            self._grant, {**request, "realPath": shown}, self._wait, askers, [self._ground()]
        )
        self._approved = shown


def dry_run_of_paths(
    grant: Grant, connections: Sequence[ConnectionFacts], paths: Sequence[tuple[bytes, str]], *, whole: bool
) -> Decision | None:
    """Return the decision of rules about ``paths`` as written, each with its action; if ``whole``, about all below too.

    None means that the remote host decides: where a relative path begins, or whether a path is a directory.
    """
    decisions = [
        _dry_run(ancestor.rules, action, path, on, whole=whole)
        for ancestor in grant.lineage
        for on in connections
        for path, action in paths
        if ancestor.rules.over_paths(action)
    ]
    decision_so_far = combined([decision for decision in decisions if decision is not None] or [Decision("allow")])
    return None if None in decisions and decision_so_far.effect != "deny" else decision_so_far


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
