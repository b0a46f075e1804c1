"""Answers: JSON, lines of JSON, and what is written piece by piece, so that it does not multiply in memory."""

from __future__ import annotations

import base64
import codecs
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from json.encoder import encode_basestring
from typing import Any

import flask

from connmgr.computing import give_way
from connmgr.contract.message import Message, to_json
from connmgr.engine.running import Result
from connmgr.errors import InvalidRequest
from connmgr.fs.listing import Listing

LINES = "application/x-ndjson"
"""The media type of one JSON value per line."""

PIECE_CHARACTERS = 32 * 1024
"""Most characters of lines that are sent together."""

WHOLE_ENTRIES = 2048
"""Most entries of an answer with Content-Length; longer ones are sent in chunks, and the connection is closed."""

PIECE_ENTRIES = 512
"""Entries per chunk."""

WHOLE_BYTES = 1024 * 1024
"""Most bytes of output in an answer with Content-Length; more are sent in chunks, and the connection is closed."""

REPEATED_BYTES = 32 * 1024 * 1024
"""Most bytes of an answer that it has already: a client may name the same twice, as others do, but not without end."""

# A multiple of 3, so that pieces of base64 can be joined.
_OUTPUT_PIECE = 96 * 1024

EncodePieces = Callable[[bytes | bytearray], Iterator[bytes]]

BLOCK_BYTES = 128 * 1024
"""Most bytes of a block of a large answer, but for a single piece that is larger."""

LONG = 64
"""More members of a list within a list make it be encoded by itself."""

# Made once, because making an encoder takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def as_json(value: Any, status: int = 200) -> flask.Response:
    """Return the response with ``value`` as its body, and a newline for terminals.

    A list in it may be an iterator, whose items are made when they are encoded.
    """
    body = _ENCODER.encode(value) + "\n" if _is_plain(value) else [*_blocks(chain(_parts(value), "\n"))]
    return flask.Response(body, status=status, mimetype="application/json")


def _blocks(parts: Iterable[str]) -> Iterator[bytes]:
    """Yield the text of ``parts`` in blocks of a size that the C library keeps for the next one.

    A larger one it takes from the system each time: clearing the pages of a megabyte stops a processor for as long as
    encoding it.
    """
    block: list[str] = []
    size = 0
    for part in parts:
        if size + len(part) > BLOCK_BYTES and block:
            yield "".join(block).encode()
            block, size = [], 0
        block.append(part)
        size += len(part)
    yield "".join(block).encode()


def require_few_repeated(name: str, ids: Sequence[str], described: Mapping[str, Message]) -> None:
    """Refuse the field ``name`` with ``ids`` if an answer would repeat too much of what is ``described``, by these ids.

    A description may be a thousand times as long as the id that asks for it.
    :raises InvalidRequest: it would.
    """
    counts = Counter(ids)
    size = sum((counts[id] - 1) * len(encoded(to_json(described[id]))) for id in counts if counts[id] > 1)
    if size > REPEATED_BYTES:
        raise InvalidRequest(
            f"{name}: The answer would repeat {size >> 20:,} MiB, more than {REPEATED_BYTES >> 20}; name each id once."
        )


def as_pieces(pieces: Iterable[bytes], mimetype: str) -> flask.Response:
    """Return the response that sends ``pieces`` as they come.

    The first is made before, so that an error until then is answered with its status, and not by a connection that ends
    without a word.
    """
    rest = iter(pieces)
    response = flask.Response(chain([next(rest, b"")], rest), mimetype=mimetype)
    close = getattr(rest, "close", None)
    if close is not None:
        response.call_on_close(close)
    return response


def as_lines(bursts: Iterable[Iterable[Any]]) -> flask.Response:
    """Return the response that sends each value as a line of JSON, the lines of a burst together.

    ``bursts`` are read after the status is sent and outside Flask's request context: they must not raise. They are
    closed with the response, also if the client leaves.
    """
    response = flask.Response(_pieces(bursts), mimetype=LINES)
    close = getattr(bursts, "close", None)
    if close is not None:
        response.call_on_close(close)
    return response


def _pieces(bursts: Iterable[Iterable[Any]]) -> Iterator[str]:
    for burst in bursts:
        piece = ""
        for value in burst:
            line = encoded(value) + "\n"
            if piece and len(piece) + len(line) > PIECE_CHARACTERS:
                yield piece
                piece = ""
            piece += line
        if piece:
            yield piece


def encoded(value: Any) -> str:
    """Return ``value`` as JSON; a large one is encoded in pieces."""
    # One call of the encoder for all would stop all other threads for a millisecond for each 100 KB.
    return _ENCODER.encode(value) if _is_plain(value) else "".join(_parts(value))


