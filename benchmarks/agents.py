"""What an agent reads of commands, and what becomes of commands that go wrong, beside two public ssh servers of MCP.

Run it with ``python -m benchmarks.agents``. The first run installs the two below ``.venv``, from npm and PyPI: ssh-mcp
and mcp-remote-ssh, at the versions below, with their own defaults except for the limits that are named. All of them log
in to the same sshd on this machine, as the same user with the same key.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from benchmarks.daemon import temporary_daemon
from tests.cli.program import DIRECTORY
from tests.mcp.official import NODE, NPM
from tests.plugins.sshd import Sshd, privilege_separation
from tests.rights import wire

NPM_SERVER, NPM_VERSION = "ssh-mcp", "2.11.0"
PYPI_SERVER, PYPI_VERSION = "mcp-remote-ssh", "0.4.0"
TOKENIZER, TOKENIZER_VERSION = "gpt-tokenizer", "4.0.0"
INSTALLED = Path(__file__).parent.parent / ".venv" / f"compared-{NPM_VERSION}-{PYPI_VERSION}"

LIMIT_SECONDS = 10
"""The limit of a command, given to each in its own way; their defaults are 60 and 120 seconds, ours is none."""

ANSWER_SECONDS = 30.0
LEAVES_SECONDS = 3.0
CONNECT_TRIES = 3
SECRET = "a-password-nobody-else-has"
NODE_COUNTS = (
    "const { encode } = await import(process.argv[1]);"
    "const texts = JSON.parse(await new Response(process.stdin).text());"
    "console.log(JSON.stringify(texts.map((text) => encode(text).length)));"
)

COMMANDS: Mapping[str, str] = {
    "uname -a": "uname -a",
    "ls -la /etc": "ls -la /etc",
    "ps aux": "ps aux",
    "a missing file": "cat /nowhere",
    "a log of 590 kB": "seq 100000",
    "4.9 MB of lines, then exit 3": "seq 700000; echo THE END; exit 3",
}
"""Typical commands."""


@dataclass
class Answer:
    """What an agent reads after a call: the text of the result, whether it is an error, and after how long."""

    text: str
    is_error: bool
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The structured content."""


class Server:
    """A server that runs commands on the host, over its own standard streams."""

    title = ""

    def __init__(self, place: Place) -> None:
        self.place = place

    def parameters(self) -> StdioServerParameters:
        raise NotImplementedError

    async def begin(self, client: Client) -> None:
        """Connect, where that takes a call of its own."""

    def call(self, command: str, *, asks: bool = False) -> tuple[str, dict[str, Any]]:
        """Return the tool and the arguments that run a command; ``asks``: it reads an answer from its input."""
        raise NotImplementedError

    def sudo(self, command: str) -> tuple[str, dict[str, Any]]:
        """Return the tool and the arguments that run it by sudo, with :data:`SECRET` as the password."""
        raise NotImplementedError

    async def found_again(self, client: Client) -> bool:
        """Whether a new process of the server still has the command that the killed one was running."""
        return False


@dataclass(frozen=True)
class Place:
    """Where everything is: the host's sshd, a home of the servers' own, and the daemon's address and token."""

    sshd: Sshd
    home: Path
    daemon: Mapping[str, str]


class Connmgr(Server):
    title = "connmgr"

    def parameters(self) -> StdioServerParameters:
        return StdioServerParameters(command=str(DIRECTORY / "connmgr"), args=["mcp"], env=dict(self.place.daemon))

    def call(self, command: str, *, asks: bool = False) -> tuple[str, dict[str, Any]]:
        more = {"openStdin": True, "wait": 45} if asks else {"timeout": LIMIT_SECONDS}
        return "run_command", {"system": "bench", "command": command, **more}

    def sudo(self, command: str) -> tuple[str, dict[str, Any]]:
        return "run_command", {"system": "bench/root", "command": command, "wait": LIMIT_SECONDS}

    async def found_again(self, client: Client) -> bool:
        jobs = (await client.call_tool("list_jobs", {"ended": True})).structured_content or {}
        newest = jobs["jobs"][0]["job"]
        told = (await client.call_tool("read_job", {"job": newest, "wait": LIMIT_SECONDS})).structured_content or {}
        return bool(told["exitCode"] == 7 and told["stdout"] == "begun\nover\n")


class SshMcp(Server):
    title = f"{NPM_SERVER} {NPM_VERSION} (npm)"

    def parameters(self) -> StdioServerParameters:
        directory = self.place.home / ".config" / "ssh-mcp"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sshd = self.place.sshd
        settings = [
            '[defaults]\ndefaultProfile = "bench"',
            f"commandTimeoutMs = {LIMIT_SECONDS * 1000}",
            '[[profiles]]\nname = "bench"\nhost = "127.0.0.1"',
            f'port = {sshd.port}\nuser = "{sshd.user}"\nauth = "key"\nkeyRef = "{sshd.client_key}"',
            'role = "admin"\ngroup = "dev"\napprovalPolicy = "auto"',
        ]
        config = directory / "config.toml"
        config.write_text("\n".join(settings) + "\n")
        config.chmod(0o600)
        environment = {"HOME": str(self.place.home), "PATH": os.environ["PATH"], "SSH_MCP_SUDO_PASSWORD": SECRET}
        script = INSTALLED / "npm" / "node_modules" / NPM_SERVER / "build" / "index.js"
        return StdioServerParameters(command=str(NODE), args=[str(script)], env=environment)

    def call(self, command: str, *, asks: bool = False) -> tuple[str, dict[str, Any]]:
        return "run-command", {"command": command}

    def sudo(self, command: str) -> tuple[str, dict[str, Any]]:
        return "privileged-command", {"command": command}


