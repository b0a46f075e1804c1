"""Where jobs of a place without a shell are kept: on its host, beside the program that leads into the place."""

from __future__ import annotations

import os
from collections.abc import Sequence

from connmgr.engine.helper import Helpers
from connmgr.links.wrapped import WrappedTransport


class Outside:
    """The host of a place without a shell; the link that has it closes it."""

    def __init__(self, inside: WrappedTransport) -> None:
        self.transport = inside.outer
        # Those of the link are inside: none of both may be taken for the other.
        self.helpers = Helpers()
        self._inside = inside

    def words(self, argv: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the argv that runs ``argv`` in the place when the host runs it."""
        return tuple(map(os.fsencode, self._inside.words(list(map(os.fsdecode, argv)))))

    def close(self) -> None:
        """End what helps there."""
        self.helpers.close()
