"""``/recording``: what terminals have printed, kept as files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from connmgr.contract.message import FILTER, ID, Length, Message

MAX_TEXT = 200
"""Longest text to search for, in characters."""

MAX_MATCHES = 200


class RecordingRequest(Message):
    recording: Annotated[str, ID, "The recording: the uuid of its terminal."]


class RecordingInfo(RecordingRequest):
    """A recording; ``seconds`` until its last output."""

    connection: Annotated[
        str | None, "The connection of its terminal, which may have been removed; null in recordings of older versions."
    ]
    command: Annotated[
        str | None, "What ran: the `command`, or the words of the `argv`; null: an interactive shell, or not known."
    ]
    locked: Annotated[
        bool | None, "True if the caller cannot open the connection's secrets, and so not read this; `command` is null."
    ] = None
    columns: Annotated[int, "The terminal's width at first."]
    rows: Annotated[int, "The terminal's height at first."]
    began: Annotated[datetime, "When it began, in whole seconds."]
    seconds: Annotated[float | None, "Seconds from its beginning to the last output; null if nothing was printed."]
    size: Annotated[int, "Bytes of its file."]
    active: Annotated[bool, "Whether its terminal still runs."]


class RecordingQueryRequest(Message):
    connection_filter: Annotated[str, FILTER, "Names of connections, as in `/connection/query`."] = "*"


class RecordingQueryResponse(Message):
    recordings: Annotated[list[RecordingInfo], "The recordings, the newest first."]


class RecordingSearchRequest(Message):
    contains: Annotated[str, Length(1, MAX_TEXT), "The text, in any case of its letters, within one line."]
    recordings: Annotated[
        Sequence[Annotated[str, ID]] | None, Length(1, 1000), "Only these. Without it: all, the newest first."
    ] = None


class RecordedLine(Message):
    """A line that has the text."""

    recording: Annotated[str, "The recording's uuid."]
    seconds: Annotated[float, "When the line was printed, from the beginning."]
    text: Annotated[str, "The line, without control sequences, at most 300 characters around the text."]


class RecordingSearchResponse(Message):
    matches: Annotated[list[RecordedLine], "The lines, at most 200."]
    complete: Annotated[bool, "False if there may be more: after 200 lines, or 5 seconds of work."]
