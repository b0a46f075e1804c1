"""Writes a command's result as JSON, piece by piece, so that large output is not copied in memory."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring

import flask

from connmgr.engine.running import Result

WHOLE_BYTES = 1024 * 1024
"""Most bytes of output in an answer with Content-Length; more are sent in chunks, and the connection is closed."""

# A multiple of 3, so that pieces of base64 can be joined.
_PIECE = 96 * 1024

Encode = Callable[[bytes | bytearray], Iterator[bytes]]


def respond(result: Result, encoding: str, *, restarted: bool = False) -> flask.Response:
    """Return the response with ``result``'s exit code and output, as text or in base64."""
    pieces = _pieces(result, _base64 if encoding == "base64" else _text, restarted=restarted)
    whole = len(result.stdout) + len(result.stderr) <= WHOLE_BYTES
    return flask.Response(b"".join(pieces) if whole else pieces, mimetype="application/json")


def shown(output: bytes | bytearray, encoding: str) -> str:
    """Return ``output`` as in the response of :func:`respond`."""
    if encoding == "base64":
        return base64.b64encode(output).decode()
    return output.removesuffix(b"\n").decode(errors="replace")


def _pieces(result: Result, encode: Encode, *, restarted: bool) -> Iterator[bytes]:
    yield b'{"exitCode":%d,"stdout":"' % result.exit_code
    yield from encode(result.stdout)
    yield b'","stderr":"'
    yield from encode(result.stderr)
    yield b'","truncated":true' if result.truncated else b'"'
    yield b',"restarted":true}' if restarted else b"}"


def _text(output: bytes | bytearray) -> Iterator[bytes]:
    """Yield ``output`` as the inside of a JSON string, without its final newline; undecodable bytes become U+FFFD."""
    end = len(output) - output.endswith(b"\n")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, end, _PIECE):
        stop = min(start + _PIECE, end)
        yield _escaped(decoder.decode(output[start:stop], final=stop == end))


def _escaped(text: str) -> bytes:
    return encode_basestring(text)[1:-1].encode()


def _base64(output: bytes | bytearray) -> Iterator[bytes]:
    for start in range(0, len(output), _PIECE):
        yield base64.b64encode(output[start : start + _PIECE])
