"""Answers reveal nothing about forbidden files: they are the same whether these exist, are missing or differ."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.remote import RemoteFileSystem
from connmgr_local.transport import LocalTransport
from tests.fs.gates import SECRET, Patterns, archived, plant_ways_out, searched, sums
from tests.fs.remote_hosts import content_of

PATHS = 200
PARTS = [
    *["..", "..", "..", ".", "", "allowed", "allowed", "secret", "secret", "sub", "file", "inner", "missing", "~"],
    *["to-file", "to-missing", "to-dir", "to-missing-dir", "through", "chain", "loop", "to-above", "by-secret"],
    *["by-missing", "up", "in", "in-dir", "to-allowed", "to-allowed-file", "allowed-not"],
]
WORK: dict[str, Callable[[RemoteFileSystem, bytes], object]] = {
    "read": content_of,
    "stat": lambda place, path: files.stat_file(place, path, follow=False).type,
    "stat what it leads to": lambda place, path: files.stat_file(place, path, follow=True).type,
    "list": lambda place, path: [entry.name for entry in files.list_directory(place, path)],
    "glob": lambda place, path: [entry.name for entry in files.matching(place, path)],
    "glob below": lambda place, path: [entry.name for entry in files.matching(place, path + b"/*")],
    "archive": lambda place, path: archived(place, path).count(b"content"),
    "checksum": lambda place, path: len(sums(place, path)),
    "search": lambda place, path: len(searched(place, path, "content")),
    "mkdir": lambda place, path: files.make_directory(place, path + b"/x/y", None, parents=False, timeout=20),
    "remove": lambda place, path: files.remove(place, path + b"/x", recursive=True, timeout=20),
    "move": lambda place, path: files.move(place, b"allowed/nothing", path, overwrite=False, timeout=20),
}


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[RemoteFileSystem]]:
    """The same rules and links out, to secrets, to other secrets, and to nothing."""
    with ExitStack() as held:
        found = []
        for name in ("full", "changed", "empty"):
            folder = tmp_path / name / "folder"
            folder.mkdir(parents=True)
            plant_ways_out(folder)
            if name != "full":
                shutil.rmtree(folder / "secret")
                shutil.rmtree(folder / "allowed-not")
            if name == "changed":
                (folder / "secret").symlink_to("allowed-not")
                (folder / "missing").mkdir()
                (folder / "nowhere").write_bytes(SECRET)
            transport = LocalTransport()
            held.callback(transport.close)
            found.append(RemoteFileSystem(transport, bytes(folder), gate=Patterns(bytes(folder / "allowed") + b"/**")))
        yield found


def test_answers_do_not_depend_on_what_is_shut(worlds: list[RemoteFileSystem]) -> None:
    chosen = random.Random(7)
    reached = 0
    for _ in range(PATHS):
        path = "/".join(chosen.choices(PARTS, k=chosen.randint(1, 7))).encode() or b"."
        name = chosen.choice(list(WORK))
        answers = [_answer(place, name, path) for place in worlds]
        assert answers[0] == answers[1] == answers[2], f"{name} of {path!r} tells where a secret is"
        assert SECRET.decode() not in answers[0]
        reached += "policy_denied" not in answers[0]
    assert reached > PATHS / 10, "hardly any path led anywhere"


def _answer(place: RemoteFileSystem, name: str, path: bytes) -> str:
    try:
        answer = repr(WORK[name](place, path))
    except errors.ConnmgrError as error:
        answer = f"{error.code} {error.message}"
    return answer.replace(place.directory.decode(), "FOLDER")
