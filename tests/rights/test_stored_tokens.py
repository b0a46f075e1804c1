"""Tokens as the vault stores them: their lineage, their end, and which may be deleted."""

from __future__ import annotations

from datetime import timedelta

from connmgr.rights.tokens import KEEP_INVALID, dispensable, stored_tokens
from connmgr.vault.documents import Document
from connmgr.vault.schema import now

HOUR = timedelta(hours=1)


def token(name: str, parent: str | None = None, ends: timedelta = HOUR, *, revoked: bool = False) -> Document:
    body = {"parent": parent, **({"revoked": "then"} if revoked else {})}
    return Document(id=name, key=name, body=body, expires=now() + ends)


def test_the_lineage_of_a_token() -> None:
    stored = stored_tokens([token("c", "b"), token("a"), token("b", "a"), token("x", "gone")])
    found = {one.document.id: one for one in stored}
    assert set(found) == {"a", "b", "c"}, "a token whose parent was removed is not listed"
    assert [name for name, one in found.items() if one.comes_from("a")] == ["c", "b"]
    assert not found["a"].comes_from("a")


def test_a_token_ends_with_the_first_of_its_lineage() -> None:
    expired, revoked = token("expired", ends=-HOUR), token("revoked", revoked=True)
    found = stored_tokens([expired, revoked, token("below", "expired"), token("under", "revoked"), token("valid")])
    codes = {one.document.id: why.code if (why := one.invalid(now())) else None for one in found}
    assert codes == {
        "expired": "token_expired",
        "revoked": "token_revoked",
        "below": "token_expired",
        "under": "token_revoked",
        "valid": None,
    }


def test_tokens_ended_long_ago_may_be_deleted_and_in_a_full_vault_all_ended_ones() -> None:
    found = stored_tokens(
        [
            token("old", ends=-KEEP_INVALID - HOUR),
            token("below old", "old"),
            token("late", ends=-HOUR),
            token("revoked", revoked=True),
            token("valid"),
        ]
    )
    assert dispensable(found, now(), is_full=False) == ["old", "below old"]
    assert dispensable(found, now(), is_full=True) == ["old", "below old", "late", "revoked"]
