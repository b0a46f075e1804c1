"""The official clients of MCP from npm, installed once below ``.venv`` as ``npm/package-lock.json`` has them."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from tests.components import program

LOCKED = Path(__file__).with_name("npm")
DIRECTORY = Path(__file__).parent.parent.parent / ".venv" / "mcp-clients"
INSTALL_SECONDS = 500
RUN_SECONDS = 120
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
CONFORMANCE = "@modelcontextprotocol/conformance/dist/index.js"


class InstallationError(Exception):
    """npm could not install something; the message is what it printed."""


def run(script: str, *arguments: str, home: Path) -> tuple[int, str, str]:
    """Run one of the clients to its end, and return its exit code and what it printed on both streams.

    :raises InstallationError: it cannot be installed.
    """
    modules = installed()
    # What Node.js has compiled once is kept: much of what a client takes is its start.
    compiled = str(modules.parent / "compiled")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "NODE_COMPILE_CACHE": compiled}
    done = subprocess.run(
        [_node(modules), str(modules / script), *arguments],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def installed() -> Path:
    """Return the directory of the modules; what is not there yet is installed.

    :raises InstallationError: it cannot be.
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
    npm = program("npm")
    if npm is None:
        raise InstallationError("The program npm is not installed.")
    # Under its name only once it is whole; what belongs to another lock file goes.
    for other in DIRECTORY.glob("*/"):
        shutil.rmtree(other)
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.copytree(LOCKED, unfinished)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=unfinished, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        raise InstallationError((done.stderr or done.stdout)[-2000:])
    unfinished.rename(target)


def _node(modules: Path) -> str:
    """Return the Node.js that came with them; where npm has none for this machine, the system's."""
    found = next(modules.glob("node-*/bin/node"), None) or program("node")
    if found is None:
        raise InstallationError("npm has no Node.js for this machine, and it is not installed.")
    return str(found)
