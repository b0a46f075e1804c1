"""What is tested here is the process: each daemon is started as a user starts it."""

from __future__ import annotations

import pytest

from tests.daemon import PROGRAM


@pytest.fixture
def daemon_program() -> tuple[str, ...]:
    return PROGRAM
