"""The rules of a token: how a command is run, and which paths are accessible.

Rules that deny are checked first, then those that ask, then those that allow. If any rule allows or asks about a kind
of thing (commands; paths that are read; paths that are written), things of this kind without a matching rule are
denied. Otherwise they are allowed: the scope decides.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from connmgr.errors import InvalidRequest
from connmgr.rights import programs
from connmgr.rights.programs import Compound, as_argv
from connmgr.rights.rule import (
    WRITE,
    ArgvRule,
    Effect,
    Element,
    PathRule,
    Rule,
    RunRule,
    SavedRule,
    TextRule,
    can_be_words,
    is_clean,
    read_rule,
)
from connmgr.vault import names
from connmgr.vault.names import SEPARATOR, fold
from connmgr.vault.schema import now

MAX_RULES = 200
MAX_TOKENS = 20_000
"""Most characters and wildcards of all patterns over connections or paths, after their braces are expanded."""

MAX_KNOWN = 1000
"""Most connections whose applying rules are cached."""


TooFree = Callable[[str, Mapping[str, Element]], str | None]
"""Returns why a rule with an effect and limits lets a token choose arguments too freely; None if it does not."""


def not_too_free(_effect: str, _limits: Mapping[str, Element]) -> None:
    """Return None: nothing is too free."""


@dataclass(frozen=True, kw_only=True)
class RequestedCommand:
    """A command that a request wants to run."""

    names: tuple[str, ...]
    """The names by which filters find its connection: its path, and category and path."""

    user: str | None = None
    """The user of the connection; None if unknown."""

    argv: tuple[str, ...] | None = None
    text: str | None = None
    """Either this or ``argv``; neither means an interactive shell."""

    saved: tuple[str, Mapping[str, str]] | None = None
    """The saved command of ``argv`` and its arguments, if it is one."""

    too_free: TooFree = not_too_free
    """Why a rule with this effect and these limits of arguments may not allow the saved command, or None."""

    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    has_stdin: bool = False
    has_pty: bool = False
    tokens: Collection[str] = ()
    """The ids of the token that requests it, and of those above."""

    at: datetime = field(default_factory=now)
    """When it is asked about, by the clock of the vault."""

    connection: str = ""
    digest: str | None = None
    """That of the connection's data and of all that it runs over; None unless a rule depends on it."""


@dataclass(frozen=True)
class Decision:
    """The decision about a request."""

    effect: Effect
    rule: int | None = None
    """The index of the deciding rule; None if no rule matched."""

    name: str | None = None
    """The name of that rule, if it has one."""

    argv: tuple[str, ...] | None = None
    """The argv to run in place of a text; None to run the text."""

    path: str | None = None
    """The PATH in which the program is found; None for the session's."""

    exact: bool = False
    """Whether only this ``argv``, with its program found in this ``path``, may be run."""

    is_bound: bool = False
    """Whether it holds only as long as the connections are what they were (:class:`connmgr.rights.rule.Only`)."""


