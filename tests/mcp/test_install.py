"""``connmgr mcp install`` and ``uninstall``: changes of a client's files, and an agent started from them."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.cli.program import CommandLine
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.mcp.agent import content, run, server_spawner
from tests.spawner import PROGRAM

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = {
    "claude": (".claude.json", "mcpServers"),
    "claude-desktop": ("config/Claude/claude_desktop_config.json", "mcpServers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "goose": ("config/goose/config.yaml", "extensions"),
    "vscode": ("config/Code/User/mcp.json", "servers"),
    "windsurf": (".codeium/windsurf/mcp_config.json", "mcpServers"),
}
BACKUP = ".before-connmgr"
CODEX = """\
# my settings
model = "one"   # not two

[mcp_servers.other]
command = "other"

[mcp_servers.connmgr]
command = "old"
args = [
  "a",
]
[mcp_servers.connmgr.env]
A = "b"

[tools]
web = true  # kept
"""


class User(CommandLine):
    """The command line of a user of ``daemon`` with an own home directory.

    The server that it configures, and tries, is forked from a process that has it loaded.
    """

    def __init__(self, daemon: Daemon, home: Path) -> None:
        super().__init__(daemon)
        self.home = home
        del self.environment["CONNMGR_PORT"]
        directories = {"HOME": home, "XDG_CONFIG_HOME": home / "config", "XDG_STATE_HOME": home / "state"}
        self.environment |= {name: str(path) for name, path in directories.items()}
        self.program = home / "bin" / "connmgr"
        self.program.parent.mkdir()
        self.program.write_text(f'#!/bin/sh\nexec {shlex.join(server_spawner().command)} "$@"\n')
        self.program.chmod(0o755)
        self._before = {one["id"] for one in daemon.client.token.query()}

    def tokens(self) -> list[dict[str, Any]]:
        """Return the tokens that were created and are valid."""
        return [
            one for one in self.daemon.client.token.query() if one["state"] == "valid" and one["id"] not in self._before
        ]


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> Iterator[User]:
    made = User(daemon, tmp_path)
    yield made
    for one in made.tokens():
        daemon.client.token.revoke(one["id"])


def _parsed(text: str, file: str) -> dict[str, Any]:
    read = {".toml": tomllib.loads, ".yaml": yaml.safe_load}.get(Path(file).suffix, json.loads)
    return dict(read(text))


def _private(file: Path) -> bool:
    return stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("client", sorted(FILES))
def test_each_client_has_its_own_file_and_form(user: User, client: str) -> None:
    file, key = FILES[client]
    user("mcp", "install", client, "--write", "--only", "*")
    text = (user.home / file).read_text()
    server = _parsed(text, file)[key]["connmgr"]
    assert server.get("type") == ("stdio" if client in ("claude", "goose", "vscode") else None)
    assert server["args"][-2:] == ["--token-file", str(user.home / f"state/connmgr/mcp/{client}.token")]
    assert _private(user.home / file)
    assert "cmgr_" not in text


def _installed(user: User, client: str) -> dict[str, Any]:
    file, key = FILES[client]
    user("mcp", "install", client, "--write", "--only", "*")
    server: dict[str, Any] = _parsed((user.home / file).read_text(), file)[key]["connmgr"]
    return server


def test_an_agent_starts_by_what_was_written(user: User) -> None:
    user.program = PROGRAM
    server, other = _installed(user, "claude"), _installed(user, "codex")
    # The last word is the file of the token.
    assert server == {**other, "args": [*other["args"][:-1], server["args"][-1]], "type": "stdio"}

    async def work() -> None:
        # No variable of the environment of the installation.
        bare = {"HOME": str(user.home), "PATH": "/usr/bin:/bin", **server["env"]}
        parameters = StdioServerParameters(command=server["command"], args=server["args"], env=bare, cwd="/")
        with anyio.fail_after(DEADLINE_SECONDS):
            async with Client(parameters, read_timeout_seconds=DEADLINE_SECONDS) as agent:
                ran = content(await agent.call_tool("run_command", {"system": "local", "command": "echo there"}))
                assert ran["stdout"] == "there\n"

    run(work)


def test_without_write_it_prints_and_changes_no_file_of_the_client(user: User) -> None:
    done = user("mcp", "install", "cursor", "--only", "*")
    assert list(done.json["mcpServers"]) == ["connmgr"]
    assert not (user.home / ".cursor").exists()
    (token,) = (user.home / "state/connmgr/mcp").iterdir()
    assert _private(token)
    assert str(token) in done.json["mcpServers"]["connmgr"]["args"]
    assert "cmgr_" not in done.output + done.errors


def test_other_content_of_the_file_stays(user: User) -> None:
    home = user.home
    before = {"numStartups": 3, "mcpServers": {"z": {"command": "z"}, "a": {"command": "ä"}}, "last": [1.5, None]}
    text = json.dumps(before, ensure_ascii=False)
    (home / "dotfiles").mkdir()
    (home / "dotfiles/claude").write_text(text)
    (home / ".claude.json").symlink_to("dotfiles/claude")
    user("mcp", "install", "claude", "--write", "--only", "*")
    after = json.loads((home / "dotfiles/claude").read_text())
    assert list(after["mcpServers"]) == ["z", "a", "connmgr"]
    assert (home / ".claude.json").is_symlink()
    assert (home / f"dotfiles/claude{BACKUP}").read_text() == text
    assert _private(home / f"dotfiles/claude{BACKUP}")
    user("mcp", "uninstall", "claude")
    assert json.loads((home / "dotfiles/claude").read_text()) == before


def test_comments_and_order_of_toml_stay(user: User) -> None:
    file = user.home / ".codex/config.toml"
    file.parent.mkdir()
    file.write_text(CODEX)
    user("mcp", "install", "codex", "--write", "--only", "*")
    written = tomllib.loads(file.read_text())
    assert written["mcp_servers"]["connmgr"]["command"] != "old"
    assert "A" not in written["mcp_servers"]["connmgr"]["env"]
    user("mcp", "uninstall", "codex")
    start, end = CODEX.index("[mcp_servers.connmgr]"), CODEX.index("[tools]")
    assert file.read_text() == CODEX[:start] + CODEX[end:]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('mcp_servers = { connmgr = { command = "x" } } # mine\n', "mcp_servers = {} # mine\n"),
        ("mcp_servers.other.command = 'x'\n", "mcp_servers.other.command = 'x'\n"),
        ('a = """\n[mcp_servers.connmgr]\n"""\n', 'a = """\n[mcp_servers.connmgr]\n"""\n'),
        ("[mcp_servers]\n# all of mine\n[a]\nb = 1\n", "[mcp_servers]\n# all of mine\n[a]\nb = 1\n"),
    ],
)
def test_a_server_goes_into_toml_however_it_is_written(user: User, text: str, left: str) -> None:
    file = user.home / FILES["codex"][0]
    file.parent.mkdir()
    file.write_text(text)
    assert _installed(user, "codex")["command"] != "x"
    user("mcp", "uninstall", "codex")
    assert _parsed(file.read_text(), file.name) == _parsed(left, file.name)
    assert ("# mine" in file.read_text(), "# all" in file.read_text()) == ("# mine" in left, "# all" in left)


GOOSE = """\
GOOSE_MODE: smart_approve  # asks
extensions:
    # mine
    developer:
        type: builtin
        enabled: true
    connmgr:
        type: stdio
        cmd: old
    # of theirs
    memory:
        type: builtin
