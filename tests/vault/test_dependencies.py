"""A connection runs over what it was stored with, even after direct changes of any rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from connmgr.errors import IntegrityError, SecretLocked
from connmgr.secrets.principals import Access
from connmgr.vault import Database, Vault
from connmgr.vault.connection_rows import fingerprint
from connmgr.vault.integrity import faults
from connmgr.vault.schema import connection as table
from connmgr.vault.schema import connection_reference as reference
from tests.vault.conftest import KEY, Add, downgrade
from tests.vault.test_record import change, stored


class Chain:
    """An elevated connection over a carrier through a gateway, with a plugin's field that names another connection."""

    def __init__(self, vault: Vault, add: Add) -> None:
        self.vault = vault
        self.other = add("other")
        self.gateway = add("gateway")
        self.carrier = add("carrier", references=[self.gateway])
        self.inner = add("inner", {"host": self.carrier}, parent=self.carrier, references=[self.other])
        secret = vault.principals.seal("hunter2", Access())
        self.elevated = add("elevated", {"host": self.inner, "password": secret}, parent=self.inner)

    def way(self) -> list[str]:
        """Return the names of the connections below the elevated one."""
        bound = self.vault.connections.get(self.elevated).dependency_digest
        return sorted(one.name for one in self.vault.connections.carriers_of([self.inner], bound).values())

    def update(self, id: str, **options: Any) -> None:
        data = {"host": "moved"}
        self.vault.connections.update(id, data=data, fingerprint=fingerprint(data), **options)


@pytest.fixture
def chain(vault: Vault, add: Add) -> Chain:
    return Chain(vault, add)


def test_a_change_that_is_permitted_ties_all_above_to_it(chain: Chain, vault: Vault) -> None:
    whole = ["carrier", "gateway", "inner", "other"]
    for id in (chain.gateway, chain.carrier, chain.other):
        asked: list[Any] = []
        chain.update(id, permits=asked.extend)
        assert len(asked) == 1, "whoever changes a way is asked about other secrets than those that go over it"
        assert chain.way() == whole
    vault.connections.update(chain.carrier, references=[], parent=None, permits=lambda _: None)
    assert chain.way() == ["carrier", "inner", "other"]
    assert faults(vault.database, KEY) == []


def test_a_change_that_is_not_permitted_leaves_all_as_it_was(chain: Chain, vault: Vault) -> None:
    before = vault.connections.infos(vault.connections.query())
    for id in (chain.gateway, chain.carrier, chain.inner, chain.other):
        with pytest.raises(SecretLocked, match=r"Secrets of .*elevated go over this connection"):
            chain.update(id)
    with pytest.raises(SecretLocked):
        vault.connections.update(chain.carrier, references=[chain.other], parent=None)
    assert vault.connections.infos(vault.connections.query()) == before
    vault.connections.update(chain.carrier, name="renamed")
    assert chain.way() == ["gateway", "inner", "other", "renamed"], "a name decides where a secret goes"


@pytest.mark.parametrize("hop", ["gateway", "carrier", "other"])
def test_an_old_record_put_back_is_refused(chain: Chain, behind: Database, hop: str) -> None:
    id = getattr(chain, hop)
    earlier = {key: value for key, value in stored(behind, id).items() if key in ("data", "way", "path", "mac")}
    chain.update(id, permits=lambda _: None)
    assert chain.way()
    change(behind, id, **earlier)
    with pytest.raises(IntegrityError, match=r"connections that .* runs over were changed outside of connmgr"):
        chain.way()


def test_a_reference_taken_out_hides_nobody(chain: Chain, vault: Vault, behind: Database, add: Add) -> None:
    behind.write(lambda tx: tx.execute(reference.delete().where(reference.c.source == chain.carrier)))
    chain.update(chain.gateway)
    with pytest.raises(IntegrityError):
        chain.way()
    with pytest.raises(IntegrityError, match=chain.carrier):
        add("late", parent=chain.carrier)
    behind.write(lambda tx: tx.execute(reference.insert().values(source=chain.carrier, target=chain.gateway)))
    with pytest.raises(IntegrityError):
        chain.way()
    assert any(chain.carrier in fault for fault in faults(vault.database, KEY))
    vault.connections.update(chain.other, data={}, fingerprint=fingerprint({}), permits=lambda _: None)
    with pytest.raises(IntegrityError):
        chain.way()


def test_a_connection_led_astray_is_tied_anew_by_turning_it_away_alone(chain: Chain, behind: Database) -> None:
    earlier = stored(behind, chain.gateway)
    chain.update(chain.gateway, permits=lambda _: None)
    change(behind, chain.gateway, data=earlier["data"], mac=earlier["mac"])
    with pytest.raises(IntegrityError, match=chain.carrier):
        chain.update(chain.carrier, references=[chain.gateway], parent=None, permits=lambda _: None)
    with pytest.raises(IntegrityError):
        chain.way()
    chain.update(chain.carrier, references=[chain.other], parent=None, permits=lambda _: None)
    assert chain.way() == ["carrier", "inner", "other"]


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_an_older_vault_is_tied_as_it_stands_and_once(
    chain: Chain, vault: Vault, url: str, open_vault: Callable[..., Vault], behind: Database, revision: str
) -> None:
    bound = {id: vault.connections.get(id).dependency_digest for id in vault.connections.query()}
    downgrade(url, revision=revision)
    assert faults(vault.database, KEY) == []
    current = open_vault(url)
    assert {id: current.connections.get(id).dependency_digest for id in bound} == bound
    chain.vault = current
    assert chain.way()
    old = stored(behind, chain.gateway)
    downgrade(url, None, revision)
    with pytest.raises(Exception, match="principals were changed outside of connmgr"):
        open_vault(url)
    assert behind.read(lambda tx: tx.scalar(sa.select(table.c.mac).where(table.c.id == chain.gateway))) == old["mac"]
