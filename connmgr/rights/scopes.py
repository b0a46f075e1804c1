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


_LOOKING: Mapping[str, _Needed] = {
    "approval.query": _one("approval.decide"),
    "audit.query": _one("audit.read"),
    "audit.record": _one("audit.read"),
    "audit.verify": _one("audit.read"),
    # It tells names, limits and public keys.
    "ca.query": _one("connection.read"),
    "ca.trust": _one("connection.read"),
    "category.info": _one("connection.read"),
    "category.query": _one("connection.read"),
    "command.query": (),
    "connection.browse": _one("connection.read"),
    "connection.elevate": _one("elevate"),
    "connection.environment": _USES_A_SHELL,
    "connection.info": _one("connection.read"),
    "connection.login": _USES_A_SHELL,
    "connection.query": _one("connection.read"),
    "connection.terminal": _one("connection.read"),
    "connection.types": (),
    "daemon.status": _one("metrics.read"),
    "daemon.version": (),
    "docs.read": (),
    "fact.query": _one("connection.read"),
    # Each kind of events needs the scopes of its query.
    "event.stream": (),
    "event.ticket": (),
    "fs.list": _one("fs.read"),
    "fs.read": _one("fs.read"),
    "fs.stat": _one("fs.read"),
    "handshake": (),
    "job.info": _one("job"),
    "job.input": _one("job"),
    "job.kill": _one("job"),
    "job.output": _one("job"),
    "job.query": _one("job"),
    "job.remove": _one("job"),
    "job.start": _one("job"),
    "job.wait": _one("job"),
    "metrics.read": _one("metrics.read"),
    "page.read": (),
    "recording.query": _one("terminal"),
    "recording.read": _one("terminal"),
    "recording.search": _one("terminal"),
    "run.info": (ARGV,),
    "run.output": (ARGV,),
    "run.query": (ARGV,),
    "run.start": (),
    "run.stop": (ARGV,),
    "run.targets": (ARGV,),
    "run.wait": (ARGV,),
    "schedule.next": (ARGV,),
    "schedule.query": (ARGV,),
    "shell.broadcast": (),
    "shell.exec": (),
    "shell.list": _USES_A_SHELL,
    "shell.pipe": (),
    "shell.start": _USES_A_SHELL,
    "shell.stop": _USES_A_SHELL,
    "terminal.query": _one("terminal"),
    "token.check": (),
    "token.create": _one("token.create"),
    "token.info": (),
    "token.query": _one("token.create"),
    "token.renew": _one("token.create"),
    "token.revoke": _one("token.create"),
    "tunnel.query": (frozenset({"connection.read", "tunnel"}),),
    "vault.lock": (),
    "vault.status": (),
    "vault.unlock": (),
    "web.login": (),
    "web.logout": (),
    "web.confirm": (),
    "web.ticket": (),
}
"""What a token may do that may only look, with the scopes for it. What its commands run is in a sandbox."""

_CHANGING: Mapping[str, _Needed] = {
    "approval.decide": _one("approval.decide"),
    "audit.forget": _one("vault.admin"),
    # A signer may run a command of the daemon's machine, and lets in wherever its authority is trusted.
    "ca.host": _OWNER_ALONE,
    "ca.init": _OWNER_ALONE,
    "ca.limit": _OWNER_ALONE,
    "ca.remove": _OWNER_ALONE,
    "ca.revoke": _one("vault.admin"),
    "ca.rotate": _OWNER_ALONE,
    "category.add": _one("category.write"),
    "category.remove": _one("category.write"),
    "command.remove": _one("vault.admin"),
    "command.save": _one("vault.admin"),
    "connection.add": _one("connection.write"),
    "connection.apply": _one("connection.write"),
    "connection.label": _one("connection.write"),
    "connection.refresh": _one("connection.write"),
    "connection.remove": _one("connection.write"),
    "connection.toggle": (frozenset({"tunnel"}) | TEXT,),
    "connection.update": _one("connection.write"),
    "daemon.stop": _one("vault.admin"),
    "fact.gather": _one("connection.write"),
    "fs.attributes": _one("fs.write"),
    "fs.blob": _one("fs.write"),
    "fs.mkdir": _one("fs.write"),
    "fs.move": _one("fs.write"),
    "fs.remove": _one("fs.write"),
    "fs.script": _one("fs.write"),
    "fs.write": _one("fs.write"),
    "hostkey.forget": _one("connection.write"),
    "hostkey.trust": _one("connection.write"),
    # A source is a program or a file of the daemon's machine.
    "inventory.add": _OWNER_ALONE,
    "inventory.query": _OWNER_ALONE,
    "inventory.remove": _OWNER_ALONE,
    "inventory.renew": _OWNER_ALONE,
    # It lists and removes jobs whose owners are unknown.
    "job.orphans": (frozenset({"job"}), TEXT),
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
    "run.pause": (ARGV,),
    "run.remove": (ARGV,),
    "run.resume": (ARGV,),
    # The view has the command of the run that it names authorised anew.
    "run.retry": (ARGV,),
    "schedule.add": (ARGV,),
    "schedule.pause": (ARGV,),
    "schedule.remove": (ARGV,),
    "schedule.resume": (ARGV,),
    "schedule.trigger": (ARGV,),
    "schedule.update": (ARGV,),
    "secret.decrypt": _one("secret.decrypt"),
    "secret.encrypt": _one("connection.write"),
    "secret.sudo": _one("connection.write"),
    "terminal.attach": _one("terminal"),
    "terminal.close": _one("terminal"),
    "terminal.input": _one("terminal"),
    "terminal.open": _one("terminal"),
    "terminal.output": _one("terminal"),
    "terminal.resize": _one("terminal"),
    "terminal.screen": _one("terminal"),
    "terminal.ticket": _one("terminal"),
    "token.lend": _one("token.create"),
    "undo.query": _one("fs.write"),
    # The copies have what rules over paths may keep from a token.
    "undo.read": _OWNER_ALONE,
    "undo.restore": _one("fs.write"),
    # They open a user's secrets, or take a way back from one.
    "vault.recovery.create": _OWNER_ALONE,
    "vault.recovery.query": _OWNER_ALONE,
    "vault.recovery.revoke": _OWNER_ALONE,
    "vault.recovery.rotate": _OWNER_ALONE,
    "vault.recovery.use": _OWNER_ALONE,
    "vault.user.add": _one("vault.admin"),
    "vault.user.passphrase": (),
    "vault.user.remove": _one("vault.admin"),
}
_NEEDED: Mapping[str, _Needed] = {**_LOOKING, **_CHANGING}

ACTIONS, LOOKING = frozenset(_NEEDED), frozenset(_LOOKING)


def missing(action: str, scopes: Collection[str]) -> frozenset[str] | None:
    """Return scopes, one of which ``action`` needs besides ``scopes``; None if it needs none; empty for the owner's."""
    return next((needed for needed in _NEEDED.get(action, _OWNER_ALONE) if needed.isdisjoint(scopes)), None)


def allowed(scopes: Collection[str], *, read_only: bool = False) -> tuple[frozenset[str], str | None]:
    """Return the actions that ``scopes`` allow, and the form of commands: ``text``, ``argv`` or None."""
    runs = "text" if not TEXT.isdisjoint(scopes) else "argv" if not ARGV.isdisjoint(scopes) else None
    actions_of_kind = ACTIONS & LOOKING if read_only else ACTIONS
    actions = frozenset(action for action in actions_of_kind if missing(action, scopes) is None)
    return actions, runs
