"""Files, as an agent reads, writes and edits them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from connmgr.mcp.tools import files
from tests.daemon import Daemon
from tests.mcp.agent import LOCAL, MODES
from tests.mcp.near import Agent, run
from tests.rights import wire


@pytest.mark.parametrize("mode", MODES)
def test_a_file_is_written_read_and_edited(daemon: Daemon, tmp_path: Path, mode: str) -> None:
    async def work(agent: Agent) -> None:
        await agent.call("run_command", **LOCAL, command=f"cd {tmp_path}")
        text = "first = 1\nsecond = 2\nthird = ü\n"
        written = await agent.call("write_file", **LOCAL, path="a.conf", content=text, mode="0640")
        assert written["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert (await agent.call("read_file", **LOCAL, path="a.conf"))["content"] == text
        edited = await agent.call("edit_file", **LOCAL, path="a.conf", old="second = 2\n", new="second = ß2ß\n\n")
        assert "-second = 2\n+second = ß2ß\n+\n third" in edited["diff"]
        changed = tmp_path / "a.conf"
        assert changed.read_text() == "first = 1\nsecond = ß2ß\n\nthird = ü\n"
        assert changed.stat().st_mode & 0o777 == 0o640
        shown = await agent.call("get_file_info", **LOCAL, path="a.conf")
        assert (shown["type"], shown["mode"], shown["size"]) == ("file", "0640", changed.stat().st_size)

    run(daemon, work, mode=mode)


@pytest.mark.parametrize(
    ("content", "old", "code"),
    [
        (b"a b a\n", "a", "text_not_unique"),
        (b"a b\n", "A", "text_not_found"),
        (b"a\r\nb\r\n", "a\nb", "text_not_found"),
        (b"a\xff b\n", "b", "not_text"),
        (b"a\0b\n", "c", "text_not_found"),
    ],
)
def test_only_what_stands_there_once_is_replaced(
    daemon: Daemon, tmp_path: Path, content: bytes, old: str, code: str
) -> None:
    (tmp_path / "file").write_bytes(content)

    async def work(agent: Agent) -> None:
        assert await agent.refused("edit_file", **LOCAL, path=str(tmp_path / "file"), old=old, new="x") == code
        assert (tmp_path / "file").read_bytes() == content

    run(daemon, work)


def test_an_edit_loses_nothing_that_somebody_else_has_written(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("one\ntwo\n")
    diff = files._diff

    def meanwhile(*arguments: Any) -> str:
        file.write_text("one\ntwo\nthree\n")
        return diff(*arguments)

    monkeypatch.setattr(files, "_diff", meanwhile)

    async def work(agent: Agent) -> None:
        assert await agent.refused("edit_file", **LOCAL, path=str(file), old="two", new="2") == "file_changed"
        assert file.read_text() == "one\ntwo\nthree\n"
        await agent.call("edit_file", **LOCAL, path=str(file), old="two", new="2")
        assert file.read_text() == "one\n2\nthree\n"

    run(daemon, work)


def test_parts_of_a_file_are_read_by_bytes_and_by_lines(daemon: Daemon, tmp_path: Path) -> None:
    lines = "".join(f"{number} é\n" for number in range(1, 60001))
    (tmp_path / "file").write_text(lines)
    size = len(lines.encode())

    async def work(agent: Agent) -> None:
        async def read(**options: Any) -> dict[str, Any]:
            return await agent.call("read_file", **LOCAL, path=str(tmp_path / "file"), **options)

        part = await read(firstLine=59999, lines=1)
        assert (part["content"], part["size"]) == ("59999 é\n", size)
        assert (await read(offset=part["next"]))["content"] == "60000 é\n"
        assert (await read(firstLine=60001))["content"] == (await read(offset=size + 5))["content"] == ""
        first = await read(lines=2)
        assert (first["content"], first["start"], first["next"]) == ("1 é\n2 é\n", 0, 10)
        assert (await read(offset=2, maxBytes=1))["content"] == "", "a half of a character is no character"
        whole, at = "", 0
        while at < size:
            piece = await read(offset=at, maxBytes=99999)
            whole, at = whole + piece["content"], piece["next"]
        assert whole == lines

    run(daemon, work)


def test_binary_files_are_reported_and_read_in_base64(daemon: Daemon, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4
    (tmp_path / "file").write_bytes(b"\x1b[2Jok\xff\n")

    async def work(agent: Agent) -> None:
        path = str(tmp_path / "binary")
        encoded = base64.b64encode(data).decode()
        await agent.call("write_file", **LOCAL, path=path, content=encoded, encoding="base64")
        assert (tmp_path / "binary").read_bytes() == data
        assert await agent.refused("read_file", **LOCAL, path=path) == "not_text"
        read = await agent.call("read_file", **LOCAL, path=path, binary=True)
        assert base64.b64decode(read["content"]) == data
        odd = await agent.call("read_file", **LOCAL, path=str(tmp_path / "file"))
        assert (odd["content"], odd["exact"]) == ("\\x1b[2Jok\ufffd\n", False)
        assert await agent.refused("write_file", **LOCAL, path=path, content="!", encoding="base64") == (
            "invalid_arguments"
        )
        assert await agent.refused("read_file", **LOCAL, path=str(tmp_path)) == "wrong_file_type"
        assert await agent.refused("read_file", **LOCAL, path=str(tmp_path / "missing")) == "no_such_file"

    run(daemon, work)


def test_a_new_file_replaces_none(daemon: Daemon, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        new: dict[str, Any] = {**LOCAL, "path": str(tmp_path / "new"), "createOnly": True}
        await agent.call("write_file", **new, content="null")
        assert await agent.refused("write_file", **new, content="second") == "file_exists"
        assert (tmp_path / "new").read_text() == "null"

    run(daemon, work)


def test_directories_are_listed_searched_and_made(daemon: Daemon, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        await agent.call("create_directory", **LOCAL, path=str(tmp_path / "a/b"), mode="0750")
        await agent.call("run_command", **LOCAL, command=f"cd {tmp_path}/a; touch one.txt two.txt b/three.txt")
        (tmp_path / "a/link\x1b").symlink_to("nowhere")
        listed = await agent.call("list_files", **LOCAL)
        assert [(one["name"], one["type"]) for one in listed["entries"]] == [
            *(("b", "directory"), ("link\\x1b", "link"), ("one.txt", "file"), ("two.txt", "file"))
        ]
        below = await agent.call("list_files", **LOCAL, path="..", recursive=True, limit=2)
        assert [len(below["entries"]), below["omitted"]] == [2, 4]
        found = await agent.call("find_file", **LOCAL, pattern="*/*.txt")
        assert [one["name"] for one in found["entries"]] == [f"{tmp_path}/a/b/three.txt"]
        assert (await agent.call("find_file", **LOCAL, pattern="*.none"))["entries"] == []
        assert await agent.refused("create_directory", **LOCAL, path="b", parents=False) == "file_exists"
        link = await agent.call("get_file_info", **LOCAL, path="link\x1b", follow=False)
        assert (link["type"], link["target"]) == ("link", "nowhere")

    run(daemon, work)


def test_a_token_s_paths_bound_what_is_read_and_written(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").write_text("secret")
    (tmp_path / "open/way").symlink_to(tmp_path / "closed")
    rules = [{"effect": "allow", "action": f"fs.{of}", "path": f"{tmp_path}/open/**"} for of in ("read", "write")]
    holder = wire.create(daemon, "connection.read", "fs.read", "fs.write", rules=rules)

    async def work(agent: Agent) -> None:
        path = f"{tmp_path}/open/file"
        await agent.call("write_file", **LOCAL, path=path, content="a\n")
        await agent.call("edit_file", **LOCAL, path=path, old="a", new="b")
        assert (await agent.call("read_file", **LOCAL, path=path))["content"] == "b\n"
        for other in (f"{tmp_path}/closed", f"{tmp_path}/open/way", f"{tmp_path}/missing"):
            assert await agent.refused("read_file", **LOCAL, path=other) == "policy_denied"
            assert await agent.refused("edit_file", **LOCAL, path=other, old="s", new="x") == "policy_denied"
            assert await agent.refused("write_file", **LOCAL, path=other, content="x") == "policy_denied"
        assert (tmp_path / "closed").read_text() == "secret"

    run(daemon, work, holder=holder)


def test_a_file_that_is_too_large_is_not_edited(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_EDITED_BYTES", 1000)
    (tmp_path / "file").write_text("x" * 1001)

    async def work(agent: Agent) -> None:
        assert await agent.refused("edit_file", **LOCAL, path=str(tmp_path / "file"), old="x", new="y") == (
            "file_too_large"
        )

    run(daemon, work)


def test_files_without_a_size_are_read(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        assert (await agent.call("read_file", **LOCAL, path="/proc/self/status"))["content"].startswith("Name:")

    run(daemon, work)
