"""A token that is revoked while others read it is not valid for any of them afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from connmgr.contract.token import TokenCreateRequest
from connmgr.errors import TokenRevoked
from connmgr.rights.tokens import Grants, Live
from connmgr.vault import Vault
from connmgr.vault.documents import Document
from connmgr.vault.schema import now
from tests.deadlines import DEADLINE_SECONDS, eventually


class _Documents:
    """The tokens of a vault; one reader, that is set to be ``slow``, holds what it has read until it may go on."""

    def __init__(self, vault: Vault) -> None:
        self._tokens = vault.tokens
        self.slow: str | None = None
        self.has_read, self.goes_on = threading.Event(), threading.Event()

    def get(self, id: str) -> Document | None:
        found = self._tokens.get(id)
        if threading.current_thread().name == self.slow:
            self.has_read.set()
            assert self.goes_on.wait(DEADLINE_SECONDS)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokens, name)


@pytest.fixture
def documents(vault: Vault) -> _Documents:
    return _Documents(vault)


@pytest.fixture
def grants(documents: _Documents) -> Iterator[Grants]:
    made = Grants(documents, bytes(32), lambda *_: None)  # type: ignore[arg-type]
    yield made
    made.in_use.close()


@pytest.fixture
def secret(grants: Grants) -> str:
    request = TokenCreateRequest(name="one", expires=now() + timedelta(hours=1), scopes=[])
    return grants.create(request, None)[0]


def refused(grants: Grants, live: Live) -> bool:
    try:
        grants.in_use.begin(live, None)
    except TokenRevoked:
        return True
    else:
        return False
    finally:
        grants.in_use.end(live)


def test_by_one_who_has_read_it_before(grants: Grants, documents: _Documents, secret: str) -> None:
    live = grants.find(secret)
    id, documents.slow = live.grant.id, "reader"
    reads = threading.Thread(target=grants.in_use.read_those_of, args=(id,), name="reader")
    reads.start()
    assert documents.has_read.wait(DEADLINE_SECONDS)
    revokes = threading.Thread(target=grants.revoke, args=(id, None))
    revokes.start()
    eventually(lambda: documents.get(id), "it is not revoked", holds=lambda one: one and "revoked" in one.body)
    # One that does not wait for the reader has ended by then.
    revokes.join(0.2)
    documents.goes_on.set()
    for thread in (reads, revokes):
        thread.join(DEADLINE_SECONDS)
    assert refused(grants, live)


def test_by_one_who_sees_it_for_the_first_time(grants: Grants, documents: _Documents, secret: str) -> None:
    document = next(iter(documents.all()))
    grants.revoke(document.id, None)
    assert refused(grants, grants.in_use.keep(document))
