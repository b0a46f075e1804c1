"""Labels of connections, facts about their machines, and conditions on both, on both databases."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.errors import IntegrityError, InvalidRequest, UnknownConnection
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Vault, connections, integrity, schema, where
from connmgr.vault import facts as stored_facts
from connmgr.vault.backup import backup, restore
from connmgr.vault.connection_rows import fingerprint
from connmgr.vault.names import LOCAL
from connmgr.vault.schema import canonical, connection, fact
from tests.deadlines import DEADLINE_SECONDS
from tests.vault.conftest import Add
from tests.vault.renewed import KEY

SOME = {
    "web1": ({"env": "prod", "team": 'Blue "one"'}, {"os.id": "debian", "os.version": "12.4", "memory.total": 8 << 30}),
    "web2": ({"env": "prod"}, {"os.id": "debian", "os.version": "12.10", "memory.total": 2 << 30}),
    "db1": ({"env": "test", "rack": "9"}, {"os.id": "alpine", "os.version": "3.20", "uptime": 55}),
    "db2": ({"env": "test", "rack": "10"}, {}),
    "bare": ({}, {"os.id": "debian", "uptime": 5}),
}

CONDITIONS = {
    "env=prod": "web1 web2",
    "env = 'prod'": "web1 web2",
    "env=prod and os.id=debian and not os.version<12.5": "web2",
    "os.id=debian": "bare web1 web2",
    "env!=prod": "bare db1 db2 local machine",
    "env": "db1 db2 web1 web2",
    "not env": "bare local machine",
    "env~p*": "web1 web2",
    "env~{PROD,nothing}": "web1 web2",
    "env!~p*": "bare db1 db2 local machine",
    "rack<10": "db1",
    "rack>=9": "db1 db2",
    "os.version>=12.5 or rack=10": "db2 web2",
    "(env=prod or env=test) and (rack=9 or os.version=12.4)": "db1 web1",
    "memory.total>4G": "web1",
    "memory.total<=2147483648": "web2",
    "uptime=5": "bare",
    "uptime>5": "db1",
    'team="Blue \\"one\\""': "web1",
    "team~'blue*'": "web1",
    """team~'*"'""": "web1",
    """team>'A"'""": "web1",
    "NOT not env=prod AND env=prod": "web1 web2",
    "nothing=1": "",
    "  ": "bare db1 db2 local machine web1 web2",
}


@pytest.fixture
def ids(vault: Vault, add: Add) -> dict[str, str]:
    found = {}
    for name, (labels, facts) in SOME.items():
        found[name] = add(name, {"host": name})
        if labels:
            vault.connections.relabel([found[name]], labels, [])
        if facts:
            assert put(vault, found[name], facts)
    return found


def put(vault: Vault, id: str, facts: dict[str, where.Value], part: str = "system") -> bool:
    stored = vault.connections.get(id)
    return vault.facts.put(id, (canonical(stored.data), stored.dependency_digest), {part: facts})


@pytest.mark.usefixtures("ids")
def test_conditions_choose_by_labels_and_facts(vault: Vault) -> None:
    for text, expected in CONDITIONS.items():
        listed = vault.connections.listed(where=text)
        assert " ".join("/".join(one.path) for one in listed) == expected, text
        assert vault.connections.query(where=text) == [one.id for one in listed]


@pytest.mark.usefixtures("ids")
def test_the_database_finds_what_the_condition_says(vault: Vault) -> None:
    random.seed(7)
    words = [text for text in CONDITIONS if text.strip()]
    for _ in range(40):
        text = " ".join(
            [f"({random.choice(words)})", random.choice(["and", "or", "and not"]), f"({random.choice(words)})"]
        )
        condition = where.parse(text)
        assert condition is not None
        expected = [name for name, (labels, facts) in SOME.items() if where.holds(condition, labels, facts)]
        expected += ["local machine"] if where.holds(condition, {}, {}) else []
        assert [one.path[0] for one in vault.connections.listed(where=text)] == sorted(expected), text


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "env=": "At character 5: Expected a value; one with blanks or parentheses is quoted, and an empty one is '', "
        "and it ends.",
        "env=prod os.id=x": "At character 10: Expected `and`, `or` or the end, and there is 'os.id'.",
        "(env=prod": "At character 10: Expected `)` for the `(` at character 1, and it ends.",
        "env=prod)": "At character 9: Expected `and`, `or` or the end, and there is ')'.",
        "= prod": "At character 1: Expected the name of a label or fact, and there is '='.",
        "and": "At character 1: Expected the name of a label or fact, and there is 'and'.",
        "env='prod": "At character 5: The ' is not closed.",
        "env=~web*": "At character 5: There is no operator =~. A pattern is env~PATTERN; quote a value that begins "
        "with ~.",
        "env != ~a": "At character 8: There is no operator !=~. A pattern is env!~PATTERN; quote a value that begins "
        "with ~.",
        "not memory.total>4GB": "At character 21: 4GB is not a size. Give a whole number of bytes, or of K, M, G or T "
        "(1,024 to a power): 4G.",
        "memory.total<=1.5G": "At character 19: 1.5G is not a size. Give a whole number of bytes, or of K, M, G or T "
        "(1,024 to a power): 4G.",
        "env~[": "At character 6: The filter has a [ without its ]; [[] stands for the character.",
        "env=a or": "At character 9: Expected the name of a label or fact, and it ends.",
        "(" * 60 + "a": "At character 51: The condition is nested more than 50 deep.",
        " or ".join("a" * 101): "At character 501: The condition has more than 100 comparisons.",
        "a" * 1001: "The condition is too long: at most 1000 characters.",
    }.items(),
)
def test_errors_of_conditions_name_the_place(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        where.parse(text)
    assert refused.value.message == message


@given(st.text(alphabet="abN =!~<>()'\"\\.andort1{},*", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        condition = where.parse(text)
    except InvalidRequest:
        return
    if condition is not None:
        where.holds(condition, {"a": "1"}, {"a.b": 1})


def test_versions_are_in_the_order_of_debian() -> None:
    ordered = ["1", "1.0~rc1", "1.0", "1.0a", "1.0-1", "1.0-1+deb12u1", "1.0.1", "1.9", "1.10", "9", "10", "12", "12.4"]
    mixed = random.Random(3).sample(ordered, len(ordered))
    assert sorted(mixed, key=where.version_key) == ordered
    assert where.holds(where.Comparison("a.b", "<", "3.0.12"), {}, {"a.b": "1:3.0.11-1"})
    assert not where.holds(where.Comparison("a.b", "<", "0:3.0.12"), {}, {"a.b": "1:3.0.11-1"})


def test_labels_are_set_and_taken_away(vault: Vault, ids: dict[str, str]) -> None:
    some = [ids["web1"], ids["bare"]]
    assert vault.connections.relabel(some, {"env": "prod"}, ["team", "nothing"]) == some
    assert vault.connections.relabel(some, {"env": "prod"}, ["team"]) == []
    assert [one.labels for one in vault.connections.infos(some)] == [{"env": "prod"}] * 2
    with pytest.raises(UnknownConnection):
        vault.connections.relabel([*some, "00000000-0000-0000-0000-000000000000"], {"env": "test"}, [])
    with pytest.raises(InvalidRequest, match="web1 would have 65 labels; at most 64 are allowed"):
        vault.connections.relabel(some, {f"l{n}": "" for n in range(64)}, [])
    assert vault.connections.get(ids["web1"]).labels == {"env": "prod"}
    vault.connections.update(ids["web1"], labels={"tier": "1"})
    assert vault.connections.get(ids["web1"]).labels == {"tier": "1"}


def test_a_changed_label_is_refused_when_its_connection_is_used(vault: Vault, ids: dict[str, str]) -> None:
    for forged in (canonical({"env": "test"}), "{}", "x"):
        change = connection.update().where(connection.c.id == ids["web2"]).values(labels=forged)
        vault.database.write(lambda tx, change=change: tx.execute(change))
        vault.connections.query(where="env~*t*")
        with pytest.raises(IntegrityError):
            vault.connections.get(ids["web2"])


def test_changed_facts_are_refused_where_they_choose(vault: Vault, ids: dict[str, str]) -> None:
    forged = canonical({"os.id": "debian"})
    change = fact.update().where(fact.c.connection == ids["db1"]).values(body=forged)
    vault.database.write(lambda tx: tx.execute(change))
    with pytest.raises(IntegrityError, match=r"facts about connection .* were changed outside of connmgr"):
        vault.connections.query(where="os.id=debian")
    with pytest.raises(IntegrityError):
        vault.facts.of(ids.values())


def test_facts_end_with_what_they_are_about(vault: Vault, ids: dict[str, str]) -> None:
    web, bare = ids["web1"], ids["bare"]
    basis = (canonical({"host": "web1"}), vault.connections.get(web).dependency_digest)
    new = {"host": "elsewhere"}
    vault.connections.update(web, data=new, fingerprint=fingerprint(new), references=(), parent=None)
    assert vault.facts.of([web]) == {}
    assert not vault.facts.put(web, basis, {"system": {"os.id": "debian"}})
    vault.connections.update(bare, name="renamed")
    assert vault.facts.of([bare])[bare].values == {"os.id": "debian", "uptime": 5}
    vault.connections.remove([bare])
    assert vault.facts.of([bare]) == {}


def test_parts_are_replaced_one_by_one(vault: Vault) -> None:
    assert put(vault, LOCAL, {"os.id": "debian", "uptime": 5})
    assert put(vault, LOCAL, {"package.openssl": "3.0.11"}, "package")
    first = vault.facts.of([LOCAL])[LOCAL].gathered
    assert put(vault, LOCAL, {"os.id": "alpine"})
    found = vault.facts.of([LOCAL])[LOCAL]
    assert found.values == {"os.id": "alpine", "package.openssl": "3.0.11"}
    assert found.gathered["system"] > first["system"]
    assert found.gathered["package"] == first["package"]
    assert vault.connections.query(where="package.openssl>=3.0.11 and os.id=alpine") == [LOCAL]


def test_facts_of_many_machines_are_read_in_pieces(vault: Vault, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_facts, "PIECE_CHARACTERS", 300)
    monkeypatch.setattr(schema, "_CHUNK_VALUES", 8)
    ids = [add(f"machine{number}", {"host": f"h{number}"}) for number in range(12)]
    large = {ids[3], ids[4], ids[9]}
    for id in ids[:10]:
        assert put(vault, id, {"package.x": ("x" * 400 if id in large else id)}, "package")
    # Of the last two nothing is known.
    found = list(vault.facts.in_pieces([*ids, ids[0]]))
    assert [id for some, _ in found for id in some] == ids
    assert [{id: one.values["package.x"] for id, one in known.items()} for _, known in found] == [
        {id: "x" * 400 if id in large else id for id in some if id in ids[:10]} for some, _ in found
    ]
    # One of 65 characters each, or one machine alone; never more than fit into one statement.
    assert [len(some) for some, _ in found] == [3, 1, 1, 3, 1, 1, 2]


@pytest.mark.usefixtures("ids")
def test_labels_and_facts_get_the_codes_of_a_new_key(vault: Vault) -> None:
    new = VaultKey.generate()
    vault.database.write(lambda tx: integrity._rekey(tx, KEY, new))
    assert integrity.faults(vault.database, new) == []
    assert integrity.faults(vault.database, KEY) != []


@pytest.mark.usefixtures("ids")
def test_a_backup_has_labels_and_facts(vault: Vault, tmp_path: Path, open_vault: Callable[..., Vault]) -> None:
    backup(vault.database, tmp_path / "copy.db")
    restored, _ = restore(tmp_path / "copy.db", tmp_path / "restored")
    copy = open_vault(f"sqlite:///{restored}")
    assert copy.connections.query(where="env=prod and os.id=debian") == vault.connections.query(
        where="env=prod and os.id=debian"
    )
    assert integrity.faults(copy.database, KEY) == []


def test_others_change_connections_while_their_labels_are_computed(
    vault: Vault, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [add(f"host{number}", {"host": str(number)}) for number in range(3)]
    beside: list[Callable[[], object]] = [
        lambda: vault.connections.relabel([ids[0]], {"env": "test", "owner": "me"}, []),
        lambda: vault.connections.update(ids[1], name="renamed"),
        lambda: vault.connections.set_state(ids[2], {"running": True}),
    ]

    def with_others_beside(items: Iterable[str]) -> Iterator[str]:
        for item in items:
            yield item
            # In another thread: within the transaction of the labels it would wait in vain.
            while beside:
                changing = threading.Thread(target=beside.pop())
                changing.start()
                changing.join(DEADLINE_SECONDS)
                assert not changing.is_alive(), "a change waits for labels that are only computed"

    monkeypatch.setattr(connections, "in_pieces", with_others_beside)
    assert vault.connections.relabel(ids, {"env": "prod"}, []) == ids
    found = [vault.connections.get(id) for id in ids]
    assert [one.labels for one in found] == [{"env": "prod", "owner": "me"}, {"env": "prod"}, {"env": "prod"}]
    assert (found[1].name, found[2].state) == ("renamed", {"running": True})


def test_odd_values_are_compared_whole(vault: Vault, add: Add) -> None:
    odd = ["", "\\", '"', 'a","b', '"}', 'x"}', "ü€😀", "\\u0041", "a,b", "{", "=", "'"]
    ids = {value: add(f"odd{number}", {"host": str(number)}) for number, value in enumerate(odd)}
    for value, id in ids.items():
        vault.connections.relabel([id], {"a": "1", "note": value, "z": "2"}, [])
    for value, id in ids.items():
        quoted = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        assert vault.connections.query(where=f"note={quoted}") == [id]
        pattern = "".join(f"[{one}]" if one in "*?[{},]" else one for one in value)
        pattern = "'" + pattern.replace("\\", "\\\\").replace("'", "\\'") + "'"
        assert vault.connections.query(where=f"note~{pattern}") == [id], value
        assert set(vault.connections.query(where=f"note>={quoted} and note<={quoted}")) >= {id}
    vault.connections.relabel(ids.values(), {}, ["z"])
    assert set(vault.connections.query(where="note~** and a<2")) == set(ids.values())
