"""The hooks that a connmgr plugin may implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pluggy

from connmgr.plugin import AnyConnectionType, Caller, FactProgram, SecretSource, SshSigner, Subjects

hookspec = pluggy.HookspecMarker("connmgr")


@hookspec
def connmgr_connection_types() -> Sequence[AnyConnectionType]:
    """Return the connection types that this plugin offers."""
    raise NotImplementedError


@hookspec
def connmgr_ssh_signers() -> Sequence[SshSigner]:
    """Return the kinds of signers of SSH certificates that this plugin offers."""
    raise NotImplementedError


@hookspec
def connmgr_fact_programs() -> Sequence[FactProgram]:
    """Return the programs by which this plugin gathers further facts about machines."""
    raise NotImplementedError


@hookspec
def connmgr_secret_sources() -> Sequence[SecretSource]:
    """Return the sources from which this plugin fetches secrets that the vault does not keep."""
    raise NotImplementedError


@hookspec
def connmgr_authorise(caller: Caller, action: str, subjects: Subjects) -> None:
    """Refuse a request by raising :class:`connmgr.errors.PolicyDenied`."""


@hookspec
def connmgr_audit(entry: Mapping[str, Any]) -> None:
    """Take note of an entry of the audit log, after it was written."""


@hookspec
def connmgr_run_ended(run: Mapping[str, Any]) -> None:
    """Take note of the end of a run: its id, name, state, counts, and the schedule that started it."""


@hookspec
def connmgr_approval_requested(approval: Mapping[str, Any]) -> None:
    """Take note of an approval that a token asks for, as ``/approval/query`` shows it: somebody has to decide."""
