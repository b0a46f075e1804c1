"""Work in a connection's shell, and what came of a command there, as it is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from connmgr.cli.exits import TIMED_OUT
from connmgr.client import Client, ClientError, RawResult

Returned = TypeVar("Returned")

KILLED = "command_timeout"
"""The code of the error that holds what a command has printed until its time was over."""


def in_shell(client: Client, connection: str, work: Callable[[], Returned]) -> Returned:
    """Do ``work`` in a connection's shell, which is started first where it does not run."""
    try:
        return work()
    except ClientError as error:
        if error.code != "no_shell":
            raise
    client.shell.start(connection)
    return work()


def printed_until(error: ClientError) -> RawResult | None:
    """Return what a command has printed that was killed for its time; None where ``error`` tells of something else."""
    return RawResult.read({**error.details, "exitCode": TIMED_OUT}) if error.code == KILLED else None


def as_object(outcome: RawResult | ClientError) -> dict[str, Any]:
    """Return an outcome for JSON: the exit code, or an error's code and message, and output where there is any.

    Output is text without its final newline.
    """
    if isinstance(outcome, ClientError):
        head: dict[str, Any] = {"error": {"code": outcome.code, "message": outcome.message}}
        until = printed_until(outcome)
        return head if until is None else {**head, **_texts(until)}
    return {"exitCode": outcome.exit_code, **_texts(outcome)}


def _texts(result: RawResult) -> dict[str, Any]:
    texts = {
        name: output.decode(errors="replace").removesuffix("\n")
        for name, output in (("stdout", result.stdout), ("stderr", result.stderr))
    }
    return {**texts, **({"truncated": True} if result.truncated else {})}


def write(result: RawResult, *, whole_lines: bool = False) -> None:
    """Write output to where the command wrote it, byte by byte; with ``whole_lines`` each stream ends a line."""
    for stream, output in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.buffer.write(output)
        if whole_lines and output and not output.endswith(b"\n"):
            stream.buffer.write(b"\n")
        stream.flush()
    if result.truncated:
        click.echo("connmgr: output beyond the daemon's max-output is missing", err=True)
