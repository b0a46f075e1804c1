"""The tokens as the vault keeps them: which comes from which, and which have ended. No rule is read for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from connmgr.errors import ConnmgrError
from connmgr.rights.grant import why_invalid
from connmgr.vault.documents import Document

KEPT = timedelta(days=30)
"""Time for which a token is still listed after its end."""


@dataclass(frozen=True)
class KeptToken:
    """A token, and its ``line``: it, the one that it was created with, and so on."""

    document: Document
    line: tuple[Document, ...]

    def invalid(self, at: datetime) -> ConnmgrError | None:
        """Return why it is not valid at a time, or None."""
        return why_invalid(((one.body.get("revoked") is not None, _end(one)) for one in self.line), at)

    def comes_from(self, id: str) -> bool:
        """Whether it was made with the token ``id``, or with one that was."""
        return any(one.id == id for one in self.line[1:])

    @property
    def end(self) -> datetime:
        """When the first of its line expires."""
        return min(map(_end, self.line))


def kept_tokens(documents: Iterable[Document]) -> list[KeptToken]:
    """Return the tokens of ``documents``, but those that come from one that is gone."""
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
    """Return the ids of tokens that ended so long ago that nobody asks for them, or at all where there is no room."""
    return [one.document.id for one in tokens if one.invalid(at) and (is_full or one.end < at - KEPT)]


def _end(document: Document) -> datetime:
    return document.expires or document.created
