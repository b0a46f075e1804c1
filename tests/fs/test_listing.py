"""Listings of any length are in order, complete, and sent as they are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connmgr.api.answer import PIECE_ENTRIES, WHOLE_ENTRIES, as_listing
from connmgr.contract.message import to_json
from connmgr.fs.listing import RUN_ENTRIES, Listing
from tests.daemon import Daemon
from tests.fs.wire import Caller

SIZES = (
    0,
    1,
    PIECE_ENTRIES - 1,
    PIECE_ENTRIES,
    PIECE_ENTRIES + 1,
    WHOLE_ENTRIES,
    WHOLE_ENTRIES + 1,
    RUN_ENTRIES,
    2 * RUN_ENTRIES + 1,
)


def record(number: int) -> bytes:
    return b"644=f:%d:1700000000.25:0:0:root:UNKNOWN:/./%d\n" % (number, number)


@pytest.mark.parametrize("size", SIZES)
def test_listings_match_their_schema(size: int) -> None:
    listing = Listing(record(number * 7919 % max(size, 1)) for number in range(size))
    assert len(listing) == size
    written = json.loads(b"".join(as_listing(listing).iter_encoded()))
    assert written == {"entries": [to_json(entry) for entry in listing]}
    assert [entry["name"] for entry in written["entries"]] == sorted(str(number) for number in range(size))


@pytest.mark.parametrize("size", [WHOLE_ENTRIES, WHOLE_ENTRIES + 1])
def test_a_long_listing_comes_in_chunks(daemon: Daemon, tmp_path: Path, size: int) -> None:
    caller = Caller(daemon)
    caller.start()
    for number in range(size):
        (tmp_path / f"{number}").touch()
    with caller.reading(tmp_path, "/fs/list") as response:
        names = [entry["name"] for entry in json.loads(response.read())["entries"]]
    assert names == sorted(str(number) for number in range(size))
    assert (response.headers["Content-Length"] is None) == (size > WHOLE_ENTRIES)


def test_an_error_before_the_first_entry_is_answered_as_one(daemon: Daemon, tmp_path: Path) -> None:
    caller = Caller(daemon)
    caller.start()
    (tmp_path / "file").touch()
    for path, code in ((tmp_path / "none", "no_such_file"), (tmp_path / "file", "wrong_file_type")):
        with caller.reading(path, "/fs/list") as response:
            assert (response.status, json.loads(response.read())["code"]) == (400, code)
