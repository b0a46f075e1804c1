"""Reads request bodies: strict JSON, validated by the endpoint's schema before anything is done."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import marshmallow
from werkzeug.http import parse_options_header

from connmgr.api.json_pieces import PieceDecoder
from connmgr.computing import REST, give_way
from connmgr.contract.message import path_to_json
from connmgr.errors import ConnmgrError, InvalidRequest, UnsupportedMediaType
from connmgr.fields import Boolean, Schema
from connmgr.fs.bodies import ArrivingBody

MAX_DEPTH = 32
MAX_DIGITS = 400
MAX_VALUES = 50_000
"""Most values in a token's body. A value of three bytes takes a hundred in memory, so its length alone does not limit
that; nor does it limit the time for which parsing stops all other threads."""

LISTED_VALUES = 500_000
"""The same where a request lists connections, categories or files, and for the owner."""

LARGE_BYTES = 64 * 1024
"""Bodies above this size are parsed at their sender's pace (:class:`connmgr.computing.Pace`)."""

HUGE_BYTES = 1024 * 1024
HUGE_REST = 100.0
"""The rest after bodies above :data:`HUGE_BYTES`: Python's parser lets no other thread run for a millisecond each."""

MANY_MEMBERS = 1000

WHOLE_BODY = "The request body"
LONGEST_NAME = 100
LONGEST_PLACE = 500
LONGEST_TEXT, DEEPEST = 64 * 1024, 64
"""Limits of the search, in characters and levels; an error beyond them is reported without its path."""

Path = tuple[str | int, ...]

