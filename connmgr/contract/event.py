"""``/event``: what changes at the daemon, told as it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

from connmgr.contract.message import ID, Length, Message, OneOf, Range, SchemaMembers, Wrong

CONNECTION: Final = "connection"
CATEGORY: Final = "category"
HOSTKEY: Final = "hostkey"
LINK: Final = "link"
SHELL: Final = "shell"
JOB: Final = "job"
TERMINAL: Final = "terminal"
TUNNEL: Final = "tunnel"
APPROVAL: Final = "approval"
TOKEN: Final = "token"  # noqa: S105 - a kind of events
RUN: Final = "run"
SCHEDULE: Final = "schedule"

WAITING: Final = "waiting"
"""The change of a job or terminal that waits for input; ``running`` is when it goes on."""

TOUCH: Final = "touch"
"""The change of a link whose login waits for the touch of a security key."""

CHANGES: Mapping[str, tuple[str, ...]] = {
    CONNECTION: ("added", "changed", "removed"),
    CATEGORY: ("added", "removed"),
    HOSTKEY: ("trusted", "forgotten"),
    LINK: (TOUCH, "up", "lost", "closed"),
    SHELL: ("started", "busy", "idle", "lost", "ended"),
    JOB: ("started", "running", WAITING, "exited", "killed", "timed_out", "lost", "removed"),
    RUN: ("pending", "running", "waiting", "paused", "stopping", "done", "failed", "stopped", "removed"),
    TERMINAL: ("opened", "clients", WAITING, "running", "exited", "lost", "closed", "removed"),
    TUNNEL: ("connecting", "open", "retrying", "failed", "stopped"),
    APPROVAL: ("requested", "decided", "used"),
    TOKEN: ("created", "renewed", "revoked"),
    SCHEDULE: ("added", "changed", "removed", "paused", "resumed", "fired", "skipped", "missed", "refused"),
}
"""The kinds of events, and what can happen in each."""

KINDS = tuple(CHANGES)

STREAM: Final = "stream"
BEGUN, MISSED, ALIVE, ENDED = "begun", "missed", "alive", "ended"
"""The kind of the lines about the stream itself, and what they say."""

MAX_NUMBER = 1 << 53
"""Numbers of events are exact in the floating-point numbers of JSON's readers."""


MOST_AGO_SECONDS = 60.0
"""Longest time that a stream looks back by itself."""


class EventStreamRequest(Message):
    kinds: Annotated[
        Sequence[Annotated[str, OneOf(KINDS)]] | None,
        Length(1),
        f"Only events of these kinds: {', '.join(f'`{kind}`' for kind in KINDS)}. Without it: all that the caller may "
        "see.",
    ] = None
    after: Annotated[
        int | None,
        Range(0, MAX_NUMBER),
        "The `number` of the last event that the client knows: the stream begins with those after it. Without it: with "
        "those that happen from now on.",
    ] = None
    ago: Annotated[
        float | None,
        Range(0, MOST_AGO_SECONDS),
        "Seconds: the stream begins with what happened in this time before. Not together with `after`.",
    ] = None

    def check(self) -> None:
        super().check()
        if self.after is not None and self.ago is not None:
            raise Wrong("Not together with after.", "ago")


class Event(Message):
    """A line of the stream: an event, or with the kind ``stream`` something about the stream itself."""

    number: Annotated[
        int,
        "Rises from event to event, also over restarts of the daemon. Of kind `stream`: the last number that this "
        "stream is past.",
    ]
    time: Annotated[datetime, "When it happened."]
    kind: Annotated[str, SchemaMembers({"enum": [*KINDS, STREAM]}), "What changed."]
    change: Annotated[
        str,
        "How it changed. "
        + " ".join(f"`{kind}`: {', '.join(f'`{change}`' for change in CHANGES[kind])}." for kind in KINDS)
        + f" `{STREAM}`: `{BEGUN}`, always the first line; `{MISSED}`: events were lost, so read again all that is "
        f"shown; `{ALIVE}`: nothing has happened for a while; `{ENDED}`: the last line, with `code` and `message`.",
    ]
    connection: Annotated[str | None, ID, "The connection that it is about, or on which it happened."] = None
    connections: Annotated[list[str] | None, "Of `approval`: the connections that the request names."] = None
    id: Annotated[str | None, "The job, run, schedule, terminal, approval, token or category."] = None
    session: Annotated[str | None, "Of `shell`: its name; absent for the connection's own shell."] = None
    state: Annotated[str | None, "Of `job`, `run`, `terminal`, `tunnel`, `approval`: the state as in its `query`."] = (
        None
    )
    exit_code: Annotated[int | None, "Of `job` and `terminal`: the exit code, if one is known."] = None
    name: Annotated[
        str | None, "Of `connection` and `category` the path, of `job`, `run` and `token` the name, if any."
    ] = None
    address: Annotated[str | None, "Of `tunnel`: where it listens, as `HOST:PORT`; of `hostkey`: the host."] = None
    code: Annotated[str | None, f"Of `tunnel`: the code of the last error; of `{ENDED}`: why the stream ends."] = None
    message: Annotated[str | None, f"Of `{ENDED}`: the same for a person."] = None
    clients: Annotated[int | None, "Of `terminal`: how many clients are attached."] = None
    token: Annotated[
        str | None, "Of `approval`: the token that requests; of `job`, `run`, `terminal`: the token that started it."
    ] = None
    run: Annotated[str | None, "Of `schedule`: the run that was started, or that is still under way."] = None
    expires: Annotated[datetime | None, "Of `approval` and `token`: when it expires."] = None


class EventTicketResponse(Message):
    ticket: Annotated[str, "Offered as the subprotocol `connmgr.ticket.TICKET` beside `connmgr.v1`."]
