"""Where secrets come from that the vault does not keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from connmgr.fields import Schema
from connmgr.plugin.deadline import Deadline


class SecretSource(ABC):
    """Fetches secrets from elsewhere at the moment when a link needs them: ``{"from": {"source": NAME, …}}`` in data.

    The daemon calls :meth:`fetch` in the thread that opens the link, from several threads at once for different
    secrets. It keeps nothing of the result but in that link's login.
    """

    name: ClassVar[str]
    """What ``source`` says: letters, digits, hyphens."""

    description: ClassVar[str]
    """A sentence."""

    schema: ClassVar[type[Schema]]
    """The members beside ``source``. Secrets of its own, such as a token for a server, are sealed like others."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Members that the schema accepts."""

    @abstractmethod
    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        """Return the secret that loaded ``data`` name, before ``deadline``; its own secrets are in plain text.

        :raises connmgr.errors.SecretUnavailable: it could not be fetched. The message says why, for a person, and has
            nothing that could be a secret; ``for_tokens`` has nothing of the daemon's machine either.
        """
