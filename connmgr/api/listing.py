"""Writes a listing as JSON, entry by entry, so that a large one does not multiply in memory."""

from __future__ import annotations

from collections.abc import Iterator

import flask
import marshmallow

from connmgr.api.answer import encoded
from connmgr.fs.entries import Listing

WHOLE_ENTRIES = 2048
"""Up to so many entries are sent with a Content-Length; more are sent in chunks, and the connection closed."""

PIECE_ENTRIES = 512
"""Entries that are sent at once."""


def respond(listing: Listing, schema: marshmallow.Schema) -> flask.Response:
    """Return the response with the entries of ``listing``, each dumped by ``schema``."""
    pieces = _pieces(listing, schema)
    return flask.Response(b"".join(pieces) if len(listing) <= WHOLE_ENTRIES else pieces, mimetype="application/json")


def _pieces(listing: Listing, schema: marshmallow.Schema) -> Iterator[bytes]:
    lead, shown = '{"entries":[', list[str]()
    for entry in listing:
        shown.append(encoded(schema.dump(entry)))
        if len(shown) == PIECE_ENTRIES:
            yield (lead + ",".join(shown)).encode()
            lead, shown = ",", []
    yield (lead + ",".join(shown) + "]}\n").encode() if shown or lead != "," else b"]}\n"
