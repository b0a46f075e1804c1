"""A descriptor that is readable while a channel has news, for a thread that polls many channels."""

from __future__ import annotations

import os


class Readiness:
    """A flag with a descriptor; its owner calls all methods under a lock, and none after :meth:`close`."""

    def __init__(self) -> None:
        self._readable, self._written = os.pipe()
        self._is_set = False

    def fileno(self) -> int:
        """Return the descriptor, which is readable while the flag is set."""
        return self._readable

    def set(self) -> None:
        """Set the flag."""
        if not self._is_set:
            self._is_set = True
            os.write(self._written, b"\0")

    def clear(self) -> None:
        """Clear the flag."""
        if self._is_set:
            self._is_set = False
            os.read(self._readable, 1)

    def close(self) -> None:
        """Free the descriptors."""
        os.close(self._readable)
        os.close(self._written)
