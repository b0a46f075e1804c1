"""What the pages show of a terminal, typed into a real one."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path


def typed(text: str, directory: Path) -> str:
    """Return what a terminal shows when the commands of ``text`` are typed into bash, one after the other."""
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    script = "".join(f"echo {shlex.quote(chr(36) + chr(32) + command)}\n{command}\n" for command in commands)
    finished = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return finished.stdout
