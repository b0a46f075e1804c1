"""The shell, directory and variables of a session, for programs that run beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connmgr.engine.dialects import Dialect
from connmgr.engine.frame import Interpreter


@dataclass(frozen=True)
class Surroundings:
    """A session's shell and state after its last command; see :class:`connmgr.engine.state.State`.

    ``argv`` starts a shell like the supervisor, which uses ``dialect``; ``interpreter`` is the session's shell if that
    cannot supervise. ``variables`` are the statements that set each variable.
    """

    argv: tuple[str, ...]
    dialect: Dialect
    interpreter: Interpreter | None
    directory: bytes
    variables: Mapping[bytes, bytes]
    start: tuple[bytes, Mapping[bytes, bytes]]
    """The directory and the variables with which the shell started."""
