"""A shell environment without elevation, which needs no other user."""

from __future__ import annotations

import pytest

from connmgr_local.transport import LocalTransport
from tests.engine.shells import assert_usable
from tests.plugins.places import elevate, session_on

SHELLS = {"bash": 1, "dash": 2, "zsh": 4, "fish": 6, "tcsh": 7}


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=pytest.mark.needs(shell)) for shell in SHELLS])
def test_not_elevated_it_is_a_shell_of_its_own(shell: str) -> None:
    local = LocalTransport()
    try:
        transport = elevate(local, elevated=False, password="unused")
        with session_on(transport, shell) as session:
            assert session.info.shell_dialect == SHELLS[shell]
            assert_usable(session)
    finally:
        local.close()