_JSON_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^\s][^][{}:,"\s]*', re.DOTALL)
_NAME = ":"

_PIECE = 64 * 1024
_BACKSLASHES = re.compile(rb"\\*")

MAX_MESSAGE = 2000
MAX_FIELDS = 64
"""Most members of a query."""

BYTES = "application/octet-stream"
"""The media type of a body that is a line with the request in JSON, and then input."""

FED_PATHS = frozenset({"/shell/exec"})
"""Paths that accept such bodies, which the server passes on while they arrive."""

INPUT, BODY = "input", "body"
"""The member of such a request, and its value: what follows the line is the command's input."""

MAX_LINE = 4 << 20
"""Longest line of a request before input: a command and an environment of 1 MiB each, in the escapes of JSON."""

_FLAGS = {b"true": True, b"false": False}


class Nothing(Schema):
    """The request of an endpoint without fields: no body at all, or an empty object."""


_NOTHING = Nothing()


@dataclass(frozen=True)
class Refusal:
    """Why the server did not receive a whole request. The request is still answered, if its header was read."""

    error: ConnmgrError
    header_read: bool


REFUSAL = "connmgr.refusal"
"""The key in a request's environment for its :class:`Refusal`, if it has one."""


def read(
    environ: Mapping[str, Any],
    schema: marshmallow.Schema | None,
    *,
    raw: bool,
    most: int = MAX_VALUES,
    turn: Callable[[float], AbstractContextManager[None]] = lambda _: nullcontext(),
    in_pieces: bool = False,
) -> Any:
    """Return the values that ``schema`` loads from a request's body, or from its query if the body is ``raw`` bytes.

    A body may have ``most`` values, and a large one is parsed and loaded within a ``turn`` with its rest, and if asked
    for ``in_pieces``, between which other threads run. Without a schema this is an empty dict.

    :raises ConnmgrError: the server has already refused the body.
    :raises UnsupportedMediaType: the body is compressed, or is to be JSON and not declared as that, in UTF-8.
    :raises InvalidRequest: the schema refuses a field, which is named by its path; and as :func:`parse`.
    """
    # The server refuses a body while it arrives, when no endpoint is known yet; the answer comes from here.
    refusal: Refusal | None = environ.get(REFUSAL)
    if refusal is not None:
        raise refusal.error
    if environ["REQUEST_METHOD"] != "POST":
        return {}
    if environ.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        # Of bytes, too: a file would have other content than was meant.
        raise UnsupportedMediaType("A request body must not be compressed: send it without Content-Encoding.")
    if raw and schema is None:
        return {}
    if raw and schema is not None:
        return load(schema, read_query(environ["QUERY_STRING"].encode("latin-1"), schema))
    arriving = environ["wsgi.input"]
    is_fed = isinstance(arriving, ArrivingBody)
    # Of a body whose input follows, only the line of JSON is read here; the command reads the rest as it runs.
    body: bytes = arriving.first_line(MAX_LINE) if is_fed else arriving.read()
    if not body and schema is None:
        return {}
    if not is_fed:
        _check_type(environ)
    rest = HUGE_REST if len(body) > HUGE_BYTES else REST
    is_large = len(body) > LARGE_BYTES
    with turn(rest) if is_large else nullcontext():
        members = ({INPUT: BODY} if is_fed else {}) | parse(body, most, in_pieces=in_pieces and is_large)
        return load(schema or _NOTHING, members) if schema or members else {}


def load(schema: marshmallow.Schema, members: dict[str, Any]) -> Any:
    """Return the values that ``schema`` loads from ``members``; raise :class:`InvalidRequest` for a refused field."""
    try:
        return schema.load(members)
    except marshmallow.ValidationError as error:
        messages: Any = error.messages
        raise InvalidRequest(describe(messages)) from None


def read_query(query: bytes, schema: marshmallow.Schema) -> dict[str, Any]:
    """Return the members of a URL's ``query`` as JSON values for ``schema``: ``true`` and ``false`` for its booleans.

    A value that is not UTF-8 becomes ``{"base64": …}``, as for a path.
    :raises InvalidRequest: it is malformed, or names a member twice.
    """
    try:
        # In Latin-1 every byte is a character.
        pairs = parse_qsl(
            query.decode("latin-1"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            encoding="latin-1",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise InvalidRequest("The query of the request is malformed; write name=value&name=value.") from None
    members: dict[str, Any] = {}
    for name, text in pairs:
        value = text.encode("latin-1")
        if name in members:
            raise InvalidRequest(f"{name}: This name occurs more than once in the query.")
        is_flag = isinstance(schema.fields.get(name), Boolean)
        members[name] = _FLAGS.get(value, value.decode(errors="replace")) if is_flag else path_to_json(value)
    return members


def _check_type(environ: Mapping[str, Any]) -> None:
    declared = environ.get("CONTENT_TYPE", "")
    if declared != "application/json" and not _is_json_in_utf8(declared):
        raise UnsupportedMediaType("The Content-Type of a request must be application/json, in UTF-8.")


def _is_json_in_utf8(content_type: str) -> bool:
    media_type, parameters = parse_options_header(content_type)
    return media_type.lower() == "application/json" and parameters.get("charset", "utf-8").lower() in {"utf-8", "utf8"}


def parse(body: bytes, most: int = MAX_VALUES, *, in_pieces: bool = False) -> dict[str, Any]:
    """Parse ``body``, which must be a JSON object of at most ``most`` values.

    ``in_pieces`` it takes ten times as long, and other threads run meanwhile.

    :raises InvalidRequest: it is not a JSON object, or has duplicate names, numbers that JSON lacks, too many levels or
        too many values.
    """
    if _has_more_values(body, most):
        raise InvalidRequest(f"The request body has more than {most} values; send several smaller requests.")
    try:
        text = _decoded(body)
        value = (_IN_PIECES if in_pieces else _DECODER).decode(text)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The request body is not UTF-8: bad byte at position {error.start}.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"The request body is not valid JSON: {error.msg} ({where}).") from None
    except Refused as refused:
        raise InvalidRequest(f"{place_of(refused, text)}: {refused}") from None
    except RecursionError:
        raise _too_deep(text) from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body is not a JSON object.")
    if _is_too_deep(value):
        raise _too_deep(text)
    return value


def _decoded(body: bytes) -> str:
    """Return a UTF-8 text; in pieces, because a single call over many megabytes stops all other threads meanwhile."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces: list[str] = []
    try:
        for start in range(0, len(body), _PIECE):
            pieces.append(decoder.decode(body[start : start + _PIECE]))
            give_way()
        return "".join((*pieces, decoder.decode(b"", final=True)))
    except UnicodeDecodeError:
        # Its position is the one in the piece.
        return body.decode()


def _has_more_values(body: bytes, most: int) -> bool:
    """Whether a JSON text has more than ``most`` values; each follows a comma or the beginning of its container.

    This builds none, and works in pieces: a single call over many megabytes would stop all other threads meanwhile.
    """
    marks = 0
    for end in range(_PIECE, len(body) + _PIECE, _PIECE):
        marks += sum(body.count(mark, end - _PIECE, end) for mark in (b",", b"[", b"{"))
        give_way()
    if marks <= most:
        return False
    # Content has commas and brackets too. Without escapes, each second quote ends a string.
    values = quotes = start = 0
    while start < len(body):
        # A piece does not end within an escape.
        end = _BACKSLASHES.match(body, min(start + _PIECE, len(body))).end() + 1  # type: ignore[union-attr]
        parts = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2])
        values += sum(outside.count(mark) for mark in (b",", b"[", b"{"))
        quotes += len(parts) - 1
        if values > most or quotes > 4 * most:
            return True
        start = end
        give_way()
    return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # dict() of very many pairs would stop all other threads; a loop takes longer, and they run meanwhile.
    members = dict(pairs) if len(pairs) < MANY_MEMBERS else {name: value for name, value in pairs}  # noqa: C416
    if len(members) != len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Refused("This name occurs more than once in its object.", name=repeated)
    return members


def _no_constant(name: str) -> NoReturn:
    raise Refused(f"{name} is not a JSON number.", literal=name)


def _integer(digits: str) -> int:
    # Converting takes quadratic time, and Python refuses 4,300 digits or more.
    if len(digits) > MAX_DIGITS:
        raise Refused(f"A number may have at most {MAX_DIGITS} digits.", literal=digits)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise Refused("The number is too large.", literal=digits)
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer, parse_float=_finite
)
_IN_PIECES = PieceDecoder(_DECODER)


def _is_too_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _too_deep(text: str) -> InvalidRequest:
    return InvalidRequest(f"{place_of_depth(text, MAX_DEPTH)}: This is nested deeper than {MAX_DEPTH} levels.")


def _inside(container: dict[str, Any] | list[Any]) -> Any:
    return container.values() if isinstance(container, dict) else container


def describe(messages: Mapping[Any, Any], prefix: str = "") -> str:
    """Return marshmallow's messages in one line, each after its field's path: ``data.port: Not a valid integer.``"""
    return " ".join(_lines(messages, prefix))[:MAX_MESSAGE]


def _lines(messages: Any, path: str) -> Iterator[str]:
    if isinstance(messages, Mapping):
        for key, inner in messages.items():
            # marshmallow's name for errors of a whole object.
            name = path if key == "_schema" else f"{path}.{key}" if path else str(key)
            yield from _lines(inner, name)
    elif isinstance(messages, list):
        for inner in messages:
            yield from _lines(inner, path)
    else:
        yield f"{path}: {messages}" if path else str(messages)


class Refused(ValueError):
    """The error: a ``literal`` that is not accepted, or a ``name`` that occurs twice in an object."""

    def __init__(self, message: str, *, literal: str = "", name: str = "") -> None:
        super().__init__(message)
        self.literal = literal
        self.name = name


def place_of(refused: Refused, text: str) -> str:
    """Return the path of the refused value in ``text``, such as ``data.port``."""
    seen: set[Path] = set()
    for piece, path in _walk(text):
        # The decoder stops after a literal, whatever follows.
        if refused.literal and piece.startswith(refused.literal):
            return _joined(path)
        if not refused.literal and piece == _NAME and path[-1] == refused.name:
            if path in seen:
                return _joined(path)
            seen.add(path)
    return _joined((refused.name,))


def place_of_depth(text: str, levels: int) -> str:
    """Return the path of the first array or object in ``text`` that is nested in ``levels`` others."""
    return next((_joined(path) for piece, path in _walk(text) if piece in "{[" and len(path) == levels), WHOLE_BODY)


def _walk(text: str) -> Iterator[tuple[str, Path]]:
    """Yield each value's first piece with the value's path, and ``:`` with the path of each name.

    Stop where the text is no longer JSON, or is too long or too deep.
    """
    path: list[str | int] = []
    # Whether the next item in an object is a value.
    named = False
    for match in _JSON_PIECE.finditer(text, 0, LONGEST_TEXT):
        piece = match[0]
        if len(path) > DEEPEST or (not path and piece in "]},:"):
            return
        if piece in "]}":
            path.pop()
            named = True
        elif piece == ",":
            if isinstance(path[-1], int):
                path[-1] += 1
            named = False
        elif piece == _NAME:
            yield piece, tuple(path)
        elif path and isinstance(path[-1], str) and not named:
            path[-1] = json.loads(piece)
            named = True
        else:
            yield piece, tuple(path)
            if piece in "{[":
                path.append("" if piece == "{" else 0)
                named = False


def _joined(path: Path) -> str:
    return ".".join(str(part)[:LONGEST_NAME] for part in path)[:LONGEST_PLACE] or WHOLE_BODY
