"""``connmgr undo``: what it shows, what it asks, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.wire import LOCAL, send
from tests.cli.program import CommandLine, finish
from tests.rights.wire import Holder, create


@pytest.fixture
def agent(connmgr: CommandLine) -> Holder:
    holder = create(connmgr.daemon, "fs.write", name="careless")
    holder.ok("/shell/start", connection=LOCAL)
    return holder


def change(holder: Holder, path: Path, content: bytes) -> str:
    headers = {"Authorization": f"Bearer {holder.secret}", "Content-Type": "application/octet-stream"}
    blob = send(holder.url, "/fs/blob", content, headers).json["blob"]
    return str(holder.ok("/fs/write", connection=LOCAL, blob=blob, path=str(path))["changes"][0])


def test_it_shows_the_difference_and_asks(connmgr: CommandLine, agent: Holder, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("port=80\n")
    change(agent, file, b"port=8080\n")
    terminal = connmgr.on_terminal("undo", "--token", agent.id)
    terminal.expect_exact("-port=8080")
    terminal.expect_exact("+port=80")
    terminal.expect_exact("Undo 1 change? [y/N]: ")
    terminal.sendline("n")
    assert finish(terminal)[0] == 0
    assert file.read_text() == "port=8080\n"
    terminal = connmgr.on_terminal("undo", "--token", agent.id)
    terminal.expect_exact("Undo 1 change? [y/N]: ")
    terminal.sendline("y")
    terminal.expect_exact("restored")
    assert finish(terminal)[0] == 0
    assert file.read_text() == "port=80\n"


def test_without_a_terminal_it_needs_a_yes(connmgr: CommandLine, agent: Holder, tmp_path: Path) -> None:
    change(agent, tmp_path / "new", b"x")
    refused = connmgr("undo", "--token", agent.id, code=2)
    assert "--yes" in refused.errors
    assert (tmp_path / "new").exists()
    assert "Nothing was changed" in connmgr("undo", "--token", agent.id, "--dry-run").errors
    connmgr("undo", "--token", agent.id, "--yes")
    assert not (tmp_path / "new").exists()
    assert connmgr("undo", "--token", agent.id, "--yes").output == "Nothing to undo.\n"


def test_what_somebody_changed_since_is_told_and_left(connmgr: CommandLine, agent: Holder, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for path in (mine, theirs):
        path.write_text("before")
        change(agent, path, b"after")
    theirs.write_text("somebody's")
    done = connmgr("undo", "--token", agent.id, "--yes", code=1)
    assert "Changed since by somebody else" in done.output
    assert (mine.read_text(), theirs.read_text()) == ("before", "somebody's")
    [told] = connmgr("undo", "--token", agent.id, "--dry-run", "--json", code=1).json
    assert (told["path"], told["state"]) == (str(theirs), "changed_since")
    connmgr("undo", "--token", agent.id, "--yes", "--force")
    assert theirs.read_text() == "before"


def test_an_undo_is_undone_by_its_id(connmgr: CommandLine, agent: Holder, tmp_path: Path) -> None:
    file = tmp_path / "file"
    made = change(agent, file, b"after")
    [done] = connmgr("undo", made[:8], "--yes", "--json").json
    assert not file.exists()
    connmgr("undo", done["restoredAs"], "--yes")
    assert file.read_bytes() == b"after"
    # What it had undone is there again, and can be undone again.
    assert [one["change"] for one in connmgr("undo", "--token", agent.id, "--dry-run", "--json").json] == [made]


def test_it_names_what_it_needs(connmgr: CommandLine) -> None:
    assert "--token" in connmgr("undo", code=2).errors
    assert "0 changes" in connmgr("undo", "ffffffff", "--yes", code=None).errors
