"""Writes a listing as JSON, entry by entry, so that a large one does not multiply in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import flask

from connmgr.api.answer import encoded
from connmgr.contract.message import Message, to_json
from connmgr.fs.listing import Listing

WHOLE_ENTRIES = 2048
"""Most entries of an answer with Content-Length; longer ones are sent in chunks, and the connection is closed."""

PIECE_ENTRIES = 512
"""Entries per chunk."""


def respond(listing: Listing, kind: type[Message]) -> flask.Response:
    """Return the response with the entries of ``listing``, each as a ``kind`` of message."""
    entries = iter(listing)
    pieces = written(iter(lambda: [*islice(entries, PIECE_ENTRIES)], []), kind)
    return flask.Response(b"".join(pieces) if len(listing) <= WHOLE_ENTRIES else pieces, mimetype="application/json")


def written(bursts: Iterable[Sequence[Any]], kind: type[Message]) -> Iterator[bytes]:
    """Yield the JSON of the entries in ``bursts``, each as a ``kind`` of message; a blank for an empty burst."""
    lead = '{"entries":['
    for burst in bursts:
        if not burst:
            yield b" "
            continue
        yield (lead + ",".join(encoded(to_json(entry, kind)) for entry in burst)).encode()
        lead = ","
    yield b"]}\n" if lead == "," else b'{"entries":[]}\n'
