"""Runs commands in a connection's shell, and shows their outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from connmgr.cli.exits import TIMED_OUT
from connmgr.client import Client, ClientError, RawResult

Returned = TypeVar("Returned")

KILLED = "command_timeout"
"""The code of the error that carries the output of a command killed at its timeout."""


session_option = click.option(
    "--session", metavar="NAME", help="Use the shell of this name, instead of the connection's own."
)


def in_shell(client: Client, connection: str, session: str | None, work: Callable[[], Returned]) -> Returned:
    """Do ``work`` in a shell of a connection, and start the shell first if it does not run."""
    try:
        return work()
    except ClientError as error:
        if error.code != "no_shell":
            raise
    client.shell.start(connection, session=session)
    return work()


def printed_until(error: ClientError) -> RawResult | None:
    """Return the output of a command killed at its timeout; None for any other ``error``."""
    return RawResult.read({**error.details, "exitCode": TIMED_OUT}) if error.code == KILLED else None


def as_object(outcome: RawResult | ClientError) -> dict[str, Any]:
    """Return an outcome for JSON: exit code, or code and message of an error, and any output.

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


def write(stdout: bytes, stderr: bytes) -> None:
    """Write output byte by byte to ours."""
    for stream, output in ((sys.stdout, stdout), (sys.stderr, stderr)):
        if output:
            stream.buffer.write(output)
            stream.flush()


def write_result(result: RawResult, *, whole_lines: bool) -> None:
    """Write the output of a command that has ended; ``whole_lines`` ends each stream with a newline."""
    ended = (output + b"\n" * bool(whole_lines and output and not output.endswith(b"\n")) for output in result[1:3])
    write(*ended)
    if result.truncated:
        click.echo("connmgr: output beyond the daemon's max-output is missing", err=True)
