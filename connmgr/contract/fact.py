"""``/fact``: what is known about the machines of connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from connmgr.contract.common import Selecting
from connmgr.contract.message import ID, Length, Message, Range

MAX_GATHERED = 2000
"""Most connections of one request that gathers facts."""

MAX_LISTED = 2000
"""Most connections in one answer with facts."""

MOST_SHOWN = 8 << 20
"""Characters of facts after which an answer has no further machines."""

SECONDS: Final = 30.0
PARALLEL: Final = 32


class FactGatherRequest(Selecting):
    parts: Annotated[
        list[str] | None,
        Length(1, 100),
        "What to gather: `system`, `package`, or the first word of a plugin's facts. Without it: everything.",
    ] = None
    parallel: Annotated[int, Range(1, 128), f"How many machines at a time. Without it: {PARALLEL}."] = PARALLEL
    timeout: Annotated[
        float, Range(0, 600, above=True), f"Seconds for each machine, with its login. Without it: {SECONDS:g}."
    ] = SECONDS


class GatheredFacts(Message):
    connection: Annotated[str, ID, "The connection."]
    facts: Annotated[int | None, "How many facts were gathered and stored."] = None
    error: Annotated[
        Mapping[str, Any] | None,
        "In place of `facts`: why there are none, with `code` and `message`. What was stored before stays.",
    ] = None


class FactGatherResponse(Message):
    gathered: Annotated[list[GatheredFacts], "One for each connection, as they ended."]


class FactQueryRequest(Selecting):
    names: Annotated[
        list[Annotated[str, Length(1, 128)]] | None,
        Length(1, 100),
        "Only facts whose names match one of these patterns: `*` stands for anything. Without it: all but packages.",
    ] = None
    offset: Annotated[int, Range(0, 10_000_000), "How many connections to skip."] = 0
    limit: Annotated[int, Range(1, MAX_LISTED), "Most connections in the answer."] = MAX_LISTED


class MachineFacts(Message):
    connection: Annotated[str, ID, "The connection."]
    name: Annotated[list[str], "Its path, as in `/connection/info`."]
    labels: Annotated[Mapping[str, str], "Its labels."]
    facts: Annotated[Mapping[str, Any], "The facts by their names: texts, and whole numbers."]
    gathered: Annotated[Mapping[str, str], "When each part was gathered, in ISO 8601 and UTC; empty if none ever was."]


class FactQueryResponse(Message):
    machines: Annotated[
        Sequence[MachineFacts],
        "In the order of the selection. Fewer than `limit` if their facts have more than 8 MiB; `offset` asks for the "
        "next ones.",
    ]
    total: Annotated[int, "How many connections were selected."]
