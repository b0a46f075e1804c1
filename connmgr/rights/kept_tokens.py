"""The stored tokens: their lineage, and which have ended; rules are not parsed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from connmgr.errors import ConnmgrError
from connmgr.rights.grant import why_invalid
from connmgr.vault.documents import Document

KEEP_INVALID = timedelta(days=30)
"""Time for which a token is listed after its end."""


@dataclass(frozen=True)
class KeptToken:
    """A token and its ``line``: itself, the token with which it was created, and so on."""

    document: Document
    line: tuple[Document, ...]

    def invalid(self, at: datetime) -> ConnmgrError | None:
        """Return the error of a token that is invalid at a time, or None."""
        return why_invalid(((one.body.get("revoked") is not None, _end(one)) for one in self.line), at)

    def comes_from(self, id: str) -> bool:
        """Whether it descends from the token ``id``."""
        return any(one.id == id for one in self.line[1:])

    @property
    def end(self) -> datetime:
        """The earliest expiry in its line."""
        return min(map(_end, self.line))


def kept_tokens(documents: Iterable[Document]) -> list[KeptToken]:
    """Return the tokens of ``documents``, except those whose line is incomplete."""
    known = {one.id: one for one in documents}
    found = []
    for one in known.values():
        line = [one]
        while (above := line[-1].body["parent"]) in known:
            line.append(known[above])
        if above is None:
            found.append(KeptToken(one, tuple(line)))
    return found


def dispensable(tokens: Iterable[KeptToken], at: datetime, *, is_full: bool) -> list[str]:
    """Return the ids of tokens that ended long ago, or if the store ``is_full``, of all ended ones."""
    return [one.document.id for one in tokens if one.invalid(at) and (is_full or one.end < at - KEEP_INVALID)]


def _end(document: Document) -> datetime:
    return document.expires or document.created
