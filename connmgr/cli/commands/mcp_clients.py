"""The known MCP clients: where each stores its servers, in which format, and how an entry is added and removed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


INDENT = 2


class NotMergeableError(Exception):
    """A file cannot be changed without the risk of losing content; the message says what is wrong with it."""


@dataclass(frozen=True)
class Entry:
    """A server that a client starts: a program, its words, and variables added to the client's environment."""

    command: str
    arguments: Sequence[str]
    environment: Mapping[str, str]


class Form(Protocol):
    """The format in which a client stores its servers."""

    def shown(self, name: str, entry: Entry) -> str:
        """Return the content of a file that has only this server."""

    def merged(self, text: str, name: str, entry: Entry | None) -> str:
        """Return ``text``, the content of a file, with ``entry`` as the server ``name``, or without it if None.

        :raises NotMergeableError: the content is not in this format.
        """


@dataclass(frozen=True)
class Json:
    """JSON whose member ``key`` has the servers by name; some clients want a ``type`` in each."""

    key: str = "mcpServers"
    type: str | None = None

    def shown(self, name: str, entry: Entry) -> str:
        return self._written({self.key: {name: self._members(entry)}})

    def merged(self, text: str, name: str, entry: Entry | None) -> str:
        content = _object(text) if text.strip() else {}
        servers = content.get(self.key, {})
        if not isinstance(servers, dict):
            raise NotMergeableError(f"its member {self.key} is not an object")
        if entry is not None:
            changed = {**servers, name: self._members(entry)}
        elif name in servers:
            changed = {known: server for known, server in servers.items() if known != name}
        else:
            return text
        return self._written({**content, self.key: changed})

    def _members(self, entry: Entry) -> dict[str, Any]:
        kind = {} if self.type is None else {"type": self.type}
        environment = {"env": dict(entry.environment)} if entry.environment else {}
        return {**kind, "command": entry.command, "args": list(entry.arguments), **environment}

    @staticmethod
    def _written(content: dict[str, Any]) -> str:
        try:
            return json.dumps(content, indent=INDENT, ensure_ascii=False, allow_nan=False) + "\n"
        except ValueError as error:
            raise NotMergeableError(f"it is not JSON ({error})") from error


def _object(text: str) -> dict[str, Any]:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise NotMergeableError("it has a member twice")
        return made

    try:
        content = json.loads(text, object_pairs_hook=members)
    except ValueError as error:
        raise NotMergeableError(f"it is no plain JSON ({error}); some clients allow comments there") from error
    if not isinstance(content, dict):
        raise NotMergeableError("it is not a JSON object")
    return content


@dataclass(frozen=True)
class Toml:
    """TOML with a table for each server, in the table ``key``."""

    key: str

    def shown(self, name: str, entry: Entry) -> str:
        lines = [
            f"[{self.key}.{name}]",
            f"command = {_quoted(entry.command)}",
            f"args = [{', '.join(map(_quoted, entry.arguments))}]",
        ]
        if entry.environment:
            pairs = (f"{variable} = {_quoted(value)}" for variable, value in entry.environment.items())
            lines.append(f"env = {{ {', '.join(pairs)} }}")
        return "\n".join(lines) + "\n"

    def merged(self, text: str, name: str, entry: Entry | None) -> str:
        if entry is None and name not in _table(text).get(self.key, {}):
            return text
        # Lines are changed, to keep comments and order. Parsing the result shows whether the right lines were changed.
        left = self._without(text, name).rstrip("\n")
        table = [] if entry is None else [self.shown(name, entry)]
        changed = "\n\n".join([left, *table] if left else table).rstrip("\n") + "\n"
        servers = {**_table(text).get(self.key, {})}
        servers.pop(name, None)
        if entry is not None:
            servers |= _table(self.shown(name, entry))[self.key]
        if _table(changed) | {self.key: {}} != _table(text) | {self.key: {}}:
            raise NotMergeableError("its tables are not separate")
        if _table(changed).get(self.key, {}) != servers:
            raise NotMergeableError(f"it does not write the table {self.key}.{name} by lines of its own")
        return changed

    def _without(self, text: str, name: str) -> str:
        quoted = f"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
        own = re.compile(rf"\s*\[\s*{re.escape(self.key)}\s*\.\s*{quoted}\s*[].]")
        kept, inside = [], False
        for line in text.splitlines(keepends=True):
            if line.lstrip().startswith("["):
                inside = own.match(line) is not None
            if not inside:
                kept.append(line)
        return "".join(kept)


def _table(text: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotMergeableError(f"it is no TOML ({error})") from error
    return content


def _quoted(text: str) -> str:
    # A JSON string is a TOML string too, except for one character that no path has.
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class McpClient:
    """A client: its name for people, the user's file that lists its servers, and the format of that file."""

    title: str
    file: Path
    form: Form


def mcp_clients(home: Path, environ: Mapping[str, str]) -> dict[str, McpClient]:
    """Return the clients that can be configured, by the names that commands take."""
    applications = _applications(home, environ)
    codex = Path(environ.get("CODEX_HOME") or home / ".codex")
    return {
        # code.claude.com/docs/en/mcp: servers of the user; .mcp.json of a project has the same form.
        "claude": McpClient("Claude Code", home / ".claude.json", Json(type="stdio")),
        # modelcontextprotocol.io/docs/develop/connect-local-servers.
        "claude-desktop": McpClient("Claude Desktop", applications / "Claude" / "claude_desktop_config.json", Json()),
        # developers.openai.com/codex/mcp.
        "codex": McpClient("Codex", codex / "config.toml", Toml("mcp_servers")),
        # cursor.com/docs/context/mcp; .cursor/mcp.json of a project has the same form.
        "cursor": McpClient("Cursor", home / ".cursor" / "mcp.json", Json()),
        # geminicli.com/docs/tools/mcp-server; .gemini/settings.json of a project has the same form.
        "gemini": McpClient("Gemini CLI", home / ".gemini" / "settings.json", Json()),
        # code.visualstudio.com/docs/copilot/reference/mcp-configuration; .vscode/mcp.json has the same form.
        "vscode": McpClient("VS Code", applications / "Code" / "User" / "mcp.json", Json("servers", "stdio")),
        # docs.windsurf.com/windsurf/cascade/mcp.
        "windsurf": McpClient("Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json", Json()),
    }


def _applications(home: Path, environ: Mapping[str, str]) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