class Rules:
    """The rules of one token."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._all = tuple(rules)
        self._run = [rule for rule in rules if isinstance(rule, RunRule)]
        self._by_program: dict[str, list[ArgvRule]] = defaultdict(list)
        for rule in self._run:
            if isinstance(rule, ArgvRule):
                self._by_program[_folded(rule.program)].append(rule)
        self._saved = [rule for rule in self._run if isinstance(rule, SavedRule)]
        self._texts = [rule for rule in rules if isinstance(rule, TextRule)]
        self._paths = [rule for rule in rules if isinstance(rule, PathRule)]
        self._commands_closed = _closes(self._run)
        self._applying = _Applying(rules)
        self._patterns = _Patterns((rule, rule.alternatives) for rule in self._paths)
        self._heads = _Patterns((rule, _heads(rule.alternatives)) for rule in self._paths if rule.effect == "allow")

    @property
    def closes_commands(self) -> bool:
        """Whether a command without a matching rule is denied."""
        return self._commands_closed

    @property
    def need_digests(self) -> bool:
        """Whether a rule depends on what its connections are now."""
        return any(isinstance(rule, ArgvRule) and rule.only is not None for rule in self._run)

    @property
    def over_saved_commands(self) -> Sequence[SavedRule]:
        """The rules over saved commands."""
        return self._saved

    @property
    def go_by_connections(self) -> bool:
        """Whether a rule applies only to certain connections or users."""
        return any(rule.connections is not None or rule.users is not None for rule in self._all)

    @property
    def over_commands(self) -> bool:
        """Whether a rule applies to commands; with rules over argvs, a text that is an argv is run as one."""
        return bool(self._run or self._texts)

    def writable_roots(self, names: tuple[str, ...], user: str | None) -> list[bytes]:
        """Return the files, and the directories with all below them, that rules let be written and name literally."""
        applying = self._applying.to(names)
        roots = []
        for rule in self._paths:
            if rule.effect == "deny" or WRITE not in rule.actions or rule.index not in applying:
                continue
            if rule.users is None or user in rule.users:
                roots += [_literal(alternative) for alternative in rule.alternatives]
        return [root.encode() for root in dict.fromkeys(roots) if root]

    def over_paths(self, action: str) -> bool:
        """Whether a rule applies to the paths of ``fs.read`` or ``fs.write``."""
        return any(action in rule.actions for rule in self._paths)

    def decide_command(self, command: RequestedCommand) -> Decision:
        """Return the decision about a command, and how to run it."""
        if command.argv is None and command.text is not None and self._run:
            # Rules over words apply to a text that every shell reads as the same words; it is then run as these words.
            command = replace(command, argv=as_argv(command.text))
        applying = self._applying.to(command.names)
        if not can_be_words([*(command.argv or ()), command.text or "", command.cwd or "", *command.env.values()]):
            # The remote host would get other words than the rules have seen.
            return Decision("deny")
        guard = self._guard(command, applying)
        if guard is not None and guard.effect == "deny":
            return Decision("deny", guard.index, guard.name)
        decision = self._by_words(command, applying)
        if decision.effect == "allow" and guard is not None:
            # A guard that asks does so about a command that another rule allows, and about its exact form.
            return replace(decision, effect="ask", rule=guard.index, name=guard.name)
        return decision

    def asking(self, command: RequestedCommand) -> list[int] | None:
        """Return the indices of the rules over argvs that ask about a command; None if a rule of another kind does."""
        applying = self._applying.to(command.names)
        asking = [
            rule
            for rule in self._concerned(command)
            if rule.effect == "ask" and rule.index in applying and _may_concern(rule, command.user)
        ]
        if self._guard(command, applying) is not None or not all(isinstance(rule, ArgvRule) for rule in asking):
            return None
        return [rule.index for rule in asking]

    def decide_path(self, action: str, path: bytes, names: tuple[str, ...], user: str | None = None) -> Decision:
        """Return the decision about ``action`` (``fs.read`` or ``fs.write``) on a real, absolute path."""
        text = _decoded(path)
        if not is_clean(text):
            return Decision("deny")
        rules = self._among(self._patterns.which(text), action, names, user)
        for effect in ("deny", "ask", "allow"):
            for rule in rules:
                if rule.effect == effect:
                    return Decision(rule.effect, rule.index, rule.name)
        return Decision("deny" if self._is_closed(action) else "allow")

    def covers(self, action: str, directory: bytes, names: tuple[str, ...], user: str | None = None) -> bool:
        """Whether ``action`` is allowed on a real, absolute directory and everything below it."""
        text = _decoded(directory)
        if not is_clean(text):
            return False
        below = text.rstrip("/") + "/"
        # No rule that denies or asks may match anything below, not even a file that does not exist yet; and one rule
        # must allow everything below the directory or one above it. Rules that allow parts are not added up.
        within = [*self._patterns.which(text), *self._patterns.which_go_on(below)]
        if any(rule.effect != "allow" for rule in self._among(within, action, names, user)):
            return False
        if not self._is_closed(action):
            return True
        above = [below[:at] for at, character in enumerate(below) if character == "/"]
        return any(self._among(self._heads.which(ancestor), action, names, user) for ancestor in above)

    def _guard(self, command: RequestedCommand, applying: Collection[int]) -> Rule | None:
        """Return the matching rule over texts, preferably one that denies."""
        if not self._texts:
            return None
        texts = [text for text in (command.text, None if command.argv is None else " ".join(command.argv)) if text]
        guards = [
            rule
            for rule in self._texts
            if rule.index in applying and _may_concern(rule, command.user) and any(map(rule.catches, texts))
        ]
        return min(guards, key=lambda rule: rule.effect != "deny", default=None)

    def _by_words(self, command: RequestedCommand, applying: Collection[int]) -> Decision:
        """Return the decision of the rules over argvs and saved commands."""
        concerned = [rule for rule in self._concerned(command) if rule.index in applying]
        # A rule that denies or asks catches all that it may mean; one that allows permits only what it certainly means.
        for rule in concerned:
            if rule.effect == "deny" and _may_concern(rule, command.user):
                return Decision("deny", rule.index, rule.name)
        answered = {
            number
            for rule in concerned
            if isinstance(rule, ArgvRule) and rule.answers and _permitted(rule, command) is not None
            for number in rule.answers
        }
        for rule in concerned:
            if rule.effect == "ask" and rule.index not in answered and _may_concern(rule, command.user):
                # A command that is only similar to the rule's must not pass other rules without an approval.
                return _permitted(rule, command) or Decision("deny", rule.index, rule.name)
        for rule in concerned:
            if rule.effect == "allow" and (decision := _permitted(rule, command)) is not None:
                return decision
        return Decision("deny") if self._commands_closed else Decision("allow", argv=command.argv)

    def _concerned(self, command: RequestedCommand) -> Iterator[RunRule]:
        """Yield the rules that may mean a command, including all that allow."""
        if command.saved is not None:
            yield from (rule for rule in self._saved if rule.catches(*command.saved))
        if command.argv:
            for rule in self._by_program.get(_folded(command.argv[0]), ()):
                if rule.is_over(command.at) or not (
                    rule.only is None or rule.only.holds(command.tokens, command.connection, command.digest)
                ):
                    continue
                if rule.effect == "allow" or rule.catches(command.argv[1:]):
                    yield rule

    def _among(self, rules: Iterable[Rule], action: str, names: tuple[str, ...], user: str | None) -> list[PathRule]:
        """Return the rules over paths that apply to an action on a connection."""
        applying = self._applying.to(names)
        return [
            rule
            for rule in rules
            if isinstance(rule, PathRule)
            and action in rule.actions
            and rule.index in applying
            and (rule.users is None or user in rule.users or (user is None and rule.effect != "allow"))
        ]

    def _is_closed(self, action: str) -> bool:
        return _closes(rule for rule in self._paths if action in rule.actions)


def combined(decisions: Sequence[Decision]) -> Decision:
    """Return the common decision of ``decisions`` for several connections, by a token and its ancestors.

    The strictest counts. If two would run different programs, the request is denied, because it can run only one.
    Without any decision it is denied too.
    """
    if not decisions:
        return Decision("deny")
    strictest = max(decisions, key=lambda decision: ("allow", "ask", "deny").index(decision.effect))
    strictest = replace(strictest, is_bound=any(decision.is_bound for decision in decisions))
    exact = {(decision.argv, decision.path) for decision in decisions if decision.exact}
    if strictest.effect == "deny" or not exact:
        return strictest
    if len(exact) > 1:
        return Decision("deny")
    [(argv, path)] = exact
    return replace(strictest, argv=argv, path=path, exact=True)


def of_parts(compound: Compound, decisions: Sequence[Decision]) -> Decision:
    """Return the decision about a compound command: the strictest of the decisions about its parts.

    It is then run by ``sh``, which starts exactly the programs that were decided about.
    """
    strictest = max(decisions, key=lambda decision: ("allow", "ask", "deny").index(decision.effect))
    if strictest.effect == "deny":
        return strictest
    words = []
    for part, decision in zip(compound.parts, decisions, strict=True):
        path = [] if decision.path is None else [f"PATH={decision.path}"]
        # By env, because a shell may have a function or a builtin of the same name.
        words.append(shlex.join(["/usr/bin/env", *path, *(decision.argv or part)]))
    text = "".join(f"{word} {operator} " for word, operator in zip(words, (*compound.operators, ""), strict=True))
    is_bound = any(decision.is_bound for decision in decisions)
    return replace(strictest, argv=("/bin/sh", "-c", text.strip()), path=None, exact=True, is_bound=is_bound)


def rule_of(decision: Decision) -> int | str | None:
    """Return the name of the deciding rule, or its index among the token's rules."""
    return decision.rule if decision.name is None else decision.name


