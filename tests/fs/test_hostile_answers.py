"""Hostile answers of a helper are read in little time, and a malformed one is a failed transfer."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from connmgr import errors
from connmgr.engine.rpc import Helper, Helpers
from connmgr.fs import files, remote
from connmgr.fs.path_rules import Gate
from connmgr.fs.remote import RemoteFileSystem
from connmgr_local.transport import LocalTransport
from tests.fs.gates import Patterns
from tests.fs.test_helper import Scripted
from tests.hostile import fill, quickly

DIGITS = b"7" * (1 << 20)
GOOD = [b"777=l", b"20", b"1.0", b"0", b"0", b"root", b"root"]
RECORD = b"MARK ok\nMARK %s"
NO_NUMBERS = [b"-1", b"+1", b"1_0", b" 1", b"", b"x", DIGITS, b"\xc2\xb2"]


def place(answer: bytes, program: Any, piece: int = 32 << 10, gate: Gate | None = None) -> RemoteFileSystem:
    """Return a place whose helper answers ``answer``, in which MARK stands for the mark."""
    channel, helpers = Scripted([]), Helpers()
    helpers.leave(Helper(channel, "word", set(program.parts)))
    channel.answer(answer, range(0, len(answer), piece))
    return RemoteFileSystem(LocalTransport(), b"/", helpers, gate)


@pytest.mark.parametrize("pattern", [b"x", b"\n", b"MARK", b"MARK o", b"MARK ok", b"MARK ok x"])
@pytest.mark.parametrize("piece", [512, 32 << 10])
def test_an_answer_is_looked_for_in_linear_time(pattern: bytes, piece: int) -> None:
    remote_host = place(fill(pattern, 16 << 20 if piece > 512 else 1 << 20), remote.READ, piece)
    with quickly(), pytest.raises(errors.TransferFailed):
        files.FileReader(remote_host, b"file")


@pytest.mark.parametrize("mode", [*NO_NUMBERS, DIGITS + b"=f", b"f" * 20, b"9=f", b"f=f"], ids=lambda mode: mode[:8])
def test_a_mode_that_no_file_has_is_a_failed_transfer(mode: bytes) -> None:
    describe([mode, *GOOD[1:]])


@pytest.mark.parametrize("field", [1, 3, 4])
@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda number: number[:8])
def test_a_malformed_number_fails_the_transfer(number: bytes, field: int) -> None:
    describe([*GOOD[:field], number, *GOOD[field + 1 :]])


@pytest.mark.parametrize("time", [b"--1", b"+1", b"1_0", b"1.-5", DIGITS], ids=lambda time: time[:8])
def test_a_malformed_time_fails_the_transfer(time: bytes) -> None:
    describe([*GOOD[:2], time, *GOOD[3:]])


def describe(fields: list[bytes]) -> None:
    remote_host = place(RECORD % b":".join([*fields, b"/link\n"]) + b"MARK target \nxMARK over 0\n", remote.STAT)
    with quickly(), pytest.raises(errors.TransferFailed):
        files.stat_file(remote_host, b"/link", follow=False)


def test_a_size_below_zero_is_a_failed_transfer() -> None:
    with pytest.raises(errors.TransferFailed):
        files.FileReader(place(b"MARK ok -5\nMARK over 0\n", remote.READ), b"file")


def test_a_description_of_one_file_has_no_megabytes() -> None:
    answer = RECORD % b":".join([*GOOD, b"/link\n"]) + b"MARK target " + fill(b"x") + b"\nxMARK over 0\n"
    remote_host = place(answer, remote.STAT)
    with quickly(), pytest.raises(errors.TransferFailed):
        files.stat_file(remote_host, b"/link", follow=False)


@pytest.mark.parametrize("piece", [512, 32 << 10])
@pytest.mark.parametrize("pattern", [b"x", b"MARK", b"MARK ", b"MARK 0=f:0:0:0:0:::/./a\n"])
def test_a_listing_is_read_in_linear_time(pattern: bytes, piece: int) -> None:
    size = 8 << 20 if piece > 512 else 1 << 19
    remote_host = place(b"MARK ok\n" + fill(pattern, size) + b"MARK endMARK over 0\n", remote.LIST, piece)
    with quickly(), contextlib.suppress(errors.TransferFailed):
        files.list_directory(remote_host, b".")


@pytest.mark.parametrize(
    "between", [b"", b"MARK x", b"MARK 0=f:0:0:0:0:::/./a\0b\n", b"MARK " + b"x" * (1 << 20)], ids=lambda text: text[:8]
)
@pytest.mark.parametrize("end", [b"MARK end", b"MARK en", b""])
def test_a_listing_with_an_end_and_nothing_but_entries_is_one(between: bytes, end: bytes) -> None:
    entry = b"MARK 777=l:20:1.0:0:0:root:root:/./%d\n"
    answer = b"MARK ok\n" + entry % 2 + between + entry % 1 + end + b"MARK over 0\n"
    remote_host = place(answer, remote.LIST)
    if between or end != b"MARK end":
        with pytest.raises(errors.TransferFailed):
            files.list_directory(remote_host, b".")
    else:
        assert [entry.name for entry in files.list_directory(remote_host, b".")] == [b"1", b"2"]


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"MARK ask read MARK\n",
        b"MARK ask read relative MARK\n",
        b"MARK ask chmod /allowed MARK\n",
        b"MARK ask /allowed MARK\n",
        b"MARK ask read /allowed\n",
        b"MARK ask read /" + b"x" * (1 << 20) + b" MARK\n",
    ],
    ids=lambda question: question[:24],
)
def test_malformed_questions_are_not_answered(question: bytes) -> None:
    gate = Patterns(b"/allowed/**")
    remote_host = place(question + b"MARK ok 5\nhelloMARK over 0\n", remote.gated(remote.READ), gate=gate)
    with quickly(), pytest.raises(errors.TransferFailed):
        files.FileReader(remote_host, b"file")
    assert gate.asked == []


def test_the_owner_s_files_are_not_asked_about() -> None:
    remote_host = place(b"MARK ask read /allowed MARK\nMARK ok 5\nhelloMARK over 0\n", remote.READ)
    with pytest.raises(errors.TransferFailed):
        files.FileReader(remote_host, b"file")
