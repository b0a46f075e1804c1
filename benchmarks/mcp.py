"""The MCP server: from its start to an answered ``initialize``, and a tool call beside its HTTP calls.

Run it with ``python -m benchmarks.mcp``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.daemon import temporary_daemon
from benchmarks.timing import interleaved, print_timings
from connmgr.client import LOCAL_MACHINE
from tests.cli.program import DIRECTORY, CommandLine
from tests.mcp.bridge import INITIALIZE, SESSION, HttpBridge, bearer
from tests.rights import wire

REPEAT = "python -m benchmarks.mcp"
CONNMGR = str(DIRECTORY / "connmgr")
SCOPES = ("connection.read", "shell.any", "job")
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
DATA = b"data: "


def main() -> None:
    """Measure the start, then tools by both transports."""
    with temporary_daemon() as daemon:
        _start(CommandLine(daemon), wire.create(daemon, *SCOPES))
        _calls(CommandLine(daemon), wire.create(daemon, *SCOPES))


class _Stdio:
    """An initialized server on standard input and output; each call is a line."""

    def __init__(self, connmgr: CommandLine, holder: wire.Holder) -> None:
        self._process = subprocess.Popen(
            [CONNMGR, "mcp"],
            env={**connmgr.environment, "CONNMGR_TOKEN": holder.secret},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._last = 0
        self._send(INITIALIZE)
        self._answer(1)
        self._send(INITIALIZED)

    def __enter__(self) -> _Stdio:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def kill(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._process.communicate()

    def call(self, tool: str, **arguments: Any) -> None:
        self._last += 1
        self._send(_call(self._last, tool, arguments))
        _require(self._answer(self._last))

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self, id: int) -> dict[str, Any]:
        assert self._process.stdout is not None
        while True:
            message: dict[str, Any] = json.loads(self._process.stdout.readline())
            if message.get("id") == id:
                return message


class _Http:
    """A session with a server over one HTTP connection."""

    def __init__(self, bridge: HttpBridge, holder: wire.Holder) -> None:
        parts = urlsplit(bridge.url)
        self._path = parts.path
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._headers = {
            **bearer(holder, bridge.initialize(holder)),
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        assert SESSION in self._headers
        self._last = 1
        self._send(INITIALIZED)

    def close(self) -> None:
        self._connection.close()

    def call(self, tool: str, **arguments: Any) -> None:
        self._last += 1
        answer = self._send(_call(self._last, tool, arguments))
        lines = (line.removeprefix(DATA) for line in answer.splitlines() if line.startswith(DATA))
        _require(next(message for message in map(json.loads, lines) if message.get("id") == self._last))

    def _send(self, message: Mapping[str, Any]) -> bytes:
        self._connection.request("POST", self._path, json.dumps(message), self._headers)
        return self._connection.getresponse().read()


def _call(id: int, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def _require(answer: Mapping[str, Any]) -> None:
    if answer["result"].get("isError"):
        sys.exit(f"A tool refuses: {answer['result']['content']}")


def _start(connmgr: CommandLine, holder: wire.Holder) -> None:
    def run(*argv: str) -> Callable[[], object]:
        return lambda: subprocess.run(argv, env=connmgr.environment, stdout=subprocess.DEVNULL, check=True)

    def initialized() -> None:
        _Stdio(connmgr, holder).kill()

    subjects = {
        "connmgr --version": run(CONNMGR, "--version"),
        "importing the SDK's server": run(sys.executable, "-c", "import mcp.server.mcpserver"),
        "connmgr mcp, initialized": initialized,
    }
    taken = interleaved(subjects, calls=1, rounds=7)
    title = "Whole processes; connmgr mcp until it has answered initialize"
    print_timings(title, taken, base="connmgr --version", repeat=REPEAT)


def _calls(connmgr: CommandLine, holder: wire.Holder) -> None:
    client = connmgr.daemon.client
    client.shell.start(LOCAL_MACHINE)

    def job() -> None:
        output = client.jobs.start(LOCAL_MACHINE, "true").output(wait=20)
        assert output.ended

    with ExitStack() as stack:
        stdio = stack.enter_context(_Stdio(connmgr, holder))
        bridge = stack.enter_context(HttpBridge(connmgr.daemon, program=(CONNMGR,)))
        http = stack.enter_context(closing(_Http(bridge, holder)))
        for base, direct, tool, arguments in (
            ("/connection/query", lambda: client.connection.names("*"), "list_systems", {}),
            ("/job/start, /job/output", job, "run_command", {"system": "local", "command": "true"}),
        ):
            subjects = {
                base: direct,
                f"{tool} by stdio": lambda tool=tool, arguments=arguments: stdio.call(tool, **arguments),
                f"{tool} by HTTP": lambda tool=tool, arguments=arguments: http.call(tool, **arguments),
            }
            taken = interleaved(subjects, calls=5, rounds=8)
            print_timings(f"{tool} beside the API", taken, base=base, repeat=REPEAT)


if __name__ == "__main__":
    main()
