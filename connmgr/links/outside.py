"""The place for jobs of a container without a shell: on its host, beside the program that enters the container."""

from __future__ import annotations

import os
from collections.abc import Sequence

from connmgr.engine.rpc import Helpers
from connmgr.links.wrapped import WrappedTransport


class Outside:
    """The host of a container without a shell. Its link closes it."""

    def __init__(self, inside: WrappedTransport) -> None:
        self.transport = inside.outer
        # Separate from the link's own helpers, which are inside the container.
        self.helpers = Helpers()
        self._inside = inside

    def words(self, argv: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the argv by which the host runs ``argv`` in the container."""
        return tuple(map(os.fsencode, self._inside.words(list(map(os.fsdecode, argv)))))

    def close(self) -> None:
        """Close the helpers on the host."""
        self.helpers.close()
