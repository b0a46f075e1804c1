"""``--url``, ``--json`` and the other options of every command, before the command and after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import CommandLine

NOWHERE = ("--url", "http://127.0.0.1:1")


@pytest.mark.parametrize("words", [("--json", "ls"), ("ls", "--json"), ("--json", "category", "ls")])
def test_json_stands_before_the_command_or_after_it(connmgr: CommandLine, words: tuple[str, ...]) -> None:
    assert isinstance(connmgr(*words).json, list | dict)


def test_json_of_exec_is_connmgr_s_before_the_command_and_the_command_s_after_it(connmgr: CommandLine) -> None:
    assert connmgr("--json", "exec", "local", "--", "echo", "--json").json["stdout"] == "--json"


@pytest.mark.parametrize("words", [(*NOWHERE, "ls"), ("ls", *NOWHERE), ("category", "ls", *NOWHERE)])
def test_a_url_stands_before_the_command_or_after_it(connmgr: CommandLine, words: tuple[str, ...]) -> None:
    assert f"No daemon answers at {NOWHERE[1]}" in connmgr(*words, code=3).errors


def test_a_url_stands_after_exec_and_the_one_after_the_command_wins(connmgr: CommandLine) -> None:
    given = ("--url", connmgr.daemon.url)
    assert connmgr(*NOWHERE, "exec", *given, "local", "--", "echo", "in").output == "in\n"
    connmgr(*given, "exec", *NOWHERE, "local", "--", "true", code=125)


def test_words_of_the_command_are_not_taken_for_connmgr_s(connmgr: CommandLine) -> None:
    for words in (("echo", *NOWHERE), ("echo", "=".join(NOWHERE)), ("echo", "--unlock", "me")):
        assert connmgr("exec", "local", *words).output == " ".join(words[1:]) + "\n"
        assert connmgr("exec", "local", "--", *words).output == " ".join(words[1:]) + "\n"
    assert "stands after the connection" in connmgr("exec", "local", *NOWHERE, "ls", code=125).errors


def test_an_api_key_file_stands_after_the_command_too(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("wrong")
    connmgr("ls", "--api-key-file", str(tmp_path / "key"), code=4)
    connmgr("ls", "--api-key-file", str(tmp_path / "missing"), code=2)


@pytest.mark.parametrize("words", [("--json", "decrypt"), ("decrypt", "--json")])
def test_a_command_without_json_says_so(connmgr: CommandLine, words: tuple[str, ...]) -> None:
    assert "connmgr decrypt prints no JSON." in connmgr(*words, code=2).errors
