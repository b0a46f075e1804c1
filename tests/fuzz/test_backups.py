"""Backups and recordings: a damaged backup is restored or refused, never by half; a recording is read back as shown."""

from __future__ import annotations

import codecs
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from connmgr.errors import BackupFailed
from connmgr.terminals.recording import Recordings
from connmgr.vault import Vault, open_database
from connmgr.vault.backup import backup, restore, restore_into
from connmgr.vault.names import ALL_CONNECTIONS
from connmgr.vault.schema import VERSION_TABLE
from tests.fuzz.rounds import fuzz
from tests.vault.renewed import KEY

VALUE = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.binary(max_size=20),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["[" * 5000, "1", "2", '"1"', "{}", "[1]", "NaN", '[{"name":1}]', "null", "known_hosts", "../x"]),
    st.sampled_from(["vault.db", ".x", "a/b", "a\0b", "", "x" * 300, b"SQLite format 3\0"]),
)
STATEMENT = st.one_of(
    st.tuples(
        st.builds(
            "UPDATE backup SET value = ? WHERE name = '{}'".format,
            st.sampled_from(["format", "created", "version", "leftOut"]),
        ),
        st.tuples(VALUE),
    ),
    st.tuples(st.just("INSERT OR REPLACE INTO backup_file (name, content) VALUES (?, ?)"), st.tuples(VALUE, VALUE)),
    st.tuples(st.just("INSERT OR REPLACE INTO backup (name, value) VALUES (?, ?)"), st.tuples(VALUE, VALUE)),
    st.tuples(st.just("UPDATE connection SET name = ?"), st.tuples(VALUE)),
    st.tuples(
        st.builds(
            "{} {}".format,
            st.sampled_from(["DELETE FROM", "DROP TABLE"]),
            st.sampled_from(["backup", "backup_file", "connection", "category", "principal", VERSION_TABLE]),
        ),
        st.just(()),
    ),
)
BYTES = st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=16)), max_size=3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup with a category, the local machine and a file beside the vault."""
    directory = tmp_path_factory.mktemp("sound")
    (directory / "known_hosts").write_text("a host\n")
    database = open_database(f"sqlite:///{directory}/vault.db")
    vault = Vault(database, KEY)
    vault.categories.add("team", ALL_CONNECTIONS)
    backup(database, directory / "backup", directory)
    vault.close()
    return directory / "backup"


@fuzz(
    examples=20,
    statements=st.lists(STATEMENT, max_size=2),
    changes=st.one_of(st.just([]), BYTES),
    cut=st.one_of(st.none(), st.none(), st.integers(0, 1 << 17)),
)
def test_a_damaged_backup_is_restored_or_refused_and_nothing_is_left_of_it(
    sound: Path, tmp_path: Path, statements: list[tuple[str, Any]], changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    damaged, directory = tmp_path / "damaged", tmp_path / "new"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copy(sound, damaged)
    with closing(sqlite3.connect(damaged)) as raw, raw:
        for statement, values in statements:
            try:
                raw.execute(statement, values)
            except sqlite3.Error:
                # A constraint refuses the value, or an earlier statement removed the table.
                continue
    content = bytearray(damaged.read_bytes())
    for at, change in changes:
        start = at % len(content)
        content[start : start + len(change)] = change
    damaged.write_bytes(bytes(content)[:cut])
    before = damaged.read_bytes()
    _restored(lambda: restore(damaged, directory), directory)
    assert damaged.read_bytes() == before
    empty = open_database(f"sqlite:///{tmp_path}/other.db")
    try:
        _restored(lambda: restore_into(damaged, empty, tmp_path / "beside"), tmp_path / "beside")
    finally:
        empty.close()
        (tmp_path / "other.db").unlink(missing_ok=True)
        shutil.rmtree(tmp_path / "beside", ignore_errors=True)


def _restored(work: Callable[[], object], directory: Path) -> None:
    refused: BackupFailed | None = None
    try:
        work()
    except BackupFailed as error:
        refused = error
    if refused is not None:
        assert not directory.exists() or not list(directory.iterdir()), "something is left of a backup that was refused"
        assert len(refused.message) < 2000


EVENT = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=10).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
)


@fuzz(examples=40, events=st.lists(EVENT, max_size=12), limit=st.sampled_from([1, 100, 150, 300, 1 << 20]))
def test_a_recording_is_read_back_as_it_was_shown(
    tmp_path: Path, events: list[bytes | tuple[int, int]], limit: int
) -> None:
    file = tmp_path / "recordings" / "one.cast"
    file.unlink(missing_ok=True)
    recording = Recordings(file.parent, limit=limit, total=1 << 24, days=0).begin("one", 80, 24, "xterm")
    for event in events:
        recording.output(event) if isinstance(event, bytes) else recording.resized(*event)
    recording.close()
    content = file.read_bytes()
    assert len(content) <= limit
    assert not content or content.endswith(b"\n")
    header, *lines = [json.loads(line) for line in content.decode().split("\n")[:-1]] or [None]
    assert header is None or (header["version"], header["width"], header["height"]) == (2, 80, 24)
    times = [time for time, _, _ in lines]
    assert times == sorted(times)
    shown = "".join(text for _, kind, text in lines if kind == "o")
    expected = codecs.decode(b"".join(event for event in events if isinstance(event, bytes)), "utf-8", "replace")
    sizes = [text for _, kind, text in lines if kind == "r"]
    wanted = [f"{columns}x{rows}" for columns, rows in (event for event in events if isinstance(event, tuple))]
    if recording.cut is None:
        assert (shown, sizes) == (expected, wanted)
    else:
        assert recording.cut == "limit"
        assert expected.startswith(shown)
        assert wanted[: len(sizes)] == sizes
