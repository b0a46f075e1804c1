"""A link that breaks during a login, or while a shell starts, is not reported as a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest

from connmgr.engine.start import start_supervisor
from connmgr.errors import ElevationFailed, ShellLost, ShellStartFailed, UnsupportedShell
from connmgr.plugin import Channel, Pty
from connmgr_local.transport import LocalTransport
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.places import elevate


class Ends(LocalTransport):
    """A link on which every program ends at once; afterwards it is ``alive`` or not."""

    def __init__(self, alive: bool) -> None:
        super().__init__()
        self._is_alive = alive

    @property
    def alive(self) -> bool:
        return self._is_alive

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return super().open_channel(["/bin/sh", "-c", "exit 1"], pty=pty, timeout=timeout)


@pytest.mark.parametrize(("alive", "error"), [(True, ElevationFailed), (False, ShellLost)])
def test_a_lost_link_is_distinguished_from_a_failed_login(alive: bool, error: type[Exception]) -> None:
    with closing(Ends(alive)) as link, pytest.raises(error):
        elevate(link).open_channel(["true"], timeout=DEADLINE_SECONDS)


def test_a_lost_link_is_distinguished_from_an_unusable_shell() -> None:
    with closing(Ends(alive=True)) as link, pytest.raises((ShellStartFailed, UnsupportedShell)):
        start_supervisor(link, None, DEADLINE_SECONDS)
    with closing(Ends(alive=False)) as link, pytest.raises(ShellLost):
        start_supervisor(link, None, DEADLINE_SECONDS)