def _is_plain(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_small, value.values()))


def _is_small(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return not value
    if isinstance(value, str):
        return len(value) < PIECE_CHARACTERS
    return not isinstance(value, Iterator)


def _is_large(value: Any) -> bool:
    """Whether ``value`` may be more than a piece, by what is in it one level deep."""
    return any(map(_is_long, value.values() if isinstance(value, dict) else [value]))


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) >= PIECE_CHARACTERS
    return isinstance(value, dict | list | tuple) and len(value) > LONG


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > PIECE_CHARACTERS:
        yield from _string(value)
    elif isinstance(value, dict) and all(isinstance(name, str) for name in value):
        lead = "{"
        for name, member in value.items():
            yield f"{lead}{_ENCODER.encode(name)}:"
            yield from _parts(member)
            lead = ","
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple | Iterator):
        yield "["
        yield from _items(value)
        yield "]"
    else:
        yield _ENCODER.encode(value)


def _string(text: str) -> Iterator[str]:
    yield '"'
    for start in range(0, len(text), PIECE_CHARACTERS):
        # Each character is escaped by itself.
        yield _ENCODER.encode(text[start : start + PIECE_CHARACTERS])[1:-1]
        give_way()
    yield '"'


def _items(items: Iterable[Any]) -> Iterator[str]:
    """Yield the items of a list in pieces: so many together as make a piece by the length of those before."""
    rest, lead, count = iter(items), "", 1
    while batch := [*islice(rest, count)]:
        if any(map(_is_large, batch)):
            for item in batch:
                yield lead
                yield from _parts(item)
                lead = ","
            count = 1
        else:
            piece = _ENCODER.encode(batch)
            yield lead + piece[1:-1]
            lead = ","
            count = max(1, min(2 * count, PIECE_CHARACTERS * count // len(piece)))
        give_way()


def as_listing(listing: Listing) -> flask.Response:
    """Return the response with the entries of ``listing``."""
    entries = iter(listing)
    pieces = listing_pieces(iter(lambda: [*islice(entries, PIECE_ENTRIES)], []))
    return flask.Response(b"".join(pieces) if len(listing) <= WHOLE_ENTRIES else pieces, mimetype="application/json")


def listing_pieces(bursts: Iterable[Sequence[Message]]) -> Iterator[bytes]:
    """Yield the JSON of the entries in ``bursts``; a blank for an empty burst."""
    lead = '{"entries":['
    for burst in bursts:
        if not burst:
            yield b" "
            continue
        yield (lead + ",".join(encoded(to_json(entry)) for entry in burst)).encode()
        lead = ","
    yield b"]}\n" if lead == "," else b'{"entries":[]}\n'


def as_result(result: Result, encoding: str, *, restarted: bool) -> flask.Response:
    """Return the response with ``result``'s exit code and output, as text or in base64."""
    pieces = _result_pieces(result, _base64_pieces if encoding == "base64" else _text_pieces, restarted=restarted)
    whole = len(result.stdout) + len(result.stderr) <= WHOLE_BYTES
    return flask.Response(b"".join(pieces) if whole else pieces, mimetype="application/json")


def output_text(output: bytes | bytearray, encoding: str) -> str:
    """Return ``output`` as in the response of :func:`as_result`."""
    if encoding == "base64":
        return base64.b64encode(output).decode()
    return output.removesuffix(b"\n").decode(errors="replace")


def _result_pieces(result: Result, encode: EncodePieces, *, restarted: bool) -> Iterator[bytes]:
    yield b'{"exitCode":%d,"stdout":"' % result.exit_code
    yield from encode(result.stdout)
    yield b'","stderr":"'
    yield from encode(result.stderr)
    yield b'","truncated":true' if result.truncated else b'"'
    yield b',"restarted":true}' if restarted else b"}"


def _text_pieces(output: bytes | bytearray) -> Iterator[bytes]:
    """Yield ``output`` as the inside of a JSON string, without its final newline; undecodable bytes become U+FFFD."""
    end = len(output) - output.endswith(b"\n")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, end, _OUTPUT_PIECE):
        stop = min(start + _OUTPUT_PIECE, end)
        yield _escaped(decoder.decode(output[start:stop], final=stop == end))
        give_way()


def _escaped(text: str) -> bytes:
    return encode_basestring(text)[1:-1].encode()


def _base64_pieces(output: bytes | bytearray) -> Iterator[bytes]:
    for start in range(0, len(output), _OUTPUT_PIECE):
        yield base64.b64encode(output[start : start + _OUTPUT_PIECE])
        give_way()
