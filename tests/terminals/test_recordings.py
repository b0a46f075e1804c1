"""Recordings are listed, read as asciicasts of version 3, and searched."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from connmgr.terminals.recording import Line, Recordings, as_version_3, describe, lines, search
from tests.api.wire import send
from tests.jobs.world import LOCAL, World
from tests.rights.wire import Holder
from tests.terminals.desk import ENTER, Desk, Opened, RefusedError


@pytest.fixture
def local(running_world: World) -> str:
    return running_world.connection(LOCAL, "bash")


def _ended(desk: Desk, connection: str, command: str) -> Opened:
    terminal = desk.open(connection, command, columns=70, rows=20, record=True)
    terminal.until_ended()
    return terminal


def _cast(desk: Desk, recording: str) -> list[bytes]:
    answer = send(desk.url, "/recording/read", {"recording": recording}, {"Authorization": f"Bearer {desk.token}"})
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/x-asciicast"
    return answer.body.splitlines()


def test_a_recording_is_listed_and_read(desk: Desk, local: str) -> None:
    command = "printf 'ü\\n'; read x; echo over"
    terminal = desk.open(local, command, columns=70, rows=20, record=True)
    terminal.screen("ü")
    [active] = [one for one in desk.ask("/recording/query")["recordings"] if one["recording"] == terminal.id]
    assert active["active"]
    terminal.ask("resize", columns=90, rows=25)
    terminal.type(ENTER)
    terminal.until_ended()
    listed = desk.ask("/recording/query")["recordings"]
    [found] = [one for one in listed if one["recording"] == terminal.id]
    expected = {"connection": local, "command": command, "columns": 70, "rows": 20, "active": False}
    assert found | expected == found
    assert found["seconds"] > 0
    header, *events = map(json.loads, _cast(desk, terminal.id))
    assert header["version"] == 3
    assert header["term"] == {"cols": 70, "rows": 20, "type": "xterm-256color"}
    assert header["command"] == command
    assert abs(header["timestamp"] - time.time()) < 60
    assert "".join(data for _, kind, data in events if kind == "o") == "ü\r\n\r\nover\r\n"
    assert [data for _, kind, data in events if kind == "r"] == ["90x25"]
    assert sum(interval for interval, _, _ in events) == pytest.approx(found["seconds"])


def test_a_search_ignores_case_and_colours(desk: Desk, local: str) -> None:
    terminal = _ended(desk, local, r"printf 'one\r\n\033[1;31mPermis\033[0msion denied\033]0;title\007: x\r\nthree'")
    found = desk.ask("/recording/search", contains="permission DENIED", recordings=[terminal.id])
    assert [(one["recording"], one["text"]) for one in found["matches"]] == [(terminal.id, "Permission denied: x")]
    assert found["complete"]
    everywhere = desk.ask("/recording/search", contains="permission denied: x")
    assert terminal.id in {one["recording"] for one in everywhere["matches"]}
    assert desk.ask("/recording/search", contains="title", recordings=[terminal.id])["matches"] == []


@pytest.mark.parametrize("name", ["8d5b0f0e-53a7-4c55-9a43-3e1fb8a0c8f2", "../vault", "", "x" * 40])
def test_an_unknown_recording(desk: Desk, name: str) -> None:
    with pytest.raises(RefusedError) as refused:
        desk.ask("/recording/read", recording=name)
    assert refused.value.code == "unknown_recording"


def test_a_token_sees_the_recordings_of_its_own_terminals(desk: Desk, local: str) -> None:
    of_owner = _ended(desk, local, "echo owner")
    rules = [{"effect": "allow", "argv": ["echo", "token"], "pty": True}]
    made = desk.ask("/token/create", name="recorder", expires=600, scopes=["terminal", "shell.argv"], rules=rules)
    token = Holder(desk.url, made["id"], made["token"])
    opened = token.ok("/terminal/open", connection=local, argv=["echo", "token"], record=True)["terminal"]
    Opened(desk, opened).until_ended()
    assert [one["recording"] for one in token.ok("/recording/query")["recordings"]] == [opened]
    assert token.refused("/recording/read", recording=of_owner.id) == "unknown_recording"
    assert token.refused("/recording/search", contains="owner", recordings=[of_owner.id]) == "unknown_recording"
    assert token.ok("/recording/search", contains="owner")["matches"] == []
    assert {of_owner.id, opened} <= {one["recording"] for one in desk.ask("/recording/query")["recordings"]}


def _recorded(directory: Path, *output: bytes) -> Path:
    clock = iter(range(1000))
    recordings = Recordings(directory, limit=1 << 20, total=1 << 30, days=0)
    recording = recordings.begin("8d5b0f0e-53a7-4c55-9a43-3e1fb8a0c8f2", 80, 24, "xterm")
    recording._began, recording._clock = 0, lambda: next(clock)
    for piece in output:
        recording.output(piece)
    recording.close()
    path = recordings.path("8d5b0f0e-53a7-4c55-9a43-3e1fb8a0c8f2")
    assert path is not None
    return path


def test_sequences_may_be_cut_between_two_events(tmp_path: Path) -> None:
    path = _recorded(tmp_path, b"a\x1b[3", b"1mb\x1b]0;ti", b"tle\x07c\r\nd", b"\x1b[2;1", b"He")
    assert list(lines(path)) == [Line(0.0, "abc"), Line(2.0, "d"), Line(4.0, "e")]


def test_a_long_line_is_searched_across_its_parts(tmp_path: Path) -> None:
    path = _recorded(tmp_path, b"x" * 8188 + b"needle" + b"y" * 8192)
    recorded = describe(path)
    assert recorded is not None
    found = [line for line in search(recorded, "NEEDLE") if line is not None]
    assert found
    assert all("needle" in line.text and len(line.text) <= 300 for line in found)


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = _recorded(tmp_path, b"one\r\n", b"two\r\n")
    with path.open("a") as file:
        file.write('[9.5, "o", "thr')
    recorded = describe(path)
    assert recorded is not None
    assert recorded.seconds == 1
    _, *events = b"".join(as_version_3(recorded)).splitlines()
    assert [json.loads(event) for event in events] == [[0.0, "o", "one\r\n"], [1.0, "o", "two\r\n"]]


@pytest.mark.parametrize(
    "content", ["", "nonsense\n", "[]\n", '{"version": 1}\n', '{"version": 2}\n', '{"version": 2, "env": 1}\n']
)
def test_other_files_in_the_directory_are_no_recordings(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.cast").write_text(content)
    assert describe(tmp_path / "other.cast") is None
