"""Rules over paths, applied on the remote host at the moment of use.

A program there enters the directory of a path, reports the real path, and waits for the decision. It then
works in that directory, and follows no link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from connmgr.errors import FileChanged, TransferFailed

READ = "fs.read"
WRITE = "fs.write"

_QUESTIONS = {
    b"read": ((READ,), False),
    b"read-all": ((READ,), True),
    b"write": ((WRITE,), False),
    b"write-all": ((WRITE,), True),
    b"fill": ((WRITE,), True),
    # Under its new name, a file may become readable.
    b"take": ((READ, WRITE), False),
    b"take-all": ((READ, WRITE), True),
    b"at": ((), False),
}
"""A program's question, the actions concerned, and whether it concerns the whole content of a directory."""


class Gate(Protocol):
    """Decides what a caller may do with files of a remote host.

    An ``action`` is ``fs.read`` or ``fs.write``. A path is absolute and real: without links, ``.`` and ``..``. Both
    methods raise the answer to the client: :class:`connmgr.errors.PolicyDenied` or another error of status 403, whose
    message names only paths of the request.
    """

    def check(self, action: str, path: bytes) -> None:
        """Return if ``action`` is allowed on ``path``: an existing file, or a name to create, change or remove."""

    def covers(self, action: str, directory: bytes) -> None:
        """Return if ``action`` is allowed on ``directory`` and on everything that is or will be below it."""

    def allows(self, action: str, path: bytes) -> bool:
        """Whether :meth:`check` would return; no approval is requested."""


@dataclass
class PathJudge:
    """Passes the questions of one program to ``gate``; ``real`` is the last path that it reported.

    If there is ``only``, any other path is refused.
    """

    gate: Gate
    real: bytes = b""
    only: bytes | None = None

    def __call__(self, question: bytes) -> None:
        """Return if the program may continue.

        :raises connmgr.errors.PolicyDenied: it may not.
        :raises connmgr.errors.FileChanged: it would work elsewhere.
        :raises TransferFailed: the question is malformed.
        """
        kind, _, path = question.partition(b" ")
        if kind not in _QUESTIONS or not path.startswith(b"/"):
            raise TransferFailed("The remote host did not report a real path.")
        self.real = _normal(path)
        if self.only is not None and self.real != _normal(self.only):
            raise FileChanged("Its directory has become a link that leads elsewhere.")
        actions, whole = _QUESTIONS[kind]
        decide = self.gate.covers if whole else self.gate.check
        for action in actions:
            decide(action, self.real)


def _normal(path: bytes) -> bytes:
    """Return ``path`` without redundant parts, up to the first ``..``, which leads back from a missing directory."""
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            break
        if part not in (b"", b"."):
            parts.append(part)
    return b"/" + b"/".join(parts)
