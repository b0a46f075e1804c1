"""The chain of the audit log: tampering is found and named, and not confused with the traces of a crash."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from connmgr.audit import log as audit_log
from connmgr.audit.log import FILE_NAME, KEPT_FILES
from connmgr.audit.query import EntryFilter, search
from connmgr.audit.verify import Verdict, Walk, verify
from connmgr.errors import AuditUnavailable, StartupError, VaultUnavailable
from connmgr.vault.anchors import Anchor
from tests.audit.logs import CHAIN, KeptAnchors, open_log
from tests.deadlines import DEADLINE_SECONDS

STATUS = b'"status":200'
FACTS = {"id": "1", "path": "/shell/exec", "status": 200}


class Log:
    """An audit log in a directory, and its anchors in the vault."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        self.anchors = KeptAnchors()

    def write(self, entries: int, **options: Any) -> None:
        """Run a daemon that writes ``count`` entries and ends."""
        log = open_log(self.directory, self.anchors, **options)
        for _ in range(entries):
            log.record(FACTS, {}, {})
        log.close()

    def lines(self, number: int = 0) -> list[bytes]:
        return self.file(number).read_bytes().splitlines(keepends=True)

    def file(self, number: int = 0) -> Path:
        return self.path.with_name(f"{FILE_NAME}.{number}") if number else self.path

    def change(self, change: Callable[[list[bytes]], Any], number: int = 0) -> None:
        """Change the lines of a file, as with a text editor."""
        lines = self.lines(number)
        change(lines)
        self.file(number).write_bytes(b"".join(lines))

    def verified(self) -> Verdict:
        return verify(self.path, CHAIN, self.anchors)

    def faults(self) -> list[tuple[str, int | None, int | None]]:
        return [(fault.kind, fault.seq, fault.last) for fault in self.verified().faults]


