"""What a plugin asks besides machines: programs of the daemon's machine, and HTTP servers.

Whoever is asked gets one deadline for all of it, and a limit for what it may say. It is a password manager, a signer or
the like: what it says may be a secret, so no error repeats it.
"""

from __future__ import annotations

import http.client
import os
import selectors
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from connmgr.fields import ValidationError
from connmgr.paths import is_loopback
from connmgr.plugin.transport import LEAST_SECONDS, Deadline

MAX_COMPLAINT = 2000
"""Bytes of standard error that are kept, the last ones."""

_QUOTED_CHARACTERS = 200


class Unanswered(Exception):
    """There is no answer; the text says why, with "it" or the program as its subject, and quotes no output.

    ``late``: the deadline was over.
    """

    def __init__(self, why: str, *, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class Said(NamedTuple):
    """What a program printed, and how it ended: its exit status, or less than 0 for a signal."""

    output: bytes
    complaint: bytes
    code: int

    @property
    def ending(self) -> str:
        """How it ended, after the name of the program."""
        return f"was killed by signal {-self.code}" if self.code < 0 else f"exited with {self.code}"


def run_program(
    argv: Sequence[str], deadline: Deadline, *, environment: Mapping[str, str], limit: int, directory: str = "/"
) -> Said:
    """Run a program without a shell, input or a terminal, and return what it prints.

    :raises Unanswered: it cannot be run, prints more than ``limit`` bytes, or does not end in time; in the last two
        cases its process group is killed.
    """
    name = argv[0]
    try:
        process = subprocess.Popen(  # noqa: S603 - what the owner has stored
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=dict(environment),
            # A session of its own has no terminal: a program that opens /dev/tty fails instead of asking there.
            start_new_session=True,
        )
    except OSError as error:
        raise Unanswered(f"cannot run {name}: {error.strerror}") from error
    except ValueError:
        raise Unanswered(f"cannot run {name}: a word has a NUL character") from None
    try:
        output, complaint = _outputs(process, deadline, limit)
        # All is said by now; a program that has closed its streams may still hang.
        return Said(output, complaint, process.wait(deadline.left(LEAST_SECONDS)))
    except subprocess.TimeoutExpired:
        _kill(process)
        raise _late_program() from None
    except BaseException:
        _kill(process)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _outputs(process: subprocess.Popen[bytes], deadline: Deadline, limit: int) -> tuple[bytes, bytes]:
    """Return standard output, and the end of standard error, when both have ended."""
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - they are pipes
    output, complaint = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            ready = selector.select(deadline.left())
            if not ready and deadline.passed:
                raise _late_program()
            for key, _ in ready:
                received = os.read(key.fd, 32 * 1024)
                if not received:
                    selector.unregister(key.fileobj)
                key.data.extend(received)
            if len(output) > limit:
                raise Unanswered(f"the program printed more than {limit // 1024} KiB and was killed")
            del complaint[:-MAX_COMPLAINT]
    return bytes(output), bytes(complaint)


def _late_program() -> Unanswered:
    return Unanswered("the program did not end in time and was killed", late=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The process was not waited for, so its group's number cannot be another's by now.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(complaint: bytes) -> str:
    """Return the last line that a program wrote to standard error, made fit for an error; empty if there is none."""
    lines = complaint.decode(errors="replace").split("\n")
    return quoted(next((line for line in reversed(lines) if line.strip()), ""))


def quoted(text: str) -> str:
    """Return what somebody else said, in one short printable line without a full stop at its end."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line[:_QUOTED_CHARACTERS].rstrip(". ")


def check_server(address: str) -> None:
    """Refuse an address to which no secret may be sent; for ``validate`` of a field.

    :raises ValidationError: it is none of an HTTP server, or it is one of plain HTTP elsewhere.
    """
    parts = urlsplit(address)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        raise ValidationError("Not the address of an HTTP server, such as https://vault.example:8200.")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValidationError("http would send a secret in plain text: use https, or http to this machine.")


def ask_server(
    address: str,
    path: str,
    deadline: Deadline,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    ca_file: str | None = None,
    limit: int,
) -> tuple[int, bytes]:
    """Return the status and the content of a server's answer: to a POST of ``body``, or a GET without one.

    ``path``, quoted for a URL, follows that of ``address``. Redirections are not followed: they would take a secret
    elsewhere.
    :raises Unanswered: it cannot be reached, is not trusted, says more than ``limit`` bytes, or is not done in time.
    """
    parts = urlsplit(address)
    context = _context(ca_file) if parts.scheme == "https" else None
    try:
        with connected(parts.hostname or "", parts.port, context, deadline) as connection:
            method = "GET" if body is None else "POST"
            connection.request(method, quote(parts.path.rstrip("/")) + path, body, dict(headers))
            with connection.getresponse() as answer:
                content = answer.read(limit + 1)
    except ssl.SSLCertVerificationError as error:
        raise Unanswered(f"its certificate is not trusted: {error.verify_message}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if deadline.passed or isinstance(error, TimeoutError):
            raise Unanswered("it did not answer in time", late=True) from None
        reason = getattr(error, "strerror", None)
        raise Unanswered(
            f"it cannot be reached: {quoted(reason)}" if reason else "it did not answer as an HTTP server"
        ) from None
    if deadline.passed:
        raise Unanswered("it did not answer in time", late=True)
    if len(content) > limit:
        raise Unanswered(f"its answer has more than {limit >> 10} KiB")
    return answer.status, content


@contextmanager
def connected(
    host: str, port: int | None, context: ssl.SSLContext | None, deadline: Deadline
) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection to the first address of ``host`` that accepts one, by TLS with a ``context``; close it later.

    :raises OSError: none accepts, or the server's certificate does not suit; and, also within the block, whatever is
        not done by the ``deadline``.
    """
    # Without a port, the library would take the end of an IPv6 address for one.
    port = port or (443 if context else 80)
    connection = http.client.HTTPSConnection(host, port) if context else http.client.HTTPConnection(host, port)
    # The timeout of a socket is that of one step; a server that answers letter by letter would have no end.
    end = threading.Timer(deadline.left(), _cut, (connection,))
    end.daemon = True
    end.start()
    try:
        # Not by the library, whose timeout is that of each address of a name.
        connection.sock = _socket_to(host, port, deadline)
        if context:
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        if deadline.passed:
            # The timer has ended by now, and may have found no socket.
            raise _not_accepted(host)
        yield connection
    finally:
        end.cancel()
        connection.close()


def _socket_to(host: str, port: int, deadline: Deadline) -> socket.socket:
    failure: OSError = _not_accepted(host)
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if deadline.passed:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.left(LEAST_SECONDS))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            # Of all of TLS's handshake, and of each step afterwards.
            sock.settimeout(deadline.left(LEAST_SECONDS))
            return sock
    raise failure


def _not_accepted(host: str) -> TimeoutError:
    return TimeoutError(f"{host} did not accept the connection in time.")


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise Unanswered(f"cannot read the CA file: {error.strerror or 'it has no certificate'}") from error


def _cut(connection: http.client.HTTPConnection) -> None:
    if (sock := connection.sock) is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
