"""What a token asks for keeps the interpreter for short pieces only, so that the owner's requests pass in between."""

from __future__ import annotations

import gc
import json
import types
from collections.abc import Callable
from typing import Any

import pytest

from connmgr.api.answer import BLOCK_BYTES, PIECE_CHARACTERS, _parts, as_json, encoded
from connmgr.daemon import process
from connmgr.engine.envelope import is_single
from connmgr.rights.programs import as_argv
from connmgr.terminals.emulator.screen import MAX_SETTINGS, SkippedOutput
from tests.pieces import longest_piece

LONGEST_SECONDS = 0.015
MIB = 1 << 20

ENTRY = {"name": "some file", "type": "file", "size": 0, "owner": "root", "target": None}
ANSWERS: dict[str, Any] = {
    "nothing": {},
    "a text": {"stdout": "e\u0301\U0001f600\n" * (MIB // 2)},
    "a list of texts": {"found": ["f0ec68aa-63f5-405c-b178-9a4454556d6b"] * 100_000},
    "a list of entries": {"entries": [ENTRY] * 30_000},
    "lists in lists": {"infos": [{"name": ["a", "b"], "rawData": {"host": "h"}, "cache": {}}] * 20_000},
    "a long list within a list": [{"deep": [ENTRY] * 30_000}, [1], [], "x"],
    "long texts in a list": {"lines": ["\u20ac" * 4096 * 8] * 64, "rows": 64},
    "a name that is a number": {1: 2, "b": []},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_encoded_in_pieces_as_in_one(answer: Any) -> None:
    assert encoded(answer) == json.dumps(answer, separators=(",", ":"))
    # A character takes up to twelve in JSON.
    assert max(map(len, _parts(answer))) <= 12 * 2 * PIECE_CHARACTERS
    assert longest_piece(lambda: encoded(answer)) < LONGEST_SECONDS


def test_items_of_an_answer_are_made_while_it_is_encoded() -> None:
    answer = as_json({"found": [], "names": ({"n": number} for number in range(20_000))})
    body = answer.get_data()
    assert json.loads(body) == {"found": [], "names": [{"n": number} for number in range(20_000)]}
    assert body.endswith(b"}\n")
    assert answer.calculate_content_length() == len(body)
    assert not answer.is_streamed
    blocks = list(answer.response)
    assert max(map(len, blocks)) <= BLOCK_BYTES
    assert len(blocks) <= 1 + len(body) // (BLOCK_BYTES // 2)


COMMANDS: dict[str, tuple[Callable[[str], object], str]] = {
    "a long word": (as_argv, "x" * MIB),
    "a long quoted word": (as_argv, f"echo '{'x' * MIB}'"),
    "many words": (lambda text: is_single(text.encode()), "a " * (MIB // 2)),
}


@pytest.mark.parametrize(("read", "text"), COMMANDS.values(), ids=COMMANDS)
def test_a_long_command_is_read_in_pieces(read: Callable[[str], object], text: str) -> None:
    assert longest_piece(lambda: read(text)) < LONGEST_SECONDS


def test_the_oldest_of_many_settings_are_removed_together() -> None:
    class Settings(dict):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    skipped = SkippedOutput()
    skipped._settings = Settings()
    titles = [f"\x1b]0;{number}\x07".encode() for number in range(MAX_SETTINGS * 4)]
    skipped.scan(b"".join(titles))
    assert [setting[5] for setting in skipped._settings] == [b";%d" % number for number in range(1500, 2000)]
    assert skipped._settings.looks < 5, "each removal looks for the oldest one anew"


def test_garbage_is_collected_while_nobody_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would collect it amid a request that holds many objects, which takes 0.1 seconds in one piece."""
    collected: list[bool] = []
    due = 0
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, due))
    monkeypatch.setattr(gc, "collect", lambda: collected.append(True))

    def has_collected(*, quiet: bool) -> bool:
        collected.clear()
        process.Garbage().collect_if_due(quiet=quiet)
        return bool(collected)

    assert not has_collected(quiet=True)
    due = process.COLLECT_AFTER
    assert has_collected(quiet=True)
    assert not has_collected(quiet=False)
    due = process.COLLECT_AT_LATEST
    assert has_collected(quiet=False), "garbage grows for as long as somebody computes"


def test_garbage_is_not_collected_again_and_again_by_requests_that_allocate_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, due, times = 0.0, process.COLLECT_AT_LATEST, 0

    def collect() -> None:
        nonlocal now, times
        now, times = now + 0.02, times + 1

    monkeypatch.setattr(process, "time", types.SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, due))
    monkeypatch.setattr(gc, "collect", collect)
    garbage = process.Garbage()
    now = 1.0
    for _ in range(190):
        garbage.collect_if_due(quiet=False)
        now += 0.01
    assert times == 1
    now += 0.2
    garbage.collect_if_due(quiet=True)
    assert times == 2
    due = process.COLLECT_IN_ANY_CASE
    garbage.collect_if_due(quiet=False)
    assert times == 3, "garbage grows for as long as collecting it rests"


def test_a_request_with_many_objects_begins_no_full_collection() -> None:
    before = gc.get_threshold()
    frozen = gc.isenabled()
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    gc.enable()
    try:
        process.collect_when_quiet()
        kept = [[number] for number in range(500_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        if not frozen:
            gc.disable()
    assert kept
    assert generations.count(1) > process.COLLECT_AFTER
    assert 2 not in generations
