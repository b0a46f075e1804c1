"""The known MCP clients: where each stores its servers, in which format, and how an entry is added and removed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

INDENT = 2

CALL_SECONDS = 60
"""How long a client waits for a call, where that is written; no call takes longer than 50 seconds."""


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

    def render(self, name: str, entry: Entry) -> str:
        """Return the content of a file that has only this server."""

    def merge(self, text: str, name: str, entry: Entry | None) -> str:
        """Return ``text``, the content of a file, with ``entry`` as the server ``name``, or without it if None.

        :raises NotMergeableError: the content is not in this format.
        """


@dataclass(frozen=True)
class Json:
    """JSON whose member ``key`` has the servers by name; some clients want a ``type`` in each."""

    key: str = "mcpServers"
    type: str | None = None

    def render(self, name: str, entry: Entry) -> str:
        return self._dump({self.key: {name: self._members(entry)}})

    def merge(self, text: str, name: str, entry: Entry | None) -> str:
        content = _object(text) if text.strip() else {}
        servers = content.get(self.key, {})
        if not isinstance(servers, dict):
            raise NotMergeableError(f"its member {self.key} is not an object")
        if entry is not None:
            changed = {**servers, name: self._members(entry)}
        elif name in servers:
            changed = {other: server for other, server in servers.items() if other != name}
        else:
            return text
        return self._dump({**content, self.key: changed})

    def _members(self, entry: Entry) -> dict[str, Any]:
        kind = {} if self.type is None else {"type": self.type}
        environment = {"env": dict(entry.environment)} if entry.environment else {}
        return {**kind, "command": entry.command, "args": list(entry.arguments), **environment}

    @staticmethod
    def _dump(content: dict[str, Any]) -> str:
        try:
            return json.dumps(content, indent=INDENT, ensure_ascii=False, allow_nan=False) + "\n"
        except ValueError as error:
            raise NotMergeableError(f"it is not JSON ({error})") from error


def _object(text: str) -> dict[str, Any]:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise NotMergeableError("it has a member twice")
        return result

    try:
        content = json.loads(text, object_pairs_hook=members)
    except ValueError as error:
        raise NotMergeableError(f"it is not plain JSON ({error}); some clients allow comments there") from error
    if not isinstance(content, dict):
        raise NotMergeableError("it is not a JSON object")
    return content


@dataclass(frozen=True)
class Toml:
    """TOML with a table for each server, in the table ``key``; all else in the file stays as it is written."""

    key: str

    def render(self, name: str, entry: Entry) -> str:
        return self.merge("", name, entry)

    def merge(self, text: str, name: str, entry: Entry | None) -> str:
        # Imported here, because few clients store their servers so.
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
        from tomlkit.items import InlineTable

        try:
            document = tomlkit.parse(text)
            expected: dict[str, Any] = document.unwrap()
            servers = expected.setdefault(self.key, {})
            if not isinstance(servers, dict):
                raise NotMergeableError(f"its member {self.key} is not a table")
            if entry is None and name not in servers:
                return text
            if self.key not in document:
                document[self.key] = tomlkit.table(is_super_table=True)
            table: Any = document[self.key]
            if entry is None:
                del table[name], servers[name]
            else:
                servers[name] = table[name] = self._members(entry, inline=isinstance(table, InlineTable))
            changed = tomlkit.dumps(document)
            if {self.key: {}, **tomlkit.parse(changed).unwrap()} != expected:
                raise NotMergeableError(f"its tables {self.key} are in several places")
        except TOMLKitError as error:
            raise NotMergeableError(f"it is not TOML ({error})") from error
        return changed

    @staticmethod
    def _members(entry: Entry, *, inline: bool) -> Any:
        import tomlkit

        table = tomlkit.inline_table() if inline else tomlkit.table()
        table.add("command", entry.command)
        table.add("args", list(entry.arguments))
        if entry.environment:
            variables = tomlkit.inline_table()
            variables.update(entry.environment)
            table.add("env", variables)
        return table


@dataclass(frozen=True)
class Yaml:
    """YAML with a mapping for each server, in the mapping ``key``; all else in the file stays as it is written."""

    key: str

    def render(self, name: str, entry: Entry) -> str:
        return f"{self.key}:\n{self._block(name, entry)}"

    def merge(self, text: str, name: str, entry: Entry | None) -> str:
        # Imported here, because few clients store their servers so.
        import yaml

        try:
            expected, root = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
            if root is not None and not isinstance(root, yaml.MappingNode):
                raise NotMergeableError("it is not a YAML mapping")
            target: dict[str, Any] = {**(expected or {})}
            servers = target.get(self.key) or {}
            if not isinstance(servers, dict):
                raise NotMergeableError(f"its member {self.key} is not a mapping")
            if entry is None and name not in servers:
                return text
            target[self.key] = {other: server for other, server in servers.items() if other != name}
            if entry is not None:
                target[self.key][name] = self._members(name, entry)
            # PyYAML drops comments and quotes when it writes, so that lines are replaced instead, and what the new
            # text means is compared with what it must mean.
            changed = self._edit(text, root, name, entry)
            if {self.key: {}, **(yaml.safe_load(changed) or {})} != {self.key: {}, **target}:
                raise NotMergeableError(f"its {self.key} are not written as a block of mappings")
        except yaml.YAMLError as error:
            raise NotMergeableError(f"it is not YAML ({str(error).splitlines()[0]})") from error
        return changed

    def _edit(self, text: str, root: Any, name: str, entry: Entry | None) -> str:
        """Return the text with the lines of the server replaced, removed or added."""
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        servers = next((node for key, node in root.value if key.value == self.key), None) if root is not None else None
        pairs = servers.value if servers is not None and isinstance(servers.value, list) else []
        block = [] if entry is None else self._block(name, entry, pairs[0][0].start_mark.column if pairs else INDENT)
        if servers is None:
            return "".join([*lines, f"{self.key}:\n", *block])
        position = next((pair for pair in pairs if pair[0].value == name), None)
        if position is not None:
            start, end = position[0].start_mark.line, _end_of(position[1], lines)
            if len(pairs) == 1 and entry is None:
                # A key without a value would be null.
                lines[start - 1] = f"{lines[start - 1].rstrip()} {{}}\n"
            return "".join([*lines[:start], *block, *lines[end:]])
        if not pairs:
            at = servers.start_mark.line
            lines[at] = f"{self.key}:\n"
            return "".join([*lines[: at + 1], *block, *lines[at + 1 :]])
        at = pairs[0][0].start_mark.line
        return "".join([*lines[:at], *block, *lines[at:]])

    def _block(self, name: str, entry: Entry, indent: int = INDENT) -> str:
        # JSON's values are YAML's.
        members = (
            f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in self._members(name, entry).items()
        )
        return "".join([f"{' ' * indent}{name}:\n", *(f"{' ' * (indent + INDENT)}{member}\n" for member in members)])

    @staticmethod
    def _members(name: str, entry: Entry) -> dict[str, Any]:
        return {
            "name": name,
            "type": "stdio",
            "enabled": True,
            "cmd": entry.command,
            "args": list(entry.arguments),
            "envs": dict(entry.environment),
            "timeout": CALL_SECONDS,
        }


def _end_of(node: Any, lines: Sequence[str]) -> int:
    """Return the line after a node of YAML; the mark of a block's end stands behind the comments that follow it."""
    if getattr(node, "flow_style", True) is not False:
        return int(node.end_mark.line) + 1
    end = int(node.end_mark.line)
    while end > node.start_mark.line + 1 and lines[end - 1].lstrip()[:1] in ("", "#"):
        end -= 1
    return end


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
        # goose-docs.ai/docs/guides/config-files.
        "goose": McpClient("Goose", _configuration(home, environ) / "goose" / "config.yaml", Yaml("extensions")),
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
    return _configuration(home, environ)


def _configuration(home: Path, environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
