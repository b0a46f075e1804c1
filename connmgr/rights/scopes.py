"""Scopes: the kinds of action that a token may have, and those that each action needs. This is the whole policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from connmgr.contract.token import SCOPES as SCOPES

_Needed = tuple[frozenset[str], ...]
"""A token needs one scope of each of these sets."""

ARGV = frozenset({"shell.argv", "shell.any"})
TEXT = frozenset({"shell.any"})
"""The scopes for running a command besides its action, by the form of the command."""

TERMINAL = frozenset({"terminal"})
"""The scope for running a command on a terminal, besides those of its action and form."""

_USES_A_SHELL = (ARGV | {"fs.read", "fs.write", "job", "terminal"},)


_OWNER_ALONE: _Needed = (frozenset(),)
"""No token has a scope of none."""


def _one(scope: str) -> _Needed:
    return (frozenset({scope}),)


_NEEDED: Mapping[str, _Needed] = {
    "approval.decide": _one("approval.decide"),
    "approval.query": _one("approval.decide"),
    "audit.forget": _one("vault.admin"),
    "audit.query": _one("audit.read"),
    "audit.record": _one("audit.read"),
    "audit.verify": _one("audit.read"),
    # It tells names, limits and public keys.
    "ca.query": _one("connection.read"),
    "ca.trust": _one("connection.read"),
    # A signer may run a command of the daemon's machine, and lets in wherever its authority is trusted.
    "ca.host": _OWNER_ALONE,
    "ca.init": _OWNER_ALONE,
    "ca.limit": _OWNER_ALONE,
    "ca.remove": _OWNER_ALONE,
    "ca.revoke": _one("vault.admin"),
    "ca.rotate": _OWNER_ALONE,
    "category.add": _one("category.write"),
    "category.info": _one("connection.read"),
    "category.query": _one("connection.read"),
    "category.remove": _one("category.write"),
    "command.query": (),
    "command.remove": _one("vault.admin"),
    "command.save": _one("vault.admin"),
    "connection.add": _one("connection.write"),
    "connection.apply": _one("connection.write"),
    "connection.browse": _one("connection.read"),
    "connection.elevate": _one("elevate"),
    "connection.environment": _USES_A_SHELL,
    "connection.info": _one("connection.read"),
    "connection.label": _one("connection.write"),
    "connection.login": _USES_A_SHELL,
    "connection.query": _one("connection.read"),
    "connection.refresh": _one("connection.write"),
    "connection.remove": _one("connection.write"),
    "connection.terminal": _one("connection.read"),
    "connection.toggle": (frozenset({"tunnel"}) | TEXT,),
    "connection.types": (),
    "connection.update": _one("connection.write"),
    "daemon.status": _one("metrics.read"),
    "daemon.stop": _one("vault.admin"),
    "daemon.version": (),
    "docs.read": (),
    "fact.gather": _one("connection.write"),
    "fact.query": _one("connection.read"),
    "fs.attributes": _one("fs.write"),
    # Each kind of events needs the scopes of its query.
    "event.stream": (),
    "event.ticket": (),
    "fs.blob": _one("fs.write"),
    "fs.list": _one("fs.read"),
    "fs.mkdir": _one("fs.write"),
    "fs.move": _one("fs.write"),
    "fs.read": _one("fs.read"),
    "fs.remove": _one("fs.write"),
    "fs.script": _one("fs.write"),
    "fs.stat": _one("fs.read"),
    "fs.write": _one("fs.write"),
    "handshake": (),
    "hostkey.forget": _one("connection.write"),
    "hostkey.trust": _one("connection.write"),
    # A source is a program or a file of the daemon's machine.
    "inventory.add": _OWNER_ALONE,
    "inventory.query": _OWNER_ALONE,
    "inventory.remove": _OWNER_ALONE,
    "inventory.renew": _OWNER_ALONE,
    "job.info": _one("job"),
    "job.input": _one("job"),
    "job.kill": _one("job"),
    # It lists and removes jobs whose owners are unknown.
    "job.orphans": (frozenset({"job"}), TEXT),
    "job.output": _one("job"),
    "job.query": _one("job"),
    "job.remove": _one("job"),
    "job.start": _one("job"),
    "job.wait": _one("job"),
    "metrics.read": _one("metrics.read"),
    "multiplex.cancel": _one("tunnel"),
    "multiplex.close": (ARGV | {"tunnel"},),
    "multiplex.config": (ARGV | {"tunnel"},),
    "multiplex.forget": _OWNER_ALONE,
    "multiplex.forward": _one("tunnel"),
    # Its sockets have the owner's rights.
    "multiplex.keep": _OWNER_ALONE,
    "multiplex.open": (ARGV | {"tunnel"},),
    "multiplex.query": (ARGV | {"tunnel"},),
    "multiplex.renew": (TEXT,),
    "page.read": (),
    "recording.query": _one("terminal"),
    "recording.read": _one("terminal"),
    "recording.search": _one("terminal"),
    "run.info": (ARGV,),
    "run.output": (ARGV,),
    "run.pause": (ARGV,),
    "run.query": (ARGV,),
    "run.remove": (ARGV,),
    "run.resume": (ARGV,),
    # The view has the command of the run that it names authorised anew.
    "run.retry": (ARGV,),
    "run.start": (),
    "run.stop": (ARGV,),
    "run.targets": (ARGV,),
    "run.wait": (ARGV,),
    "schedule.add": (ARGV,),
    "schedule.next": (ARGV,),
    "schedule.pause": (ARGV,),
    "schedule.query": (ARGV,),
    "schedule.remove": (ARGV,),
    "schedule.resume": (ARGV,),
    "schedule.trigger": (ARGV,),
    "schedule.update": (ARGV,),
    "secret.decrypt": _one("secret.decrypt"),
    "secret.encrypt": _one("connection.write"),
    "secret.sudo": _one("connection.write"),
    "shell.broadcast": (),
    "shell.exec": (),
    "shell.list": _USES_A_SHELL,
    "shell.pipe": (),
    "shell.start": _USES_A_SHELL,
    "shell.stop": _USES_A_SHELL,
    "terminal.attach": _one("terminal"),
    "terminal.close": _one("terminal"),
    "terminal.input": _one("terminal"),
    "terminal.open": _one("terminal"),
    "terminal.output": _one("terminal"),
    "terminal.query": _one("terminal"),
    "terminal.resize": _one("terminal"),
    "terminal.screen": _one("terminal"),
    "terminal.ticket": _one("terminal"),
    "token.check": (),
    "token.create": _one("token.create"),
    "token.info": (),
    "token.lend": _one("token.create"),
    "token.query": _one("token.create"),
    "token.renew": _one("token.create"),
    "token.revoke": _one("token.create"),
    "tunnel.query": (frozenset({"connection.read", "tunnel"}),),
    "undo.query": _one("fs.write"),
    # The copies have what rules over paths may keep from a token.
    "undo.read": _OWNER_ALONE,
    "undo.restore": _one("fs.write"),
    "vault.lock": (),
    # They open a user's secrets, or take a way back from one.
    "vault.recovery.create": _OWNER_ALONE,
    "vault.recovery.query": _OWNER_ALONE,
    "vault.recovery.revoke": _OWNER_ALONE,
    "vault.recovery.rotate": _OWNER_ALONE,
    "vault.recovery.use": _OWNER_ALONE,
    "vault.status": (),
    "vault.unlock": (),
    "vault.user.add": _one("vault.admin"),
    "vault.user.passphrase": (),
    "vault.user.remove": _one("vault.admin"),
    "web.login": (),
    "web.logout": (),
    "web.confirm": (),
    "web.ticket": (),
}

ACTIONS = frozenset(_NEEDED)

LOOKING = frozenset(
    [
        "approval.query",
        "audit.query",
        "audit.record",
        "audit.verify",
        "ca.query",
        "ca.trust",
        "category.info",
        "category.query",
        "command.query",
        "connection.browse",
        "connection.elevate",
        "connection.environment",
        "connection.info",
        "connection.login",
        "connection.query",
        "connection.terminal",
        "connection.types",
        "daemon.status",
        "daemon.version",
        "docs.read",
        "event.stream",
        "event.ticket",
        "fact.query",
        "fs.list",
        "fs.read",
        "fs.search",
        "fs.stat",
        "handshake",
        "job.info",
        "job.input",
        "job.kill",
        "job.output",
        "job.query",
        "job.remove",
        "job.start",
        "job.wait",
        "metrics.read",
        "page.read",
        "recording.query",
        "recording.read",
        "recording.search",
        "run.info",
        "run.output",
        "run.query",
        "run.start",
        "run.stop",
        "run.targets",
        "run.wait",
        "schedule.next",
        "schedule.query",
        "shell.broadcast",
        "shell.exec",
        "shell.list",
        "shell.pipe",
        "shell.start",
        "shell.stop",
        "terminal.query",
        "token.check",
        "token.create",
        "token.info",
        "token.query",
        "token.renew",
        "token.revoke",
        "tunnel.query",
        "vault.lock",
        "vault.status",
        "vault.unlock",
        "web.confirm",
        "web.login",
        "web.logout",
        "web.ticket",
    ]
)
"""What a token may do that may only look, with the scopes for it. What its commands run is in a sandbox."""


def missing(action: str, scopes: Collection[str]) -> frozenset[str] | None:
    """Return scopes, one of which ``action`` needs besides ``scopes``; None if it needs none; empty for the owner's."""
    return next((needed for needed in _NEEDED.get(action, _OWNER_ALONE) if needed.isdisjoint(scopes)), None)


def allowed(scopes: Collection[str], *, read_only: bool = False) -> tuple[frozenset[str], str | None]:
    """Return the actions that ``scopes`` allow, and the form of commands: ``text``, ``argv`` or None."""
    runs = "text" if not TEXT.isdisjoint(scopes) else "argv" if not ARGV.isdisjoint(scopes) else None
    actions_of_kind = ACTIONS & LOOKING if read_only else ACTIONS
    actions = frozenset(action for action in actions_of_kind if missing(action, scopes) is None)
    return actions, runs