def load_rules(raw: object, *, are_stored: bool = False) -> Rules:
    """Return the rules of a token from JSON; ``are_stored`` is as in :func:`read_rule`.

    :raises InvalidRequest: one is malformed, or grants more than it seems to; the message begins with its place.
    """
    if not isinstance(raw, list):
        raise InvalidRequest("rules: Not a list.")
    if len(raw) > MAX_RULES:
        raise InvalidRequest(f"rules: More than {MAX_RULES}.")
    rules = [read_rule(each, index, is_stored=are_stored) for index, each in enumerate(raw)]
    asking = {rule.index for rule in rules if rule.effect == "ask"}
    for rule in rules:
        if isinstance(rule, ArgvRule) and not rule.answers <= asking:
            raise InvalidRequest(f"rules[{rule.index}].answers: Not the numbers of rules that ask.")
    paths = sum(len(alternative) for rule in rules if isinstance(rule, PathRule) for alternative in rule.alternatives)
    if max(paths, sum(len(connection) for rule in rules for connection in rule.connections or ())) > MAX_TOKENS:
        raise InvalidRequest(f"rules: Their patterns are too long together: more than {MAX_TOKENS} characters.")
    return Rules(rules)


def _permitted(rule: RunRule, command: RequestedCommand) -> Decision | None:
    """Return the decision of a rule that allows or asks, or None if it does not mean the whole command."""
    argv = command.argv
    if not argv or (rule.users is not None and command.user not in rule.users):
        return None
    path: str | None = None
    if isinstance(rule, ArgvRule):
        run_as = rule.run_as(argv[0])
        if run_as is None or not rule.permits(argv[1:]):
            return None
        argv, path = (run_as[0], *argv[1:]), run_as[1]
    elif isinstance(rule, SavedRule):
        if command.saved is None or not rule.permits(*command.saved):
            return None
        if not rule.may_run_others and command.too_free(rule.effect, rule.arguments) is not None:
            return None
        path = None if "/" in argv[0] else programs.FIXED_PATH
    surroundings = {"has_stdin": command.has_stdin, "has_pty": command.has_pty}
    if not rule.permits_surroundings(command.env, command.cwd, program=argv[0], **surroundings):
        return None
    is_bound = isinstance(rule, ArgvRule) and rule.only is not None
    return Decision(rule.effect, rule.index, rule.name, argv, path, exact=True, is_bound=is_bound)


