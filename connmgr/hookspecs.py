"""The one hook that a connmgr plugin implements."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from connmgr.plugin import AnyConnectionType

hookspec = pluggy.HookspecMarker("connmgr")


@hookspec
def connmgr_connection_types() -> Sequence[AnyConnectionType]:
    """Return the connection types that this plugin offers."""
    raise NotImplementedError
