"""The tokens of the vault: creating, finding, revoking and renewing them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any

from connmgr.errors import InvalidToken, TokenLimit, TokenRevoked, UnknownToken
from connmgr.rights.grant import REVOKED, Grant, check_wanted, end_of
from connmgr.rights.kept_tokens import KeptToken, dispensable, kept_tokens
from connmgr.rights.tokens_in_use import Ended, Live, TokensInUse, grant_of
from connmgr.vault.documents import Document, Documents
from connmgr.vault.schema import now

PREFIX = "cmgr_"
"""The beginning of every token, by which people and scanners of code recognise one."""

MAX_TOKENS = 1000
MAX_BELOW = 100
"""Most tokens created with one token that are stored."""


class Grants:
    """All tokens, and those that are ``in_use``. Safe to use from several threads.

    ``key`` has 32 bytes and keys the digests that the vault stores. ``ended`` is called, from any thread, when tokens
    in use were revoked or have expired.
    """

    def __init__(self, stored: Documents, key: bytes, ended: Ended) -> None:
        self._stored, self._key, self._ended = stored, key, ended
        self.in_use = TokensInUse(stored, ended)

    def create(self, wanted: Mapping[str, Any], creator: Grant | None) -> tuple[str, Document, Grant]:
        """Create a token by ``wanted``, the members of ``/token/create``.

        :returns: its text, which is not stored, the stored document, and the grant.
        :raises InvalidRequest: a member is malformed; the message names its place.
        :raises ScopeDenied: it would exceed the rights of its ``creator``.
        :raises TokenLimit: there are too many.
        """
        check_wanted(wanted, creator)
        secret = PREFIX + secrets.token_urlsafe(32)
        body = {name: value for name, value in wanted.items() if name != "expires"}
        body["parent"] = creator.id if creator else None
        end = end_of(wanted["expires"], creator)
        body["lasts"] = (end - now()).total_seconds()
        document = Document(key=self._digest(secret), body=body, expires=end)
        grant = Grant.load(document, creator, is_new=True)
        self._make_room(creator)
        if not self._stored.add(document, most=MAX_TOKENS):
            raise TokenLimit(f"There are {MAX_TOKENS} tokens that are valid: revoke some first.")
        return secret, document, grant

    def find(self, secret: str) -> Live:
        """Return the token with the text ``secret``, valid or not.

        :raises InvalidToken: there is none.
        """
        document = self._stored.by_key(self._digest(secret))
        if document is None:
            raise InvalidToken("Unknown token: check its text, or ask for a new one.")
        return self.in_use.keep(document)

    def document(self, grant: Grant) -> Document:
        """Return the stored document of a token.

        :raises InvalidToken: it was removed meanwhile.
        """
        found = self._stored.get(grant.id)
        if found is None:
            raise InvalidToken("Unknown token: it was removed meanwhile.")
        return found

    def all(self, creator: Grant | None) -> list[KeptToken]:
        """Return all tokens for the owner, or those created with ``creator``."""
        found = kept_tokens(self._stored.all())
        return found if creator is None else [one for one in found if one.comes_from(creator.id)]

    def get(self, id: str, creator: Grant | None) -> Grant:
        """Return a token, valid or not, that ``creator`` has created or is; raise :class:`UnknownToken`."""
        return creator if creator is not None and creator.id == id else self._require(id, creator)

    def revoke(self, id: str, creator: Grant | None) -> None:
        """Make a token and all its descendants invalid from now on; end what they run here.

        :raises UnknownToken: there is none, or ``creator`` has not created it.
        """
        self._require(id, creator)
        self._stored.change(id, lambda one: replace(one, body={**one.body, "revoked": now().isoformat()}))
        self.in_use.end_those_of(id)
        # Jobs outlive the daemon that started them.
        below = [one.document.id for one in self.all(None) if one.comes_from(id)]
        self._ended(dict.fromkeys([id, *below], TokenRevoked(REVOKED)), True)

    def renew(self, id: str, expires: datetime | None, creator: Grant | None) -> tuple[Document, Grant]:
        """Change the expiry of a token; None means its original lifetime, from now.

        :raises UnknownToken: there is none, or ``creator`` has not created it.
        :raises TokenRevoked: it was revoked.
        :raises InvalidRequest, ScopeDenied: as :meth:`create`.
        """
        if self._require(id, creator).revoked:
            raise TokenRevoked("A token that was revoked stays so: create another one.")

        def renewed(one: Document) -> Document:
            wanted = now() + timedelta(seconds=one.body["lasts"]) if expires is None else expires
            return replace(one, expires=end_of(wanted, creator))

        changed = self._stored.change(id, renewed)
        if changed is None:
            raise UnknownToken(id)
        return changed, grant_of(self._stored, changed)

    def _digest(self, secret: str) -> str:
        return blake2b(secret.encode(errors="surrogatepass"), key=self._key, digest_size=32).hexdigest()

    def _require(self, id: str, creator: Grant | None) -> Grant:
        document = self._stored.get(id)
        grant = None if document is None else grant_of(self._stored, document)
        if grant is None or not _is_below(grant, creator):
            raise UnknownToken(id)
        return grant

    def _make_room(self, creator: Grant | None) -> None:
        """Remove tokens that ended long ago, or if there are too many, all ended ones, with their descendants.

        :raises TokenLimit: ``creator`` has created too many.
        """
        kept = self.all(None)
        if creator is not None and sum(one.comes_from(creator.id) for one in kept) >= MAX_BELOW:
            raise TokenLimit(f"The token has made {MAX_BELOW} others, and may make no more.")
        self._stored.remove(dispensable(kept, now(), is_full=len(kept) >= MAX_TOKENS))


def _is_below(grant: Grant, creator: Grant | None) -> bool:
    return creator is None or any(one.id == creator.id for one in grant.lineage[1:])
