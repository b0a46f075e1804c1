"""Secrets in files of the daemon's machine."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from connmgr.errors import SecretUnavailable
from connmgr.plugin import Deadline, Length, Schema, SecretSource, Text, ValidationError

MAX_FILE = 1024 * 1024
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def _absolute(path: str) -> None:
    if not path.startswith("/"):
        raise ValidationError("Not an absolute path.")


class EnvFileSchema(Schema):
    file = Text(
        required=True,
        validate=[Length(1, 4096), _absolute],
        metadata={"description": "The file's absolute path; only the daemon's user may have access to it."},
    )
    name = Text(required=True, validate=Length(1, 200), metadata={"description": "The variable's name."})


class EnvFileSource(SecretSource):
    name = "envFile"
    description = "A variable in a file of lines NAME=VALUE."
    schema = EnvFileSchema
    example: ClassVar = {"file": "/etc/myapp/secrets.env", "name": "DB_PASSWORD"}

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        value = None
        for line in _lines(Path(data["file"])):
            assignment = _ASSIGNMENT.fullmatch(line)
            # The last one counts, as it does when a shell reads the file.
            if assignment and assignment[1] == data["name"]:
                value = _unquoted(assignment[2])
        if value is None:
            raise _failed(f"{data['file']} has no readable line {data['name']}=…")
        return value


def _lines(path: Path) -> list[str]:
    try:
        # O_NONBLOCK, so that a FIFO is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(f"cannot open {path}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _failed(f"{path} is not a regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise _failed(f"{path} belongs to another user")
        if status.st_mode & 0o077:
            raise _failed(f"{path} is open to others: run chmod 600 {shlex.quote(str(path))}")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE:
        raise _failed(f"{path} has more than {MAX_FILE >> 20} MiB")
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError:
        # Without the cause, which holds the bytes.
        raise _failed(f"{path} is not UTF-8") from None


def _unquoted(value: str) -> str | None:
    """Return a value without quotes and a comment behind it, or None if a quote is not closed."""
    value = value.strip()
    if value[:1] in ("'", '"'):
        try:
            words = shlex.split(value, comments=True)
        except ValueError:
            return None
        return words[0] if words else ""
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()


def _failed(why: str) -> SecretUnavailable:
    error = SecretUnavailable(f"The secret source envFile failed: {why}.")
    error.for_tokens = "The secret source envFile failed."
    return error
