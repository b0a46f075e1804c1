"""Programs on the daemon's machine that print a secret: without a shell, a terminal or input, and not for long."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from connmgr.errors import SecretUnavailable
from connmgr.plugin import Deadline

MAX_OUTPUT = 64 * 1024
_TOLD_BYTES = 2000


def printed_by(argv: Sequence[str], deadline: Deadline, source: str, *, tells: bool = False) -> str:
    """Return what a program prints, less one newline at its end.

    With ``tells``, errors have the last line that it wrote to standard error: for programs that never write a secret
    there. Standard input is empty, and there is no terminal at which it could ask.
    :raises SecretUnavailable: it could not be run, failed, printed nothing, more than 64 KiB or no UTF-8, or did not
        end in time; all of its process group is then killed.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - what the owner has stored
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=_environment(os.environ),
            # A session of its own has no terminal: a program that opens /dev/tty fails instead of asking there.
            start_new_session=True,
        )
    except OSError as error:
        raise _failed(source, f"cannot run {argv[0]}: {error.strerror}") from error
    try:
        output, complaint = _read(process, deadline, source)
        code = process.wait(deadline.left())
    except subprocess.TimeoutExpired:
        _kill(process)
        raise _failed(source, "the program did not end in time and was killed") from None
    except BaseException:
        _kill(process)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    if code:
        told = _last_line(complaint) if tells else ""
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        raise _failed(source, f"the program {how}{told and f': {told}'}")
    try:
        text = output.decode()
    except UnicodeDecodeError:
        # Without the cause, which holds the bytes.
        raise _failed(source, "the program printed something that is not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise _failed(source, "the program printed nothing")
    return text


def _read(process: subprocess.Popen[bytes], deadline: Deadline, source: str) -> tuple[bytes, bytes]:
    """Return standard output, and the end of standard error, when both have ended."""
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - they are pipes
    output, complaint = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            ready = selector.select(deadline.left())
            if not ready:
                raise _failed(source, "the program did not end in time and was killed")
            for key, _ in ready:
                received = os.read(key.fd, 32 * 1024)
                if not received:
                    selector.unregister(key.fileobj)
                key.data.extend(received)
            if len(output) > MAX_OUTPUT:
                raise _failed(source, f"the program printed more than {MAX_OUTPUT // 1024} KiB and was killed")
            del complaint[:-_TOLD_BYTES]
    return bytes(output), bytes(complaint)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The process was not waited for, so its group's number cannot be another's by now.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the daemon's environment without what is meant for the daemon alone."""
    return {name: value for name, value in own.items() if not name.startswith("CONNMGR_")}


def _last_line(complaint: bytes) -> str:
    lines = complaint.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return "".join(c for c in last.strip() if c.isprintable())[:200].rstrip(".")


def _failed(source: str, why: str) -> SecretUnavailable:
    error = SecretUnavailable(f"The secret source {source} failed: {why}.")
    error.for_tokens = f"The secret source {source} failed."
    return error
