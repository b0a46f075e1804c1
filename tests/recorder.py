"""A program that prints its argv, directory and environment, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_PROGRAM = """#!/bin/sh
printf '%s\\0' "$#" "$@"
readlink "/proc/$$/cwd"
printf '\\0'
cat "/proc/$$/environ"
"""


class Recorded(NamedTuple):
    """The arguments, the working directory and the environment of one execution."""

    words: tuple[bytes, ...]
    directory: bytes
    environment: dict[bytes, bytes]


def write_recorder(path: Path) -> Path:
    """Write the program to ``path``, and return it."""
    path.write_text(_PROGRAM)
    path.chmod(0o755)
    return path


def recorded(printed: bytes | bytearray) -> Recorded:
    """Parse what the program has ``printed``."""
    count, _, rest = bytes(printed).partition(b"\0")
    *words, directory, environment = rest.split(b"\0", int(count) + 1)
    variables = (entry.partition(b"=") for entry in environment.removesuffix(b"\0").split(b"\0"))
    return Recorded(tuple(words), directory.removesuffix(b"\n"), {name: value for name, _, value in variables})