class McpRemoteSsh(Server):
    title = f"{PYPI_SERVER} {PYPI_VERSION} (PyPI)"
    session = ""

    def parameters(self) -> StdioServerParameters:
        environment = {"HOME": str(self.place.home), "PATH": os.environ["PATH"]}
        return StdioServerParameters(command=str(INSTALLED / "pypi" / "bin" / PYPI_SERVER), args=[], env=environment)

    async def begin(self, client: Client) -> None:
        sshd = self.place.sshd
        where = {"host": "127.0.0.1", "port": sshd.port, "username": sshd.user, "key_path": str(sshd.client_key)}
        for _ in range(CONNECT_TRIES):
            told = _text(await client.call_tool("ssh_connect", where))
            if found := re.search(r'"session_id": ?"([^"]+)"', told):
                self.session = found[1]
                return
        sys.exit(f"{self.title} does not connect: {told}")

    def call(self, command: str, *, asks: bool = False) -> tuple[str, dict[str, Any]]:
        return "ssh_execute", {"session_id": self.session, "command": command, "timeout": LIMIT_SECONDS}

    def sudo(self, command: str) -> tuple[str, dict[str, Any]]:
        return "ssh_sudo_execute", {**self.call(command)[1], "sudo_password": SECRET}


def main() -> None:
    """Install the others, and measure all three."""
    _install()
    with _place() as place:
        servers = [kind(place) for kind in (Connmgr, SshMcp, McpRemoteSsh)]
        anyio.run(_measure, servers)


async def _measure(servers: Sequence[Server]) -> None:
    print(
        f"Bytes (tokens) of each answer, by {TOKENIZER} {TOKENIZER_VERSION}: o200k_base. Raw: what the command prints."
    )
    raw = [_printed(command) for command in COMMANDS.values()]
    texts = [[one.decode(errors="replace") for one in raw]]
    for server in servers:
        async with _running(server) as client:
            answers = [await _answer(client, *server.call(command)) for command in COMMANDS.values()]
        texts.append([one.text for one in answers])
    counts = iter(_tokens([text for column in texts for text in column]))
    columns = [[f"{len(text.encode()):,} ({next(counts):,})" for text in column] for column in texts]
    titles = [server.title for server in servers]
    _print_table(["command", "raw", *titles], list(zip(COMMANDS, *columns, strict=True)))
    print(f"\nWhat becomes of a command that goes wrong; limit {LIMIT_SECONDS} s")
    rows: list[list[str]] = [[], [], [], [], []]
    for server in servers:
        for row, told in zip(rows, await _troubles(server), strict=True):
            row.append(told)
    what = (
        "it waits at a prompt",
        "a pipe outlives its limit",
        "4.9 MB, then exit 3",
        "sudo's password",
        "server killed",
    )
    _print_table(["", *titles], [(name, *row) for name, row in zip(what, rows, strict=True)])


async def _troubles(server: Server) -> list[str]:
    """Return what happens with one server, for each trouble."""
    async with _running(server) as client:
        told = [await _prompt(server, client), await _pipe(server, client), await _flood(server, client)]
        told.append(await _password(server, client))
    return [*told, await _killed(server)]


async def _prompt(server: Server, client: Client) -> str:
    asked = await _answer(client, *server.call("printf 'Go on? [y/N] '; read -r answer; echo got $answer", asks=True))
    waits = bool(asked.facts.get("waiting"))
    said = "told as waiting, with the prompt" if waits else "told as an error" if asked.is_error else "told as ended"
    return f"answer after {asked.seconds:.1f} s, {said}"


async def _pipe(server: Server, client: Client) -> str:
    asked = await _answer(client, *server.call("sleep 271.3 | cat"))
    runs = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "271.3"]]
    for one in runs:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    return f"answer after {asked.seconds:.1f} s, the processes {'run on' if runs else 'have ended'}"


async def _flood(server: Server, client: Client) -> str:
    asked = await _answer(client, *server.call(COMMANDS["4.9 MB of lines, then exit 3"]))
    code = "told" if re.search(r"exit\D{0,12}3\b", asked.text, re.IGNORECASE) else "not told"
    lost = "told" if re.search(r"truncat|omit|left out|exceed|too (?:large|long|much)", asked.text) else "not told"
    end = "shown" if "THE END" in asked.text.replace("echo THE END", "") else "not shown"
    [tokens] = _tokens([asked.text])
    return f"{tokens:,} tokens; exit code {code}, end {end}, loss {lost}"