class GrowingFile(io.RawIOBase):
    """A file of which a reader finds ``pieces`` one after the other, each up to the end that the file has then."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [text for piece in pieces for text in (piece, b"")]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def _swap(lines: list[bytes], one: int, other: int) -> None:
    lines[one], lines[other] = lines[other], lines[one]


def _replace(lines: list[bytes], at: int, old: bytes, new: bytes) -> None:
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new)


def test_an_untouched_log_is_sound_across_daemons(log: Log) -> None:
    for _ in range(3):
        log.write(4)
    found = log.verified()
    assert (found.faults, found.remarks) == ([], [])
    assert (found.entries, found.first, found.last, found.anchored) == (12, 1, 12, 12)
    links = [json.loads(line)["previous"] for line in log.lines()]
    assert links[1:] == [CHAIN.hash(line) for line in log.lines()[:-1]]


def test_anchoring_goes_on_after_no_descriptor_was_left(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def dup(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    running = open_log(log.directory, log.anchors)
    running.record(FACTS, {}, {})
    with monkeypatch.context() as patched:
        patched.setattr(audit_log.os, "dup", dup)
        running.anchor()
    assert "Too many open files" in caplog.text
    running.close()
    assert log.verified().anchored == 1


TAMPERINGS: dict[str, tuple[Callable[[list[bytes]], Any], list[tuple[str, int | None, int | None]]]] = {
    "the status of one": (lambda lines: _replace(lines, 4, STATUS, b'"status":404'), [("changed", 5, 5)]),
    "the first": (lambda lines: _replace(lines, 0, STATUS, b'"status":404'), [("changed", 1, 1)]),
    "the last": (lambda lines: _replace(lines, 9, STATUS, b'"status":404'), [("changed", 10, 10)]),
    "a number, to a larger one": (lambda lines: _replace(lines, 4, b'"seq":5', b'"seq":50'), [("changed", 5, 5)]),
    "a number, to a smaller one": (lambda lines: _replace(lines, 4, b'"seq":5', b'"seq":2'), [("changed", 5, 5)]),
    "the number of the first": (lambda lines: _replace(lines, 0, b'"seq":1', b'"seq":7'), [("changed", 1, 1)]),
    "the number of the last": (lambda lines: _replace(lines, 9, b'"seq":10', b'"seq":99'), [("changed", 10, 10)]),
    "a blank in one": (lambda lines: _replace(lines, 4, b",", b", "), [("no_entry", None, None), ("missing", 5, 5)]),
    "one is emptied": (
        lambda lines: lines.__setitem__(4, b"\n"),
        [("no_entry", None, None), ("missing", 5, 5)],
    ),
    "one is taken away": (lambda lines: lines.pop(4), [("missing", 5, 5)]),
    "some are taken away": (lambda lines: lines.__delitem__(slice(3, 7)), [("missing", 4, 7)]),
    "the first ones are taken away": (lambda lines: lines.__delitem__(slice(0, 3)), [("missing", 1, 3)]),
    "the last is cut off": (lambda lines: lines.pop(), [("cut_off", 10, 10)]),
    "the last ones are cut off": (lambda lines: lines.__delitem__(slice(6, None)), [("cut_off", 7, 10)]),
    "all are cut off but one": (lambda lines: lines.__delitem__(slice(1, None)), [("cut_off", 2, 10)]),
    "one is there twice": (lambda lines: lines.insert(8, lines[4]), [("put_in", 5, 5)]),
    "one is put in": (lambda lines: lines.insert(5, lines[4].replace(STATUS, b'"status":201')), [("put_in", 5, 5)]),
    "a line is put in": (lambda lines: lines.insert(5, b"nothing of ours\n"), [("no_entry", None, None)]),
    "one is put at the end": (
        lambda lines: lines.append(lines[9].replace(b'"seq":10', b'"seq":11')),
        [("changed", 10, 10)],
    ),
    "two change places": (lambda lines: _swap(lines, 4, 5), [("reordered", 5, 5)]),
    "the order is turned round": (lambda lines: lines.reverse(), [("missing", 1, 9)]),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_tampering_is_named(log: Log, tampering: str) -> None:
    change, expected = TAMPERINGS[tampering]
    log.write(10)
    log.change(change)
    found = log.faults()
    if tampering == "the order is turned round":
        # The fault may be reported at either place.
        assert len(found) >= 1
    else:
        assert found == expected, log.verified()
    assert all(fault.message.endswith(".") for fault in log.verified().faults)


@pytest.mark.parametrize("tampering", [name for name in TAMPERINGS if "turned round" not in name])
def test_tampering_before_a_start_is_found_afterwards_too(log: Log, tampering: str) -> None:
    change, expected = TAMPERINGS[tampering]
    log.write(10)
    log.change(change)
    log.write(3)
    kinds = {kind for kind, _, _ in log.faults()}
    told = {"missing" if kind == "cut_off" else kind for kind, _, _ in expected}
    assert kinds >= told or tampering == "one is put at the end", log.verified()
    assert log.faults()


def test_a_removed_log_is_reported_even_after_a_daemon_has_begun_another(log: Log) -> None:
    log.write(10)
    log.path.unlink()
    assert [kind for kind, _, _ in log.faults()] == ["gone"]
    log.write(2)
    (begun, *_) = map(json.loads, log.lines())
    assert begun["gone"][0]["seq"] == 10
    assert [kind for kind, _, _ in log.faults()] == ["gone"]
    assert "up to entry 10" in log.verified().faults[0].message


def test_a_log_without_an_anchor_stays_a_fault(log: Log) -> None:
    log.write(3)
    log.anchors.kept.clear()
    assert [kind for kind, _, _ in log.faults()] == ["unanchored"]
    log.write(3)
    assert [kind for kind, _, _ in log.faults()] == ["unanchored"], "the next start makes up for it"


def test_logs_of_two_daemons_in_one_vault_are_separate(log: Log, tmp_path: Path) -> None:
    log.write(3)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    other = Log(elsewhere)
    other.anchors = log.anchors
    other.write(5)
    assert log.verified().anchored == 3
    assert other.verified().anchored == 6, "five, after one about the log that was there"
    assert (log.faults(), other.faults()) == ([], [])
    elsewhere_lines = other.lines()
    log.change(lambda lines: lines.__setitem__(slice(None), elsewhere_lines))
    assert [kind for kind, _, _ in log.faults()] == ["gone"], "another's log in place of this one's"


def _away(*_: object, **__: object) -> NoReturn:
    raise VaultUnavailable("away")


def _crashed(log: Log, entries: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Run a daemon that writes ``count`` entries and is killed before it anchors them."""
    running = open_log(log.directory, log.anchors, **options)
    with monkeypatch.context() as crash:
        crash.setattr(log.anchors, "put", _away)
        for _ in range(entries):
            running.record(FACTS, {}, {})
        running.close()


