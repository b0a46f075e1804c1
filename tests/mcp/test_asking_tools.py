"""Each tool that may need an approval asks the user, and works after the approval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import LOCAL_MACHINE
from connmgr.mcp.tools import TOOLS
from tests.daemon import Daemon
from tests.mcp.agent import MODES, content, run
from tests.mcp.person import Person, chosen, client_of
from tests.rights import wire

pytestmark = pytest.mark.needs("linux")

SCOPES = ("connection.read", "shell.any", "job", "terminal", "fs.read", "fs.write")
RULES = [
    {"effect": "ask", "path": "/**"},
    {"effect": "ask", "command": "greeting"},
    {"effect": "ask", "argv": ["/bin/echo", "a"]},
    {"effect": "ask", "argv": ["/bin/sleep", "5"], "pty": True},
]

ASKING: dict[str, tuple[dict[str, Any], int, str]] = {
    "run_command": ({"argv": ["/bin/echo", "a"]}, 1, '"/bin/echo"'),
    "run_saved_command": ({"name": "greeting", "arguments": {"whom": "ada"}}, 1, '"ada"'),
    "open_terminal": ({"argv": ["/bin/sleep", "5"], "wait": 0}, 1, '"/bin/sleep"'),
    "read_file": ({"path": "{0}/file"}, 1, "fs.read on"),
    "write_file": ({"path": "{0}/new", "content": "a\nb\n"}, 1, "\n      a\n      b"),
    # The file is read again after the change is approved, and an approval for once covers only one read.
    "edit_file": ({"path": "{0}/file", "old": "old", "new": "new"}, 3, "\n      -old\n      +new"),
    "list_files": ({"path": "{0}"}, 1, "fs.read on"),
    "get_file_info": ({"path": "{0}/file"}, 1, "fs.read on"),
    "create_directory": ({"path": "{0}/directory"}, 1, "fs.write on"),
}
"""By tool: arguments, number of questions if each is approved once, and text of the question."""

ON_MANY = {"run_on_many", "search_files", "undo_changes"}
"""They ask as run_command, read_file and write_file do, but take several systems, or changes that were made before."""

NEVER = {
    "show_approval": "it shows what waits",
    "answer_prompt": "it is about a job or a terminal that was approved when it began",
    "read_run": "it is about a run that was approved when it began",
    "stop_run": "it is about a run that was approved when it began",
    "find": "no rule is about it",
    "find_file": "a directory that needs an approval is left out",
    "read_job": "it is about a job that was approved when it began",
    "write_stdin": "it is about a job that was approved when it began",
    "stop_job": "it is about a job that was approved when it began",
    "read_screen": "it is about a terminal that was approved when it was opened",
    "send_keys": "it is about a terminal that was approved when it was opened",
    "close_terminal": "it is about a terminal that was approved when it was opened",
    "list_systems": "no rule is about it",
    "list_jobs": "no rule is about it",
    "list_commands": "no rule is about it",
    "toggle_state": "no rule is about it",
}


@pytest.fixture
def saved(daemon: Daemon) -> Iterator[None]:
    """A saved command."""
    parameters = {"whom": {"re": "[a-z]+"}}
    daemon.client.command.save("greeting", ["/bin/echo", {"parameter": "whom"}], parameters=parameters)
    yield
    daemon.client.command.remove("greeting")


def test_each_tool_is_listed_as_asking_or_not() -> None:
    assert {tool.name for tool in TOOLS} == {*ASKING, *NEVER, *ON_MANY}


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("mode", MODES)
def test_a_tool_asks_and_goes_on(daemon: Daemon, tmp_path: Path, mode: str) -> None:
    asking = wire.create(daemon, *SCOPES, rules=RULES)
    deciding = wire.create(daemon, "approval.decide")
    (tmp_path / "file").write_text("old\n")

    async def work() -> None:
        person = Person()
        async with client_of(daemon, asking, mode, person, deciding) as client:
            for tool, (arguments, questions, shown) in ASKING.items():
                person.asked.clear()
                person.answers[:] = [chosen("once")] * questions
                filled = {name: _filled(value, tmp_path) for name, value in arguments.items()}
                content(await client.call_tool(tool, {"system": LOCAL_MACHINE, **filled}))
                assert len(person.asked) == questions, tool
                assert any(shown in one.message for one in person.asked), (tool, person.asked)

    run(work)
    assert (tmp_path / "file").read_text() == "new\n"
    assert (tmp_path / "new").read_text() == "a\nb\n"
    assert (tmp_path / "directory").is_dir()


def _filled(value: Any, directory: Path) -> Any:
    return value.format(directory) if isinstance(value, str) else value
