"""What the daemon depends on: plugins, programs, and the SSH agent."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator

from connmgr.cli.doctor.finding import OK, PROBLEM, WARNING, Examined, Finding

AGENT_SECONDS = 1.0
PROGRAMS = {
    "ssh": "a ProxyCommand in ~/.ssh/config may call it; connmgr itself does not need it",
    "ssh-keygen": "to make keys and to look at known_hosts",
}


def plugins(_: Examined) -> Iterator[Finding]:
    """List the connection types, and the plugins that are not used."""
    from connmgr.registry import Registry

    registry = Registry.load()
    for problem in registry.problems:
        message = f"{problem.plugin} of {problem.distribution} is not used: {problem.reason}"
        yield Finding("plugins", PROBLEM, message, f"Update or uninstall {problem.distribution}.")
    names = ", ".join(entry.type.name for entry in registry)
    yield Finding("plugins", OK if names else PROBLEM, f"connection types: {names or 'none'}")


def programs(examined: Examined) -> Iterator[Finding]:
    """Look for programs in the daemon's PATH; without a daemon in that of doctor."""
    for name, purpose in PROGRAMS.items():
        if examined.environment:
            path, where = examined.environment["path"], " in the daemon's PATH"
        else:
            path, where = os.environ.get("PATH"), ""
        found = shutil.which(name, path=path)
        if found:
            yield Finding(name, OK, f"{found}{where}")
        else:
            yield Finding(name, WARNING, f"is not there{where}: {purpose}", "Install the OpenSSH client.")


def agent(examined: Examined) -> Iterator[Finding]:
    """Examine the SSH agent that the daemon asks for keys, or without a daemon the one of doctor."""
    own = os.environ.get("SSH_AUTH_SOCK")
    if examined.environment is None:
        if own and not _answers(own):
            advice = "Start an agent, or unset SSH_AUTH_SOCK where the daemon starts."
            yield Finding("ssh agent", WARNING, f"SSH_AUTH_SOCK names {own}, where no agent answers", advice)
        return
    advice = "Restart the daemon where an agent answers, or run `connmgr service install --ssh-agent` there."
    used = examined.environment.get("agentSocket")
    if used and _answers(used):
        yield Finding("ssh agent", OK, f"the daemon's answers at {used}")
    elif used:
        yield Finding("ssh agent", WARNING, f"the daemon's SSH_AUTH_SOCK names {used}, where no agent answers", advice)
    elif own and _answers(own):
        yield Finding("ssh agent", WARNING, "the daemon has no SSH_AUTH_SOCK, and so not the agent's keys", advice)


def _answers(agent: str) -> bool:
    """Whether something listens on a Unix socket; a dead agent leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(AGENT_SECONDS)
        try:
            probe.connect(agent)
        except (OSError, ValueError):
            return False
    return True