other: [1, 2]
"""


@pytest.mark.parametrize(
    "text", ["", "a: 1", "extensions:\n", "extensions: {}\nb: 2\n", "extensions:\n  connmgr: {cmd: x}\n", GOOSE]
)
def test_a_server_goes_into_yaml_and_all_else_stays_as_it_is_written(user: User, text: str) -> None:
    file = user.home / FILES["goose"][0]
    file.parent.mkdir(parents=True)
    file.write_text(text)
    server = _installed(user, "goose")
    assert (server["name"], server["type"], server["enabled"]) == ("connmgr", "stdio", True)
    assert server["cmd"] not in ("old", "x")
    user("mcp", "uninstall", "goose")
    left, before = (yaml.safe_load(one) or {} for one in (file.read_text(), text))
    assert (left.pop("extensions", None) or {}) == {
        name: one for name, one in (before.pop("extensions", None) or {}).items() if name != "connmgr"
    }
    assert left == before
    for comment in ("# asks", "# mine", "# of theirs"):
        assert (comment in file.read_text()) == (comment in text)


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("claude", '{"mcpServers": {}} // mine'),
        ("claude", '{"a": 1, "a": 2}'),
        ("claude", '{"a": NaN}'),
        ("claude", "[]"),
        ("claude", '{"mcpServers": []}'),
        ("goose", "extensions: [1]\n"),
        ("goose", "a: [\n"),
        ("goose", "- a\n"),
        ("goose", "extensions: {other: {type: builtin}}\n"),
        ("codex", "mcp_servers = 1\n"),
        ("codex", "a =\n"),
    ],
)
def test_a_file_that_cannot_be_merged_is_left_and_no_token_made(user: User, client: str, text: str) -> None:
    file = user.home / FILES[client][0]
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(text)
    done = user("mcp", "install", client, "--write", "--only", "*", code=1)
    assert "left as it is" in done.errors
    assert file.read_text() == text
    assert not user.tokens()


def test_installing_again_revokes_the_former_token_and_uninstalling_the_last(user: User) -> None:
    user("mcp", "install", "cursor", "--write", "--only", "*")
    (first,) = user.tokens()
    user("mcp", "install", "cursor", "--write", "--only", "*")
    (second,) = user.tokens()
    assert first["id"] != second["id"]
    user("mcp", "install", "cursor", "--write", "--only", "*", "--name", "web")
    assert set(json.loads((user.home / ".cursor/mcp.json").read_text())["mcpServers"]) == {"connmgr", "web"}
    user("mcp", "uninstall", "cursor")
    assert [one["name"] for one in user.tokens()] == ["cursor-web"]
    assert set(json.loads((user.home / ".cursor/mcp.json").read_text())["mcpServers"]) == {"web"}
    assert [one.name for one in (user.home / "state/connmgr/mcp").iterdir()] == ["cursor-web.token"]


@pytest.mark.parametrize(
    ("options", "scopes"),
    [
        ([], {"connection.read", "fs.read", "fs.write", "job", "shell.any"}),
        (["--scope", "fs.read"], {"connection.read", "fs.read"}),
        (["--may", "argv:/bin/ps ax"], {"connection.read", "job", "shell.argv"}),
    ],
)
def test_the_token_may_what_the_options_say(user: User, options: list[str], scopes: set[str]) -> None:
    user("mcp", "install", "cursor", "--only", "web*", "--expires", "1h", *options)
    (token,) = user.tokens()
    assert set(token["scopes"]) == scopes
    assert token["connections"] == ["web*"]


def test_install_requires_a_choice_of_connections(user: User) -> None:
    assert "--only" in user("mcp", "install", "cursor", code=2).errors
    assert not user.tokens()


@pytest.fixture
def installed(user: User) -> bytes:
    """The token of a configured client, which nothing may replace."""
    user("mcp", "install", "cursor", "--write", "--only", "*")
    return (user.home / "state/connmgr/mcp/cursor.token").read_bytes()


def _unchanged(user: User, installed: bytes) -> None:
    assert [one["name"] for one in user.tokens()] == ["cursor"]
    (kept,) = (user.home / "state/connmgr/mcp").iterdir()
    assert kept.read_bytes() == installed
    assert not (user.home / f".cursor/mcp.json{BACKUP}").exists()


def test_a_server_that_is_not_installed_is_not_configured(user: User, installed: bytes) -> None:
    # As in an environment without the extra: the import system knows no such module.
    (user.home / "site").mkdir()
    (user.home / "site/sitecustomize.py").write_text(
        "import sys, importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'mcp' else found(name, *more)\n"
    )
    words = ("mcp", "install", "cursor", "--write", "--only", "*")
    done = user(*words, code=1, environment={"PYTHONPATH": str(user.home / "site")})
    assert "connmgr[mcp]" in done.errors
    _unchanged(user, installed)


def test_a_server_that_does_not_start_is_not_configured(user: User, installed: bytes) -> None:
    # The client's process has no such variable; the installing one may have.
    broken = user.home / "broken"
    (broken / "mcp").mkdir(parents=True)
    (broken / "mcp/__init__.py").write_text("raise ImportError('broken on purpose', name='mcp')\n")
    options = ("--only", "*", "--ask", "argv:/bin/rm *", "--approve-here")
    words = ("mcp", "install", "cursor", "--write", *options)
    done = user(*words, code=1, environment={"PYTHONPATH": str(broken)})
    assert "does not start" in done.errors
    assert "connmgr[mcp]" in done.errors
    _unchanged(user, installed)


def test_without_a_daemon_nothing_is_configured(user: User, tmp_path: Path) -> None:
    environment = {"CONNMGR_AUTH_FILE": str(tmp_path / "no daemon")}
    done = user("mcp", "install", "cursor", "--write", "--only", "*", code=3, environment=environment)
    assert "connmgr serve" in done.errors
    assert not (user.home / ".cursor").exists()
    assert not (user.home / "state/connmgr/mcp").exists()


def test_a_token_that_works_from_elsewhere_only_is_not_configured(user: User) -> None:
    words = ("mcp", "install", "cursor", "--write", "--only", "*", "--from", "192.0.2.0/24")
    done = user(*words, code=1)
    assert "may not be used from this address" in done.errors
    assert not user.tokens()
    assert not (user.home / ".cursor").exists()


def test_a_filter_that_matches_nothing_is_reported(user: User) -> None:
    done = user("mcp", "install", "cursor", "--only", "nosuch*")
    assert "--only 'nosuch*' matches no connection" in done.errors


def test_a_file_of_a_project_can_be_named(user: User) -> None:
    user("mcp", "install", "claude", "--file", ".mcp.json", "--write", "--only", "*")
    assert "connmgr" in json.loads((user.home / ".mcp.json").read_text())["mcpServers"]


def test_a_second_token_decides_where_that_is_wanted(user: User) -> None:
    options = ("--write", "--only", "web*", "--ask", "argv:/bin/rm *", "--approve-here")
    user("mcp", "install", "cursor", *options)
    server = json.loads((user.home / ".cursor/mcp.json").read_text())["mcpServers"]["connmgr"]
    kept = user.home / "state/connmgr/mcp/cursor.approver.token"
    assert server["args"][-2:] == ["--approver-token-file", str(kept)]
    assert _private(kept)
    tokens = {one["name"]: one for one in user.tokens()}
    assert set(tokens) == {"cursor", "cursor-approver"}
    approver = tokens["cursor-approver"]
    assert (approver["scopes"], approver["connections"]) == (["approval.decide"], ["web*"])
    user("mcp", "install", "cursor", "--write", "--only", "web*")
    assert [one["name"] for one in user.tokens()] == ["cursor"]
    user("mcp", "install", "cursor", *options)
    user("mcp", "uninstall", "cursor")
    assert not user.tokens()
    assert not list((user.home / "state/connmgr/mcp").iterdir())


def test_nothing_is_to_be_decided_where_no_rule_asks(user: User) -> None:
    done = user("mcp", "install", "cursor", "--only", "web*", "--may", "argv:/bin/ps ax", "--approve-here", code=2)
    assert "--ask" in done.errors
    assert not user.tokens()
