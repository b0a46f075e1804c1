"""Looking up and searching connections among 100,000, on SQLite and, if installed, on PostgreSQL.

Run it with ``python -m benchmarks.vault_query``.
"""

from __future__ import annotations

import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.timing import interleaved, print_timings
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Vault, connection_rows, dependencies, facts, open_database
from connmgr.vault.names import ALL_CONNECTIONS
from connmgr.vault.schema import canonical, connection, fact, now
from tests.components import missing
from tests.vault.postgres import Postgres

COUNT = 100_000
LOOK_UP = "look-up by id"
QUERIES = {
    "all: * * *": ("*", "*", "*"),
    "all, by wildcard: ** ** *": ("**", "**", "*"),
    "all by their pattern: * {*,*/*} {ssh,shell*}": ("*", "{*,*/*}", "{ssh,shell*,local}"),
    "some: * *-7*": ("*", "*-7*", "*"),
    "one: * web-50000": ("*", "web-50000", "*"),
    "wrappers: * **/root": ("*", "**/root", "*"),
    "inside of names: * **-99*": ("*", "**-99*", "*"),
    "sets: * web-[0-4]*[!5]": ("*", "web-[0-4]*[!5]", "*"),
    "by the end, as names are: * **/web-50000": ("*", "**/web-50000", "*"),
    "category: team-3/** * ssh": ("team-3/**", "*", "ssh"),
    "label: env=prod": ("*", "*", "*", "*", "env=prod"),
    "labels: env=prod and not zone=3": ("*", "*", "*", "*", "env=prod and not zone=3"),
    "a label's pattern and order: env~p* and rack<100": ("*", "*", "*", "*", "env~p* and rack<100"),
    "label and name: web-9* env=prod": ("*", "web-9*", "*", "*", "env=prod"),
    "fact of 20,000: os.id=alpine": ("*", "*", "*", "*", "os.id=alpine"),
    "fact of 20,000: memory.total>4G": ("*", "*", "*", "*", "memory.total>4G"),
}
MACHINES = 20_000
"""The connections whose facts are known."""


def main() -> None:
    """Measure both databases, in turns."""
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "vault.db"
        lite = stack.enter_context(closing(sqlite3.connect(file)))
        subjects = _subjects(stack, "SQLite", f"sqlite:///{file}", lite, "SELECT * FROM connection WHERE id = ?")
        if missing(("postgres",)):
            print("\nPostgreSQL is not installed, and was not measured.")
        else:
            server = stack.enter_context(_postgres())
            url = server.dsn(server.create())
            driver = stack.enter_context(psycopg.connect(url, autocommit=True))
            subjects |= _subjects(stack, "PostgreSQL", url, driver, "SELECT * FROM connection WHERE id = %s")
            # The server does this by itself within a minute of many changes.
            driver.execute("VACUUM ANALYZE")
        order = sorted(subjects, key=lambda name: list(subjects).index(name) % (len(QUERIES) + 2))
        taken = interleaved({name: subjects[name] for name in order}, calls=5)
    base = f"SQLite: {LOOK_UP}"
    print_timings(f"{COUNT:,} connections", taken, base=base, repeat="python -m benchmarks.vault_query")


def _subjects(stack: ExitStack, name: str, url: str, driver: Any, sql: str) -> dict[str, Callable[[], object]]:
    """Fill a new vault, which ``stack`` closes, and return the calls to measure."""
    key = VaultKey(b"b" * 32)
    database = open_database(url)
    vault = stack.enter_context(closing(Vault(database, key)))
    categories = [vault.categories.add(f"Team {n}".replace(" ", "-"), ALL_CONNECTIONS) for n in range(10)]
    made = _connections(key, categories)
    while some := list(islice(made, 5000)):
        database.write(lambda tx, some=some: tx.execute(connection.insert(), some))  # type: ignore[misc]
    _tell_facts(vault, key)
    wanted = vault.connections.query("*", "web-50000")[0]
    subjects: dict[str, Callable[[], object]] = {
        f"{name}: {LOOK_UP}": lambda: vault.connections.get(wanted),
        f"{name}: the same row by the driver alone": lambda: driver.execute(sql, (wanted,)).fetchone(),
    }
    for title, filters in QUERIES.items():
        found = len(vault.connections.query(*filters))
        subjects[f"{name}: {title} ({found:,})"] = partial(vault.connections.query, *filters)
    return subjects


def _tell_facts(vault: Vault, key: VaultKey) -> None:
    """Store facts about some machines, of the usual size."""
    ids = vault.connections.query("*", "web-*")[:MACHINES]
    rows = []
    for number, id in enumerate(ids):
        body = {"os.id": "alpine" if number % 4 == 0 else "debian", "os.version": "12", "kernel": "6.1.0-13-amd64"}
        body |= {"memory.total": (1 + number % 8) << 30, "uptime": number, "arch": "x86_64", "cpu.count": 4}
        body |= {f"disk./srv/{n}.{what}": n << 30 for n in range(4) for what in ("total", "free")}
        row = {"connection": id, "part": "system", "gathered": now(), "body": canonical(body)}
        rows.append(row | {"mac": facts._mac(row, key)})
    vault.database.write(lambda tx: tx.execute(fact.insert(), rows))


def _connections(key: VaultKey, categories: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of connections: every fourth host has a wrapper below it."""
    count = 0
    while count < COUNT:
        data = {"host": f"host-{count}.example", "port": 22, "user": "admin", "connectTimeout": 10, "keepAlive": 15}
        host = _row(f"web-{count}", "ssh", data, categories[count % len(categories)], None)
        yield _authentic(host, key)
        count += 1
        if count % 5 == 4:
            wrapper = _row("root", "shellEnvironment", {"host": host["id"]}, host["category"], host)
            yield _authentic(wrapper, key)
            count += 1


def _row(name: str, type: str, data: dict[str, Any], category: str, above: dict[str, Any] | None) -> dict[str, Any]:
    id, parent = str(uuid.uuid4()), above["id"] if above else None
    place = {"path": f"{above['path']}/{name}", "depth": 2} if above else {"path": name, "depth": 1}
    place["way"] = dependencies.digest([above] if above else [])
    number = int(name.rpartition("-")[2]) if above is None else 0
    labels = {"env": "prod" if number % 10 == 0 else "test", "zone": str(number % 7), "rack": str(number % 1000)}
    row = connection_rows.new(id, name, type, data, connection_rows.fingerprint(data), category, parent, labels)
    return row | place


def _authentic(row: dict[str, Any], key: VaultKey) -> dict[str, Any]:
    return row | {"mac": connection_rows.mac(row, key)}


@contextmanager
def _postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    main()
