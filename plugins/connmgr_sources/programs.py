"""Programs on the daemon's machine that print a secret: without a shell, a terminal or input, and not for long."""

from __future__ import annotations

import os
from collections.abc import Sequence

from connmgr.errors import SecretUnavailable
from connmgr.plugin import Deadline
from connmgr.plugin.outside import Unanswered, last_line, run_program

MAX_OUTPUT = 64 * 1024


def printed_by(argv: Sequence[str], deadline: Deadline, source: str, *, tells: bool = False) -> str:
    """Return what a program prints, less one newline at its end.

    It gets the daemon's environment without what is meant for the daemon alone. With ``tells``, errors have the last
    line that it wrote to standard error: for programs that never write a secret there.
    :raises SecretUnavailable: it could not be run, failed, printed nothing, more than 64 KiB or no UTF-8, or did not
        end in time.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNMGR_")}
    try:
        said = run_program(argv, deadline, environment=environment, limit=MAX_OUTPUT)
    except Unanswered as why:
        raise _failed(source, str(why)) from why.__cause__
    if said.code:
        told = last_line(said.complaint) if tells else ""
        raise _failed(source, f"the program {said.ending}{told and f': {told}'}")
    try:
        text = said.output.decode()
    except UnicodeDecodeError:
        # Without the cause, which holds the bytes.
        raise _failed(source, "the program printed something that is not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise _failed(source, "the program printed nothing")
    return text


def _failed(source: str, why: str) -> SecretUnavailable:
    error = SecretUnavailable(f"The secret source {source} failed: {why}.")
    error.for_tokens = f"The secret source {source} failed."
    return error
