"""``/fact``: facts about the machines of connections, gathered on request and kept in the vault."""

from __future__ import annotations

from fnmatch import fnmatchcase

from connmgr import errors
from connmgr.api.body import LISTED_VALUES
from connmgr.api.connection_data import require_ids
from connmgr.api.context import caller, cancellation, detail, part, request_context
from connmgr.api.endpoint import Group
from connmgr.api.errors import as_error, body_of
from connmgr.api.running import EXAMPLE
from connmgr.api.selection import selected, with_shells
from connmgr.api.services import services
from connmgr.contract.common import PACKAGE_FACTS
from connmgr.contract.fact import (
    MAX_GATHERED,
    MOST_SHOWN,
    FactGatherRequest,
    FactGatherResponse,
    FactQueryRequest,
    FactQueryResponse,
    GatheredFacts,
    MachineFacts,
)
from connmgr.contract.message import replace, time_to_json
from connmgr.vault import Connection
from connmgr.vault.facts import KnownFacts

group = Group(
    "fact",
    "What is known about the machines of connections: system, memory, disks, packages, and what plugins add. The "
    "daemon asks a machine when it is told to, and the vault keeps the answer with its time. Conditions (`where`) "
    "choose connections by facts, everywhere that filters do.",
)


def _select(request: FactGatherRequest) -> FactGatherRequest:
    ids = selected(request, most=MAX_GATHERED, what="gathering facts")
    if request.connections is None:
        suited = with_shells(services().vault.connections.each(ids))
        ids = [id for id in ids if id in suited]
    others = dict.fromkeys(("connection_filter", "category_filter", "type_filter", "where"))
    return replace(request, connections=ids, **others)


@group.endpoint(
    "/gather",
    has_content=True,
    most_values=LISTED_VALUES,
    about=("connections", "parts"),
    selects=_select,
    raises=[errors.UnknownConnection, errors.IntegrityError],
    waits=True,
    example={"connectionFilter": "web*", "parts": ["system"]},
    answer={"gathered": [{"connection": EXAMPLE, "facts": 16}]},
)
def gather(request: FactGatherRequest) -> FactGatherResponse:
    """Ask machines about themselves, many at a time, and store what they say.

    A short program runs in each, as the connection's user, beside its shells. It needs only POSIX. A program that
    prints more than 1 MiB, or takes longer than `timeout`, is ended. A machine that cannot be asked has an `error`, and
    keeps the facts that were stored before. To a token, a connection that is unknown or out of its sight is an error of
    the whole request. Facts are removed when new data may lead their connection elsewhere.
    """
    grant, gathered = caller().grant, []
    if grant is not None:
        # Links are opened in other threads, which know no request.
        request_context().loan = services().loans.of(grant.lineage_ids)
    for outcome in services().facts.gather(
        request.connections or [],
        request.parts,
        caller().access,
        parallel=request.parallel,
        timeout=request.timeout,
        cancellation=cancellation(),
    ):
        if outcome.error is None:
            part({"connection": outcome.connection}, facts=outcome.facts)
            gathered.append(GatheredFacts(connection=outcome.connection, facts=outcome.facts))
            continue
        body = body_of(as_error(outcome.error, request_context()))
        gathered.append(GatheredFacts(connection=outcome.connection, error=body.get("error", body)))
    failed = sum(outcome.error is not None for outcome in gathered)
    detail(succeeded=len(gathered) - failed, errors=failed)
    return FactGatherResponse(gathered=gathered)


@group.endpoint(
    "/query",
    has_content=True,
    most_values=LISTED_VALUES,
    has_large_answer=True,
    reads=True,
    audited=False,
    about=("connections",),
    raises=[errors.UnknownConnection, errors.IntegrityError],
    example={"where": "os.id=debian", "names": ["os.*", "package.openssl"]},
    answer={
        "machines": [
            {
                "connection": EXAMPLE,
                "name": ["local machine"],
                "labels": {"env": "prod"},
                "facts": {"os.id": "debian", "os.version": "12", "package.openssl": "3.0.17-1~deb12u2"},
                "gathered": {"system": "2025-01-31T08:15:00.000000Z", "package": "2025-01-31T08:15:00.000000Z"},
            }
        ],
        "total": 1,
    },
)
def query(request: FactQueryRequest) -> FactQueryResponse:
    """Return the facts that were gathered about the machines of connections, with their times. No machine is asked."""
    require_ids(request.connections or ())
    ids = selected(request, most=10_000_000, what="a query of facts")
    vault, machines, characters = services().vault, list[MachineFacts](), 0
    for some, facts in vault.facts.in_pieces(ids[request.offset : request.offset + request.limit]):
        for connection in vault.connections.infos(some):
            machine = _machine(connection, facts.get(connection.id, KnownFacts({}, {})), request.names)
            machines.append(machine)
            characters += sum(len(name) + len(str(value)) for name, value in machine.facts.items())
            if characters > MOST_SHOWN:
                return FactQueryResponse(machines=machines, total=len(ids))
    return FactQueryResponse(machines=machines, total=len(ids))


def _machine(connection: Connection, facts: KnownFacts, names: list[str] | None) -> MachineFacts:
    return MachineFacts(
        connection=connection.id,
        name=list(connection.path),
        labels=connection.labels,
        facts={name: value for name, value in sorted(facts.values.items()) if _is_wanted(name, names)},
        gathered={part: time_to_json(at) for part, at in facts.gathered.items()},
    )


def _is_wanted(name: str, patterns: list[str] | None) -> bool:
    if patterns is None:
        return not name.startswith(f"{PACKAGE_FACTS}.")
    return any(fnmatchcase(name, pattern) for pattern in patterns)