def test_entries_after_the_last_anchor_are_accepted(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(3)
    _crashed(log, 2, monkeypatch)
    found = log.verified()
    assert (found.faults, found.anchored, found.last) == ([], 3, 5)
    assert re.search("2 entries ago", found.remarks[0])
    log.write(1)
    assert (log.faults(), log.verified().remarks, log.verified().last) == ([], [], 6)


def test_a_line_is_no_fault_that_is_written_while_the_log_is_verified(log: Log) -> None:
    log.write(3)
    lines = log.lines()
    walk = Walk(log.path, CHAIN, Verdict(), log.anchors.all(), None)
    walk.file("audit.log", io.BufferedReader(GrowingFile(b"".join(lines[:2]) + lines[2][:100], lines[2][100:])))
    walk.finish()
    assert (walk.verdict.faults, walk.verdict.last) == ([], 2)


def test_half_a_line_is_accepted_and_the_next_daemon_records_it(log: Log) -> None:
    log.write(3)
    with log.path.open("ab") as file:
        file.write(b'{"seq":4,"previous":"ab')
    found = log.verified()
    assert (found.faults, len(found.remarks)) == ([], 1)
    assert "half a line" in found.remarks[0]
    log.write(2)
    assert json.loads(log.lines()[3])["dropped"] == '{"seq":4,"previous":"ab'
    assert (log.faults(), log.verified().entries) == ([], 6)


def test_the_chain_continues_after_a_crash_between_two_files(log: Log) -> None:
    log.write(3)
    log.path.rename(log.file(1))
    assert log.faults() == []
    log.write(2)
    assert (len(log.lines()), len(log.lines(1)), log.faults()) == (2, 3, [])


def test_entries_older_than_chains_stay_and_are_reported(log: Log) -> None:
    log.path.write_text('{"seq":1,"time":"x"}\n{"seq":2,"time":"x"}\n')
    log.path.chmod(0o600)
    log.write(3)
    found = log.verified()
    assert (found.first, found.last, found.faults) == (3, 5, [])
    assert found.remarks == ["2 entries are of a time before the log was a chain."]
    log.change(lambda lines: lines.__setitem__(slice(None), [b'{"seq":3,"time":"x"}\n']))
    assert log.faults(), "a chain is replaced by entries that never had one"


def test_the_chain_continues_over_rotated_files_whose_number_is_limited(log: Log) -> None:
    log.write(60, max_bytes=1000)
    log.write(60, max_bytes=1000)
    found = log.verified()
    assert (found.faults, found.remarks, found.last) == ([], [], 120)
    assert found.first is not None
    assert found.first > 1
    assert len(list(log.directory.glob(f"{FILE_NAME}*"))) == KEPT_FILES
    assert all(b'"trail":"' in log.lines(number)[0] for number in range(KEPT_FILES))


@pytest.mark.parametrize("number", [1, 4, KEPT_FILES - 1])
def test_a_removed_file_is_reported(log: Log, number: int) -> None:
    log.write(100, max_bytes=1000)
    first, last = (json.loads(log.lines(number)[at])["seq"] for at in (0, -1))
    log.file(number).unlink()
    assert log.faults() == [("missing", first, last)]


def test_swapped_files_and_a_returned_file_are_reported(log: Log) -> None:
    log.write(100, max_bytes=1000)
    kept = log.file(3).read_bytes()
    log.file(3).write_bytes(log.file(4).read_bytes())
    assert {kind for kind, _, _ in log.faults()} == {"put_in", "missing"}
    log.file(4).write_bytes(kept)
    assert {kind for kind, _, _ in log.faults()} == {"reordered"}


def test_a_fault_in_a_rotated_file_is_named_with_its_file(log: Log) -> None:
    log.write(100, max_bytes=1000)
    log.change(lambda lines: _replace(lines, 1, STATUS, b'"status":404'), 3)
    (fault,) = log.verified().faults
    seq = json.loads(log.lines(3)[1])["seq"]
    assert (fault.kind, fault.file, fault.seq) == ("changed", f"{FILE_NAME}.3", seq)
    assert f"Entry {seq}" in fault.message


def test_the_next_file_authenticates_the_last_entry_of_a_file(log: Log) -> None:
    log.write(100, max_bytes=1000)
    last = json.loads(log.lines(3)[-1])["seq"]
    log.change(lambda lines: _replace(lines, -1, STATUS, b'"status":404'), 3)
    assert log.faults() == [("changed", last, last)]


def test_an_older_copy_of_the_files_is_found(log: Log) -> None:
    log.write(3)
    copy = log.path.read_bytes()
    log.write(3)
    log.path.write_bytes(copy)
    assert log.faults() == [("cut_off", 4, 6)]
    log.write(1)
    assert log.faults() == [("missing", 4, 6)]


def test_entries_that_the_daemon_lost_are_distinguished_from_removed_ones(log: Log) -> None:
    running = open_log(log.directory, log.anchors)
    usual, full = running._descriptor, os.open("/dev/full", os.O_WRONLY)
    for lost in (False, True, True, False, False):
        running._descriptor = full if lost else usual
        running.record(FACTS, {}, {})
    running.close()
    os.close(full)
    assert log.faults() == [("lost", 2, 3)]
    assert log.verified().faults[0].message.startswith("Entries 2 to 3 were lost: the daemon could not write them")


@pytest.mark.parametrize(
    ("meddle", "faults"),
    [
        pytest.param(lambda log: log.path.rename(log.file(1)), [], id="renamed as a rotation does"),
        pytest.param(lambda log: log.path.rename(log.directory / "x"), [("missing", 1, 3)], id="renamed"),
        pytest.param(lambda log: log.path.unlink(), [("missing", 1, 3)], id="removed"),
        pytest.param(lambda log: _by_a_copy(log, log.path.read_bytes()), [], id="replaced by a copy"),
        pytest.param(
            lambda log: _by_a_copy(log, b"".join(log.lines()[:2])), [("missing", 3, 3)], id="replaced by a part"
        ),
        pytest.param(lambda log: os.truncate(log.path, 0), [("missing", 1, 3)], id="emptied"),
        pytest.param(
            lambda log: os.truncate(log.path, log.path.stat().st_size - 7), [("missing", 3, 3)], id="cut within a line"
        ),
    ],
)
def test_a_file_that_another_program_moves_or_cuts_loses_no_later_entry(
    log: Log, caplog: pytest.LogCaptureFixture, meddle: Callable[[Log], object], faults: list[tuple[str, int, int]]
) -> None:
    running = open_log(log.directory, log.anchors)
    for _ in range(3):
        running.record(FACTS, {}, {})
    running.anchor()
    meddle(log)
    for _ in range(3):
        running.begin(FACTS, {})
    running.close()
    assert [json.loads(line)["seq"] for line in log.lines()][-3:] == [4, 5, 6]
    assert (log.faults(), running.lost, len(caplog.records)) == (faults, 0, 1)
    assert "moved, replaced or cut" in caplog.text
    log.write(1)
    assert log.faults() == faults


def _by_a_copy(log: Log, content: bytes) -> None:
    copy = log.directory / "copy"
    copy.touch(0o600)
    copy.write_bytes(content)
    copy.replace(log.path)


def test_nothing_is_begun_where_the_file_was_replaced_by_something_else(log: Log) -> None:
    running = open_log(log.directory, log.anchors)
    running.record(FACTS, {}, {})
    log.path.rename(log.directory / "x")
    log.path.symlink_to(log.directory / "x")
    with pytest.raises(AuditUnavailable):
        running.begin(FACTS, {})
    assert running.lost == 1
    (log.directory / "x").replace(log.path)
    running.begin(FACTS, {})
    running.close()
    assert log.faults() == [("lost", 2, 2)]


def test_lost_entries_show_although_no_request_follows(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "ANCHOR_SECONDS", 0.01)
    shipped = threading.Event()

    def ship(entry: Mapping[str, Any]) -> None:
        if entry.get("event") == "lost":
            shipped.set()

    running = open_log(log.directory, log.anchors, ship=ship)
    running.record(FACTS, {}, {})
    usual, full = running._descriptor, os.open("/dev/full", os.O_WRONLY)
    running._descriptor = full
    for _ in range(2):
        running.record(FACTS, {}, {})
    running._descriptor = usual
    assert shipped.wait(DEADLINE_SECONDS), "the loss leaves no trace in the log"
    running.close()
    os.close(full)
    last = json.loads(log.lines()[-1])
    assert (last["event"], last["seq"], last["entries"], running.lost) == ("lost", 4, 2, 2)
    log.write(1)
    assert log.faults() == [("lost", 2, 3)]


def test_the_daemon_continues_a_log_while_the_vault_is_unavailable(log: Log) -> None:
    log.write(3)

    class Away(KeptAnchors):
        def all(self) -> Mapping[str, Anchor]:
            raise VaultUnavailable("away")

        def put(self, anchor: Anchor, *, takes_over: bool = False) -> Anchor | None:
            raise VaultUnavailable("away")

    running = open_log(log.directory, Away())
    running.record(FACTS, {}, {})
    running.close()
    assert [json.loads(line).get("event") for line in log.lines()][3:] == ["resumed", None]


def test_idle_daemons_leave_one_anchor(log: Log) -> None:
    for _ in range(3):
        log.write(0)
    assert [anchor.seq for anchor in log.anchors.kept.values()] == [0]
    log.write(1)
    assert (len(log.anchors.kept), log.faults()) == (1, [])


def test_a_failed_rotation_loses_entries_and_moves_no_file(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(20, max_bytes=1000)
    files = {path: path.read_bytes() for path in log.directory.iterdir()}
    running = open_log(log.directory, log.anchors, max_bytes=1)

    def refuse(path: Path) -> int:
        raise StartupError("no descriptors")

    with monkeypatch.context() as without:
        without.setattr(audit_log, "open_for_writing", refuse)
        for _ in range(20):
            running.record(FACTS, {}, {})
    assert {path: path.read_bytes() for path in log.directory.iterdir()} == files
    running.record(FACTS, {}, {})
    running.close()
    assert (running.lost, log.faults()) == (20, [("lost", 21, 40)])


def test_lost_entries_are_shipped_and_a_shipper_s_errors_logged(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    shipped: list[int] = []

    def ship(entry: Mapping[str, Any]) -> None:
        shipped.append(entry["seq"])
        raise ZeroDivisionError

    running = open_log(log.directory, log.anchors, ship=ship)
    usual, full = running._descriptor, os.open("/dev/full", os.O_WRONLY)
    running._descriptor = full
    running.record(FACTS, {}, {})
    with pytest.raises(AuditUnavailable):
        running.begin(FACTS, {})
    running._descriptor = usual
    assert running.begin(FACTS, {}) == 3
    running.close()
    os.close(full)
    assert shipped == [1, 2, 3]
    assert "entry 3" in caplog.records[-1].getMessage()


class Sometimes(KeptAnchors):
    """Anchors in a vault that is :attr:`away` at times."""

    def __init__(self) -> None:
        super().__init__()
        self.away = threading.Event()

    def put(self, anchor: Anchor, *, takes_over: bool = False) -> Anchor | None:
        if self.away.is_set():
            raise VaultUnavailable("away")
        return super().put(anchor, takes_over=takes_over)


def test_files_are_deleted_only_after_the_vault_has_recorded_it(log: Log) -> None:
    log.anchors = anchors = Sometimes()
    away = anchors.away
    log.write(60, max_bytes=1000)
    while not log.file(KEPT_FILES - 1).exists():
        log.write(1, max_bytes=1000)
    away.set()
    surplus = log.file(KEPT_FILES)
    while not surplus.exists():
        log.write(1, max_bytes=1000)
    assert log.faults() == []
    away.clear()
    while surplus.exists():
        log.write(1, max_bytes=1000)
    assert log.faults() == []


@pytest.mark.parametrize("entries", [20, 100], ids=["before all files are there", "with all files"])
def test_no_entry_is_dropped_while_the_vault_cannot_record_it(log: Log, entries: int) -> None:
    log.anchors = anchors = Sometimes()
    log.write(entries, max_bytes=1000)
    anchors.away.set()
    for _ in range(2):
        log.write(200, max_bytes=1000)
        assert log.faults() == []
    anchors.away.clear()
    # The oldest file goes with the first record, and the large one in its turn.
    for _ in range(2):
        log.write(60, max_bytes=1000)
        assert (log.faults(), log.file(KEPT_FILES).exists()) == ([], False)
    assert log.verified().last == entries + 520


def test_files_with_a_gap_after_the_oldest_are_rotated_on(log: Log) -> None:
    log.anchors = anchors = Sometimes()
    log.write(100, max_bytes=1000)
    anchors.away.set()
    while not log.file(KEPT_FILES).exists():
        log.write(1, max_bytes=1000)
    anchors.away.clear()
    for number in range(KEPT_FILES - 1, 1, -1):
        log.file(number).replace(log.file(number + 1))
    assert not log.file(2).exists()
    log.write(60, max_bytes=1000)
    assert len(list(log.directory.glob(f"{FILE_NAME}*"))) <= KEPT_FILES


def test_the_end_is_anchored_within_a_second_and_at_the_end(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "ANCHOR_SECONDS", 0.01)
    told = threading.Event()
    anchors = log.anchors
    put = anchors.put

    def noticed(anchor: Anchor, *, takes_over: bool = False) -> Anchor | None:
        other = put(anchor, takes_over=takes_over)
        if anchor.seq == 3:
            told.set()
        return other

    monkeypatch.setattr(anchors, "put", noticed)
    running = open_log(log.directory, anchors)
    for _ in range(3):
        running.record(FACTS, {}, {})
    assert told.wait(DEADLINE_SECONDS), "the vault is not told of the end of the log"
    running.record(FACTS, {}, {})
    running.close()
    assert [anchor.seq for anchor in anchors.kept.values()] == [4]


def test_a_log_can_be_verified_while_it_is_written_and_rotated(log: Log) -> None:
    running = open_log(log.directory, log.anchors, max_bytes=2000)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            running.record(FACTS, {}, {})
            running.anchor()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [log.verified() for _ in range(30)]
    finally:
        done.set()
        writer.join()
        running.close()
    assert [one.faults for one in found if one.faults] == []


def _seqs(log: Log, limit: int = 100, before: int | None = None, **wanted: Any) -> tuple[list[int], int | None]:
    found, following = search(log.path, EntryFilter(**wanted), lambda _: True, limit, before)
    return [entry["seq"] for entry in found], following


def test_entries_are_found_page_by_page_over_all_files(log: Log) -> None:
    log.write(30, max_bytes=1000)
    whole, end = _seqs(log, 1000)
    assert (whole, end) == (list(range(30, 0, -1)), None)
    pages: list[int] = []
    before: int | None = None
    while True:
        found, before = _seqs(log, 7, before)
        pages += found
        if before is None:
            break
        assert len(found) == 7
        assert before == found[-1]
    assert pages == whole
    for number in range(1, 32):
        assert _seqs(log, 3, number)[0] == [seq for seq in (number - 1, number - 2, number - 3) if seq > 0]


def test_entries_are_found_by_their_fields(log: Log) -> None:
    running = open_log(log.directory, log.anchors)
    uuid = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
    running.record({**FACTS, "client": "a", "session": "s1", "action": "fs.read", "connection": uuid}, {}, {})
    running.record({**FACTS, "client": "b", "code": "no_shell", "token": "t1"}, {"connections": [uuid]}, {})
    running.record({**FACTS, "client": 'ä\n"x', "connectionName": "web/röot"}, {}, {"connectionNames": ["x", None]})
    running.record({**FACTS, "client": uuid}, {"name": "t1 fs.read no_shell"}, {})
    running.close()
    assert _seqs(log, connection=uuid)[0] == [2, 1]
    assert _seqs(log, connection="web/röot")[0] == [3]
    assert _seqs(log, connection="x")[0] == [3]
    assert _seqs(log, caller="s1")[0] == _seqs(log, caller="a")[0] == [1]
    assert _seqs(log, caller='ä\n"x')[0] == [3]
    assert _seqs(log, action="fs.read")[0] == [1]
    assert _seqs(log, code="no_shell", token="t1")[0] == [2]
    assert _seqs(log, code="no_shell", caller="a")[0] == []
    found, _ = search(log.path, EntryFilter(), lambda entry: entry.get("token") == "t1", 100)
    assert [entry["seq"] for entry in found] == [2], "entries are shown that may not be seen"


def test_a_long_search_continues_where_it_stopped(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(10)
    times = iter(range(1000))
    monkeypatch.setattr("connmgr.audit.query.time.monotonic", lambda: float(next(times)))
    before: int | None = None
    asked = 0
    while True:
        found, following = _seqs(log, 5, before, action="nowhere")
        asked += 1
        assert found == []
        if following is None:
            break
        assert before is None or following < before, "a search makes no progress"
        before = following
    assert 1 < asked < 10


def test_hostile_content_stays_in_its_entry(log: Log) -> None:
    name = "a\nb\u2028\x1b[2J\r\x00"
    running = open_log(log.directory, log.anchors, names=lambda _: {"connectionName": name})
    hostile = 'x"}\n{"seq":99,"previous":"' + "0" * 64 + '","time":"2026-01-01T00:00:00.000Z"}\n'
    running.record({**FACTS, "client": hostile}, {"path": b"\xff\n\r{", "name": "\r\n\v\f\x85"}, {})
    running.record(FACTS, {"name": hostile * 1000}, {})
    running.close()
    assert len(log.lines()) == 2
    assert log.path.read_bytes().isascii()
    assert (log.faults(), _seqs(log)[0]) == ([], [2, 1])
    assert json.loads(log.lines()[0])["connectionName"] == name


def test_a_broken_line_hides_no_others(log: Log) -> None:
    log.write(5)
    log.change(lambda lines: lines.__setitem__(2, b'\xff\x00{"seq":"3","time":"2026-01-01T00:00:00.000Z"}\n[]\n{\n'))
    assert _seqs(log)[0] == [5, 4, 2, 1]
    assert _seqs(log, before=5)[0] == [4, 2, 1]


def test_the_anchor_has_the_log_s_position_and_no_content(log: Log) -> None:
    log.write(2)
    (anchor,) = log.anchors.kept.values()
    assert anchor == replace(anchor, first=1, seq=2, hash=CHAIN.hash(log.lines()[-1]))
    assert anchor.place == f"{os.uname().nodename}:{log.directory}"
