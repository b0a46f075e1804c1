"""``/recording``: the recordings of terminals, listed, read and searched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

import flask

from connmgr import errors
from connmgr.api.answer import as_pieces
from connmgr.api.connection_data import locked_ones
from connmgr.api.context import caller, detail, while_valid
from connmgr.api.endpoint import Group
from connmgr.api.running import EXAMPLE
from connmgr.api.services import services
from connmgr.contract.message import message_of
from connmgr.contract.recording import (
    MAX_MATCHES,
    RecordedLine,
    RecordingInfo,
    RecordingQueryRequest,
    RecordingQueryResponse,
    RecordingRequest,
    RecordingSearchRequest,
    RecordingSearchResponse,
)
from connmgr.rights.authorisation import Work
from connmgr.terminals.recording import Recorded, as_version_3, describe, search

RECORDING = "8d5b0f0e-53a7-4c55-9a43-3e1fb8a0c8f2"
ASCIICAST = "application/x-asciicast"

SEARCH_SECONDS = 5.0
"""Longest processor time of one search."""

group = Group(
    "recording",
    "Recordings of terminals that were opened with `record`. Each has the uuid of its terminal, and is kept after its "
    "end (`recording-days`, `max-recordings`).",
)


@group.endpoint(
    "/query",
    reads=True,
    about=("connectionFilter",),
    example={"connectionFilter": "web*"},
    answer={
        "recordings": [
            {
                "recording": RECORDING,
                "connection": EXAMPLE,
                "command": "htop",
                "columns": 80,
                "rows": 24,
                "began": "2026-01-31T08:15:00.000000Z",
                "seconds": 61.5,
                "size": 48213,
                "active": False,
            }
        ]
    },
)
def query(request: RecordingQueryRequest) -> RecordingQueryResponse:
    """List the recordings whose terminals the caller may see, the newest first.

    Recordings of connections that were removed, and of versions that did not note the connection, are the owner's.
    """
    visible = list(_visible(_all()))
    if request.connection_filter != "*":
        chosen = set(services().vault.connections.query("*", request.connection_filter, "*"))
        visible = [recorded for recorded in visible if recorded.connection in chosen]
    locked = _locked(visible)
    visible.sort(key=lambda recorded: recorded.began, reverse=True)
    return RecordingQueryResponse(
        recordings=[_info(recorded, locked=recorded.connection in locked) for recorded in visible]
    )


@group.endpoint(
    "/read",
    reads=True,
    about=("recording",),
    raises=[errors.UnknownRecording, errors.SecretLocked],
    raw_answer="The recording as an asciicast, version 3: a header, and a JSON array per line.",
    raw_type=ASCIICAST,
    example={"recording": RECORDING},
)
def read(request: RecordingRequest) -> flask.Response:
    """Return a recording for players, such as asciinema's: an asciicast, version 3.

    Of a terminal that still runs it has the output until now, but for the last second.
    """
    recorded = _find(request.recording)
    detail(**({} if recorded.connection is None else {"connection": recorded.connection}))
    return as_pieces(while_valid(_pieces(recorded)), ASCIICAST)


def _pieces(recorded: Recorded) -> Iterator[bytes]:
    try:
        yield from as_version_3(recorded)
    except FileNotFoundError:
        raise errors.UnknownRecording(recorded.id) from None


@group.endpoint(
    "/search",
    reads=True,
    about=("recordings",),
    raises=[errors.UnknownRecording, errors.SecretLocked],
    example={"contains": "permission denied"},
    answer={
        "matches": [{"recording": RECORDING, "seconds": 12.25, "text": "cat: /etc/shadow: Permission denied"}],
        "complete": True,
    },
)
def find(request: RecordingSearchRequest) -> RecordingSearchResponse:
    """Find the lines of recordings that contain a text.

    Colours and other control sequences do not count. What a full-screen program draws with moves of the cursor is
    searched piece by piece, as it was printed. Without `recordings` those with locked secrets are left out.
    """
    if request.recordings is None:
        visible = list(_visible(_all()))
        locked = _locked(visible)
        readable = (recorded for recorded in visible if recorded.connection not in locked)
        chosen = sorted(readable, key=lambda recorded: -recorded.began)
    else:
        chosen = [_find(id) for id in dict.fromkeys(request.recordings)]
    matches: list[RecordedLine] = []
    with services().pace.turn(caller().holder):
        complete = _search(chosen, request.contains, matches)
    return RecordingSearchResponse(matches=matches, complete=complete)


def _search(chosen: Iterable[Recorded], text: str, matches: list[RecordedLine]) -> bool:
    """Fill ``matches``; return whether everything was searched."""
    until = time.thread_time() + SEARCH_SECONDS
    for recorded in chosen:
        caller().require_valid()
        try:
            for count, line in enumerate(search(recorded, text)):
                if line is not None:
                    if len(matches) >= MAX_MATCHES:
                        return False
                    matches.append(RecordedLine(recording=recorded.id, seconds=line.seconds, text=line.text))
                if not count % 64 and time.thread_time() > until:
                    return False
        except FileNotFoundError:
            # It was removed for a newer one while this request searched others.
            continue
    return True


def _all() -> Iterator[Recorded]:
    return filter(None, map(describe, services().terminals.recordings.paths()))


def _find(id: str) -> Recorded:
    path = services().terminals.recordings.path(id)
    recorded = None if path is None else describe(path)
    if recorded is None or not list(_visible([recorded])):
        raise errors.UnknownRecording(id)
    if _locked([recorded]):
        raise errors.SecretLocked("The recording shows a connection whose secrets are locked; unlock the vault first.")
    return recorded


def _visible(recorded: Iterable[Recorded]) -> Iterator[Recorded]:
    if caller().grant is None:
        yield from recorded
        return
    works = ((each, Work(each.connection, each.opener)) for each in recorded if each.connection is not None)
    yield from services().authorisation.visible_work(caller(), works)


def _locked(recorded: Iterable[Recorded]) -> set[str]:
    return locked_ones(each.connection for each in recorded if each.connection is not None)


def _info(recorded: Recorded, *, locked: bool) -> RecordingInfo:
    return message_of(
        RecordingInfo,
        recorded,
        recording=recorded.id,
        command=None if locked else recorded.command,
        locked=locked or None,
        began=datetime.fromtimestamp(recorded.began, timezone.utc),
        active=services().terminals.recordings.is_active(recorded.id),
    )