async def _password(server: Server, client: Client) -> str:
    seen: set[str] = set()

    async def look() -> None:
        while True:
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if any(SECRET in word for word in process.cmdline()):
                        seen.add(process.name())
            await asyncio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        asked = await _answer(client, *server.sudo("sleep 1; echo by sudo"))
        tasks.cancel_scope.cancel()
    ran = "" if "by sudo" in asked.text else ", though the command did not run"
    return f"{'in the arguments of ' + ', '.join(sorted(seen)) if seen else 'in no process list'}{ran}"


async def _killed(server: Server) -> str:
    """Kill the server within a command, and look whether another process of it finds the command again."""
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    mark = server.place.home / "over"
    mark.unlink(missing_ok=True)
    command = f"echo begun; sleep {LEAVES_SECONDS}; echo over; touch {shlex.quote(str(mark))}; exit 7"
    # Whatever the client makes of the server's end.
    with suppress(Exception):
        async with _running(server) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(_answer, client, *server.call(command))
            await anyio.sleep(1)
            for one in psutil.Process().children(recursive=True):
                if one.pid not in before:
                    one.kill()
    await anyio.sleep(LEAVES_SECONDS)
    async with _running(server) as client:
        again = await server.found_again(client)
    return f"the command {'ran on' if mark.exists() else 'was ended'}, its result {'found again' if again else 'lost'}"


@asynccontextmanager
async def _running(server: Server) -> AsyncIterator[Client]:
    """Run a server, connected to the host."""
    with Path(os.devnull).open("w") as nowhere:
        async with Client(stdio_client(server.parameters(), errlog=nowhere), mode="legacy") as client:
            await server.begin(client)
            yield client


async def _answer(client: Client, tool: str, arguments: Mapping[str, Any]) -> Answer:
    began = time.monotonic()
    try:
        result = await client.call_tool(tool, dict(arguments), read_timeout_seconds=ANSWER_SECONDS)
    except MCPError as error:
        return Answer(str(error), True, time.monotonic() - began)
    return Answer(_text(result), bool(result.is_error), time.monotonic() - began, result.structured_content or {})


def _text(result: CallToolResult) -> str:
    return "\n".join(one.text for one in result.content if one.type == "text")


def _printed(command: str) -> bytes:
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    return done.stdout + done.stderr


def _tokens(texts: Sequence[str]) -> list[int]:
    module = INSTALLED / "npm" / "node_modules" / TOKENIZER / "esm" / "main.js"
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", NODE_COUNTS, module.as_uri()],
        input=json.dumps(list(texts)),
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(one) for one in json.loads(done.stdout)]


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")


@contextmanager
def _place() -> Iterator[Place]:
    with ExitStack() as stack:
        daemon = stack.enter_context(temporary_daemon())
        stack.enter_context(privilege_separation())
        sshd = stack.enter_context(closing(Sshd()))
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = {"type": "ssh", "host": "127.0.0.1", "port": sshd.port, "user": sshd.user}
        key = " ".join(sshd.host_keys[0].with_suffix(".pub").read_text().split()[:2])
        more = {"identity": {"file": str(sshd.client_key)}, "hostKey": key}
        over = daemon.client.connection.add("bench", {**data, **more})
        elevated = {"type": "shellEnvironment", "host": over, "elevated": True, "password": SECRET}
        daemon.client.connection.add("root", elevated)
        holder = wire.create(daemon, "connection.read", "shell.any", "job", connections=["bench", "bench/*"])
        variables = {
            **daemon.environment,
            "CONNMGR_TOKEN": holder.secret,
            "CONNMGR_PORT": daemon.url.rpartition(":")[2],
            "CONNMGR_AUTH_FILE": str(daemon.auth_file),
        }
        yield Place(sshd, home, variables)


def _install() -> None:
    """Install the two servers and the tokenizer, unless they are there."""
    if INSTALLED.exists():
        return
    unfinished = INSTALLED.with_name(f"{INSTALLED.name}.unfinished")
    venv.create(unfinished / "pypi", with_pip=True)
    python = unfinished / "pypi" / "bin" / "python"
    packages = [f"{NPM_SERVER}@{NPM_VERSION}", f"{TOKENIZER}@{TOKENIZER_VERSION}"]
    (unfinished / "npm").mkdir(exist_ok=True)
    npm = [NODE, NPM, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    for command, directory in (
        ([*npm, *packages], unfinished / "npm"),
        (
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                f"{PYPI_SERVER}=={PYPI_VERSION}",
            ],
            unfinished,
        ),
    ):
        print(f"Installing {shlex.join(map(str, command[-2:]))}", file=sys.stderr)
        environment = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
        subprocess.run(command, cwd=directory, env=environment, check=True)
    # A virtual environment cannot be moved, but its scripts name its Python by this path.
    unfinished.rename(INSTALLED)
    for script in (INSTALLED / "pypi" / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(str(unfinished).encode(), str(INSTALLED).encode()))


if __name__ == "__main__":
    main()