def _may_concern(rule: Rule, user: str | None) -> bool:
    return rule.users is None or user is None or user in rule.users


def _closes(rules: Iterable[Rule]) -> bool:
    return any(rule.effect != "deny" for rule in rules)


def _folded(program: str) -> str:
    """Return the name of a program as case-insensitive file systems compare it: on macOS, ``RM`` runs ``rm``."""
    name = programs.last_segment(program.rstrip("/"))
    return name.lower() if name.isascii() else unicodedata.normalize("NFKC", name).casefold()


def _decoded(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _literal(alternative: names.Alternative) -> str:
    """Return the path that an alternative names, with all below it if it ends so; empty for any other pattern."""
    head = alternative[:-2] if alternative[-2:] == (SEPARATOR, names.ACROSS) else alternative
    literal = [token for token in head if isinstance(token, str)]
    return "".join(literal) if len(literal) == len(head) else ""


def _heads(alternatives: Iterable[names.Alternative]) -> list[names.Alternative]:
    """Return alternatives for the directories below which everything matches one of ``alternatives``."""
    ends = (SEPARATOR, names.ACROSS)
    return [alternative[:-2] for alternative in alternatives if alternative[-2:] == ends]


class _Patterns:
    """Finds the rules with a matching pattern, in one pass over a path for all rules."""

    def __init__(self, rules: Iterable[tuple[Rule, Iterable[names.Alternative]]]) -> None:
        self._rules: list[Rule] = []
        alternatives: list[names.Alternative] = []
        for rule, some in rules:
            for alternative in some:
                self._rules.append(rule)
                alternatives.append(alternative)
        self._matcher = names.Matcher(alternatives)

    def which(self, path: str) -> list[Rule]:
        """Return the rules that match ``path``, in their order."""
        return [self._rules[place] for place in self._matcher.which(path)]

    def which_go_on(self, beginning: str) -> list[Rule]:
        """Return the rules that may match a path that begins with ``beginning``."""
        return [self._rules[place] for place in self._matcher.which_go_on(beginning)]


class _Applying:
    """Finds the rules that apply to a connection, and caches the result."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._everywhere = frozenset(rule.index for rule in rules if rule.connections is None)
        self._patterns = _Patterns((rule, rule.connections) for rule in rules if rule.connections is not None)
        self._known: dict[tuple[str, ...], frozenset[int]] = {}

    def to(self, names: tuple[str, ...]) -> frozenset[int]:
        """Return the indices of the rules that apply to the connection of these names."""
        indices = self._known.get(names)
        if indices is None:
            by_name = (rule.index for name in names for rule in self._patterns.which(fold(name)))
            indices = self._everywhere.union(by_name)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[names] = indices
        return indices
