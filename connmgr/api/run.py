"""``/run``: one command on many connections, which outlives clients and daemons."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from connmgr import errors
from connmgr.api.answer import output_text
from connmgr.api.body import MAX_VALUES
from connmgr.api.broadcast import Selection, resolve
from connmgr.api.connection_data import locked_ones
from connmgr.api.context import STORE, caller, continuation, detail, request_context, sees_work
from connmgr.api.endpoint import Group
from connmgr.api.running import EXAMPLE, with_words
from connmgr.api.services import services
from connmgr.contract.fact import SECONDS
from connmgr.contract.message import given_json, message_of, replace
from connmgr.contract.run import (
    DONE,
    ENDED,
    MAX_SCRIPT,
    MAX_TARGETS,
    MOST_SHOWN,
    STARTING,
    STOPPED,
    TARGET_STATES,
    WAITING,
    RunGroup,
    RunInfo,
    RunInfoRequest,
    RunOutputRequest,
    RunOutputResponse,
    RunQueryRequest,
    RunQueryResponse,
    RunRemoveRequest,
    RunRequest,
    RunRetryRequest,
    RunStartRequest,
    RunStartResponse,
    RunStopRequest,
    RunTarget,
    RunTargetsRequest,
    RunTargetsResponse,
    RunWaitRequest,
)
from connmgr.links.chain import locked_connections
from connmgr.runs.author import RUN
from connmgr.runs.plan import batches_of, manner_of, stop_after_of, warning_of, waves_of
from connmgr.secrets.principals import Access
from connmgr.suspension import Suspended
from connmgr.vault import Connection
from connmgr.vault.names import base_of
from connmgr.vault.runs import NewRun, StoredRun, TargetOutput
from connmgr.vault.schema import Row, canonical, now

group = Group(
    "run",
    "One command on many connections, in waves, with a stop at failures. A run is kept in the vault: it needs no "
    "client, a restarted daemon goes on with it, and the daemons of a vault on PostgreSQL share its targets.",
)

RUN_ID = "0d5f0b0e-4a44-4b57-9f0c-2a6f2d3c1e11"
DAY = 86400

_COUNTS = dict.fromkeys(TARGET_STATES, 0)
_INFO = {
    "run": RUN_ID,
    "name": "upgrade",
    "state": "running",
    "reason": None,
    "command": "apt-get -y upgrade",
    "as": "shell",
    "why": "no timeout of more than 600 s was given",
    "targets": 200,
    "counts": {**_COUNTS, WAITING: 180, STARTING: 4, DONE: 16},
    "wave": 2,
    "waves": [1, 19, 180],
    "parallel": 100,
    "stopAfter": 10,
    "retryOf": None,
    "token": None,
    "submitted": "2026-01-31T08:15:00.000000Z",
    "began": "2026-01-31T08:15:00.020000Z",
    "ended": None,
    "rate": 3.2,
    "left": 57.5,
    "daemons": ["control1"],
}


@dataclass(frozen=True)
class RunSelection:
    """What a request to start a run selects, and the request before any rule has changed it.

    ``asked`` stands for the request as it was sent, before its filters were applied.
    """

    connections: Selection
    original: RunStartRequest
    asked: str | None = None
    retry_of: str | None = None


def _select(request: RunStartRequest) -> RunStartRequest:
    """Return the request with the connections and the words that it means; its selection is the context's."""
    asked = _digest(request)
    if request.script is not None:
        request = replace(request, script=None, argv=request.script.argv())
    chosen = resolve(request, MAX_TARGETS, "a run")
    request_context().selection = RunSelection(request_context().selection, chosen, asked)
    return chosen


def _digest(request: RunStartRequest) -> str:
    """Return what stands for all that a request asks for: with its key it may be repeated, not changed."""
    # Nobody chooses for each request what a client sends of its environment. The digest is kept sealed.
    beside = ("key", "wait", "sendEnv", "dryRun")
    asked = {name: value for name, value in given_json(request).items() if name not in beside}
    return sha256(canonical(asked).encode()).hexdigest()


def _again(request: RunRetryRequest) -> RunStartRequest:
    """Return the request of an earlier run, on those of its targets that are to run again, as it is permitted now."""
    run = _require_ended(_visible_run(request.run))
    if run.token != caller().token:
        # What a token was not allowed, or what its sandbox has prevented, would be done by whoever repeats it.
        raise errors.PolicyDenied(
            f"Another token ({run.token}) has started the run, and a retry would run its command with your rights: let "
            "that token retry it, or look at the command and start a run of your own."
        )
    rows, _ = services().vault.runs.targets(run.id, states=request.states)
    if not rows:
        raise errors.InvalidRequest(f"states: No target of the run is {' or '.join(request.states)}.")
    content = services().vault.runs.content(run)
    original = RunStartRequest.read(content["asked"] or content["request"])
    # Nobody waits for an approval here: a view that has begun is not run again.
    again = replace(original, connections=[row["connection"] for row in rows], key=None, dry_run=False, wait=0)
    ids = list(again.connections or ())
    selection = Selection(services().vault.connections.each(ids))
    chosen = with_words(again)
    context, authorisation = request_context(), services().authorisation
    context.selection = RunSelection(selection, chosen, retry_of=run.id)
    if not authorisation.concerns(caller()):
        return chosen
    permitted = authorisation.check(caller(), RUN, chosen)
    context.authority |= permitted.reasons
    context.grounds = permitted.grounds
    services().approvals.begun()
    return permitted.request


STARTS: dict[str, Any] = {
    "has_content": True,
    # More are refused as they are counted: parsing a hundred thousand ids takes a token seconds.
    "most_values": MAX_TARGETS + MAX_VALUES,
    "raises": [
        errors.IntegrityError,
        errors.UnknownConnection,
        errors.UnknownCommand,
        errors.KeyReused,
        errors.RunLimit,
    ],
    "waits": True,
}


@group.endpoint(
    "/start",
    action=RUN,
    about=("connectionFilter", "categoryFilter", "typeFilter", "where", "session", "command", "argv", "facts", "name"),
    selects=_select,
    example={
        "connectionFilter": "web*",
        "command": "apt-get -y upgrade",
        "waves": [1, "10%", "100%"],
        "stopAfter": "5%",
        "timeout": 300,
    },
    answer={
        "run": RUN_ID,
        "targets": 200,
        "waves": [1, 19, 180],
        "as": "shell",
        "why": "no timeout of more than 600 s was given",
    },
    **STARTS,
)
def start(request: RunStartRequest) -> RunStartResponse:
    """Start a run, and answer at once.

    The selection is frozen now; `dryRun` shows it. Each target's rights are checked again when it begins, and a token
    that is revoked stops its run. A machine that cannot be reached is `unreachable`, which is not `failed`.
    """
    return _start(request)


@group.endpoint(
    "/retry",
    about=("run", "states"),
    example={"run": RUN_ID, "states": ["failed", "unreachable"]},
    answer={
        "run": "7a3c7c1e-9a5e-4b0c-8d0a-1f3f5a2b9c22",
        "targets": 3,
        "waves": [3],
        "as": "shell",
        "why": "no timeout of more than 600 s was given",
    },
    **{**STARTS, "raises": [*STARTS["raises"], errors.UnknownRun, errors.RunUnderWay]},
)
def retry(request: RunRetryRequest) -> RunStartResponse:
    """Run again what did not succeed in a run that has ended: as a new run of the same command, which names the old.

    Only who started the run may do that, the owner or the same token, so that nobody lends rights to a command that
    somebody else has chosen.
    """
    return _start(_again(request))


def _start(request: RunStartRequest) -> RunStartResponse:
    daemon, selection = services(), request_context().selection
    if request.facts is not None:
        # Refused now, while somebody waits for the answer.
        daemon.facts.chosen(request.facts, "facts")
        if (grant := caller().grant) is not None:
            grant.require_scope("fact.gather")
    ids = list(request.connections or ())
    for id in ids:
        if id not in selection.connections.stored:
            raise errors.UnknownConnection(id)
    waves = waves_of(request, len(ids))
    warning = warning_of(request, waves)
    default_timeout = daemon.settings.command_timeout if request.facts is None else SECONDS
    timeout = default_timeout if request.timeout is None else request.timeout
    manner, why = manner_of(request, timeout)
    locked, own_only = _locked(ids)
    answer = RunStartResponse(
        targets=len(ids), waves=waves, as_=manner, why=why, locked=sorted(locked) or None, warning=warning
    )
    detail(targets=len(ids))
    if request.dry_run:
        names = [_path(selection.connections.stored.get(id)) or id for id in ids]
        return replace(answer, connections=[base_of(id) for id in ids], names=names)
    new = NewRun(
        id=str(uuid.uuid4()),
        spec=_spec(request, selection, waves, timeout, manner, why, lends=bool(own_only)),
        batches=batches_of(
            waves,
            ids,
            partial(_home, selection.connections.stored, daemon.runs.last_homes(), own_only),
            shared=daemon.vault.database.is_shared,
        ),
        parallel=request.parallel,
        name=request.name,
        token=caller().token,
        key=request.key,
        stop_after=stop_after_of(request, len(ids)),
        timeout=request.run_timeout,
        content=_content(request, selection),
    )
    id, is_new = daemon.runs.submit(new, caller().access, request_context().environ.get(STORE))
    detail(run=id)
    if not is_new:
        stored = daemon.vault.runs.get(id)
        waves, manner, why = stored.spec["waves"], stored.spec["as"], stored.spec["why"]
        return RunStartResponse(run=id, is_kept=True, targets=sum(waves), waves=waves, as_=manner, why=why)
    return replace(answer, run=id)


def _spec(
    request: RunStartRequest,
    selection: RunSelection,
    waves: list[int],
    timeout: float,
    manner: str,
    why: str,
    *,
    lends: bool,
) -> dict[str, Any]:
    """Return what the vault keeps of a run besides its targets, as JSON."""
    grant, days = caller().grant, services().settings.run_days
    keep = (days * DAY if days else None) if request.keep is None else request.keep
    return {
        "client": caller().name,
        "lineage": [] if grant is None else grant.lineage_ids,
        "lent": lends,
        "approved": "approval" in request_context().authority,
        "shown": _shown_command(request),
        "waves": waves,
        "wavePause": request.wave_pause,
        "waveApproval": request.wave_approval,
        "retries": request.retries,
        "retryDelay": request.retry_delay,
        "timeout": timeout,
        "keep": keep,
        "as": manner,
        "why": why,
        "retryOf": selection.retry_of,
        "asked": selection.asked,
    }


def _content(request: RunStartRequest, selection: RunSelection) -> dict[str, Any]:
    """Return what a run runs, as the vault keeps it: its input and variables may have megabytes."""
    stored, asked = _request_to_store(request), _request_to_store(selection.original)
    return {
        "request": stored,
        "asked": None if asked == stored else asked,
        "grounds": [ground.stored() for ground in request_context().grounds.values()],
    }


def _shown_command(request: RunStartRequest) -> Any:
    """Return what a run runs, without secrets."""
    if request.facts is not None:
        return f"gather facts: {', '.join(request.facts) or 'all'}"
    if request.argv is None:
        return (request.command or "")[:MAX_SCRIPT]
    words, room = [], MAX_SCRIPT
    for word in request_context().recorded or request.argv:
        words.append(word[:room])
        room -= len(words[-1])
        if room <= 0:
            break
    return words


def _request_to_store(request: RunStartRequest) -> dict[str, Any]:
    saved = None if request.saved is None else replace(request.saved, too_free=None)
    content = replace(
        request,
        saved=saved,
        connections=None,
        connection_filter=None,
        category_filter=None,
        type_filter=None,
        where=None,
        key=None,
    )
    return given_json(content)


def _locked(ids: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the connections that the caller cannot open, and those that only its own secrets open."""
    daemon = services()
    if not daemon.vault.principals.status(Access()).has_users:
        return set(), set()
    locked = locked_ones(ids)
    by_vault = locked_connections(daemon.vault, daemon.registry, ids, Access())
    return locked, by_vault - locked


def _home(
    stored: Mapping[str, Connection | errors.IntegrityError],
    last: Mapping[str, str],
    own_only: Collection[str],
    id: str,
) -> tuple[str, bool]:
    daemon, row = services(), stored.get(id)
    # Only daemons that share a vault choose which of them runs a target.
    if not daemon.vault.database.is_shared or not isinstance(row, Connection):
        return "", False
    return daemon.runs.home_of(row, last, own_secrets=id in own_only)


@group.endpoint(
    "/info",
    reads=True,
    audited=False,
    about=("run",),
    raises=[errors.UnknownRun],
    example={"run": RUN_ID},
    answer=_INFO,
)
def info(request: RunInfoRequest) -> RunInfo:
    """Describe a run: its state, how many targets are in each state, how fast it goes."""
    run = _visible_run(request.run)
    if not request.cells:
        return _info(run)
    digits = {state: str(place) for place, state in enumerate(TARGET_STATES)}
    return replace(_info(run), cells="".join(digits[state] for state in services().vault.runs.states(run.id)))


@group.endpoint(
    "/wait",
    suspends=True,
    reads=True,
    audited=False,
    about=("run",),
    raises=[errors.UnknownRun],
    example={"run": RUN_ID, "wait": 25},
    answer={**_INFO, "state": "done", "left": 0.0, "ended": "2026-01-31T08:16:02.500000Z", "daemons": []},
)
def wait(request: RunWaitRequest) -> RunInfo:
    """Wait for the end of a run, at most `wait` seconds, and describe the run."""
    version = services().runs.version(request.run)
    run = _visible_run(request.run)
    if run.state not in ENDED and continuation().is_younger_than(request.wait):
        raise Suspended(partial(services().runs.subscribe, run.id, version), request.wait)
    return _info(run)


@group.endpoint(
    "/targets",
    has_large_answer=True,
    reads=True,
    about=("run", "states"),
    raises=[errors.UnknownRun],
    example={"run": RUN_ID, "states": ["failed"], "offset": 0, "limit": 100},
    answer={
        "targets": [
            {
                "connection": EXAMPLE,
                "name": "web7",
                "state": "failed",
                "exitCode": 100,
                "seconds": 2.25,
                "wave": 2,
                "tries": 1,
                "stdout": "",
                "stderr": "E: Could not get lock",
                "daemon": "control1",
            }
        ],
        "total": 1,
    },
)
def targets(request: RunTargetsRequest) -> RunTargetsResponse:
    """List the targets of a run, by their states and in pages, each with the end of its output."""
    run = _visible_run(request.run)
    stored = services().vault.runs
    rows, total = stored.targets(run.id, states=request.states, offset=request.offset, limit=request.limit)
    names = _names(row["connection"] for row in rows)
    if not request.output:
        return RunTargetsResponse(targets=[_target(row, names) for row in rows], total=total)
    hidden = _hidden(run, [row["connection"] for row in rows])
    rows = [_shown_of(row, hidden) for row in rows]
    shown, characters = [], 0
    for row, printed in zip(rows, stored.printed(rows), strict=True):
        if row["connection"] in hidden:
            shown.append(replace(_target(row, names), locked=True))
            continue
        shown.append(_with_output(_target(row, names), row, printed, request.output))
        characters += len(shown[-1].stdout or "") + len(shown[-1].stderr or "")
        if characters > MOST_SHOWN:
            break
    return RunTargetsResponse(targets=shown, total=total)


@group.endpoint(
    "/output",
    has_large_answer=True,
    reads=True,
    about=("run", "connection"),
    raises=[errors.UnknownRun, errors.UnknownConnection],
    example={"run": RUN_ID},
    answer={
        "groups": [
            {
                "connections": [EXAMPLE],
                "names": ["web7"],
                "state": "failed",
                "exitCode": 100,
                "stdout": "",
                "stderr": "E: Could not get lock",
            }
        ],
        "total": 1,
    },
)
def output(request: RunOutputRequest) -> RunOutputResponse:
    """Read the whole output that a run keeps: of one target, or of all, equal ones together."""
    run, stored = _visible_run(request.run), services().vault.runs
    rows, _ = stored.targets(run.id, connection=request.connection)
    if request.connection is not None and not rows:
        raise errors.UnknownConnection(request.connection)
    hidden = _hidden(run, [row["connection"] for row in rows])
    by_outcome: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if request.connection is not None or row["state"] not in (WAITING, STARTING):
            locked = row["connection"] in hidden
            shown = (True, None, None) if locked else (False, row["output"], row["error"])
            by_outcome[row["state"], row["exit_code"], shown].append(row)
    names = _names(row["connection"] for row in rows)
    groups, size = [], 0
    end = None if request.limit is None else request.offset + request.limit
    chosen = sorted(by_outcome.values(), key=len, reverse=True)[request.offset : end]
    first_rows = [_shown_of(equal_rows[0], hidden) for equal_rows in chosen]
    for equal_rows, row, printed in zip(chosen, first_rows, stored.printed(first_rows), strict=True):
        ids = [base_of(target["connection"]) for target in equal_rows]
        groups.append(
            RunGroup(
                connections=ids,
                names=[names.get(id) for id in ids],
                state=row["state"],
                exit_code=row["exit_code"],
                stdout=output_text(printed.stdout, "utf-8"),
                stderr=output_text(printed.stderr, "utf-8"),
                truncated=printed.truncated or None,
                error=None if row["error"] is None else json.loads(row["error"]),
                locked=row["connection"] in hidden or None,
            )
        )
        size += len(printed.stdout) + len(printed.stderr)
        if size > MOST_SHOWN:
            break
    return RunOutputResponse(groups=groups, total=len(by_outcome))


def _shown_of(row: Row, hidden: Collection[str]) -> Row:
    """Return the row of a target, without what it has printed if its connection is ``hidden``."""
    return {**row, "output": None, "error": None} if row["connection"] in hidden else row


CHANGES = [errors.UnknownRun, errors.RunEnded]


@group.endpoint("/pause", about=("run",), raises=CHANGES, example={"run": RUN_ID})
def pause(request: RunRequest) -> None:
    """Begin no more targets of a run until `/run/resume`; those that have begun go on."""
    services().runs.pause(_visible_run(request.run).id)


@group.endpoint("/resume", about=("run",), raises=CHANGES, example={"run": RUN_ID})
def resume(request: RunRequest) -> None:
    """Go on with a run that is paused, or let the next wave begin."""
    services().runs.resume(_visible_run(request.run).id)


@group.endpoint("/stop", about=("run", "kill"), raises=CHANGES, example={"run": RUN_ID, "kill": True})
def stop(request: RunStopRequest) -> None:
    """Stop a run: no more targets begin, and it ends when those that have begun have ended."""
    reason = f"The run was stopped by {caller().name}."
    services().runs.stop(_visible_run(request.run).id, reason, kill=request.kill)


@group.endpoint(
    "/query",
    has_large_answer=True,
    reads=True,
    audited=False,
    about=("name", "states"),
    example={"states": ["running"]},
    answer={"runs": [_INFO]},
)
def query(request: RunQueryRequest) -> RunQueryResponse:
    """List the runs that match, newest first. A token sees those that it, or a token below it, has started."""
    runs = services().vault.runs.find(
        states=request.states, name=request.name, limit=request.limit, is_wanted=sees_work
    )
    return RunQueryResponse(runs=[_info(run) for run in runs])


@group.endpoint("/remove", about=("run",), raises=[errors.UnknownRun, errors.RunUnderWay], example={"run": RUN_ID})
def remove(request: RunRemoveRequest) -> None:
    """Remove a run that has ended, with its targets and their output."""
    services().runs.remove(_visible_run(request.run))


def _visible_run(id: str) -> StoredRun:
    run = services().vault.runs.kept(id)
    if not sees_work(run):
        raise errors.UnknownRun(id)
    return run


def _require_ended(run: StoredRun) -> StoredRun:
    if run.state not in ENDED:
        raise errors.RunUnderWay("The run is under way: stop it, or wait for its end.")
    return run


def _info(run: StoredRun) -> RunInfo:
    stored, spec = services().vault.runs, run.spec
    counts = stored.counts(run.id)
    left = counts[WAITING] + counts[STARTING]
    over = sum(counts.values()) - left - counts[STOPPED]
    seconds = None if run.began is None else ((run.ended or now()) - run.began).total_seconds()
    # A clock that was set back meanwhile would make them negative.
    rate = over / seconds if seconds is not None and seconds > 0 and over else None
    boots = [] if run.state in ENDED else stored.at_work(run.id)
    locked = bool(run.spec.get("lent", True) and _hidden(run, stored.selection(run.id)))
    return message_of(
        RunInfo,
        run,
        run=run.id,
        command=None if locked else spec["shown"],
        locked=locked or None,
        as_=spec["as"],
        why=spec["why"],
        targets=sum(spec["waves"]),
        counts=counts,
        wave=run.wave + 1,
        waves=spec["waves"],
        retry_of=spec["retryOf"],
        cells=None,
        rate=None if rate is None else round(rate, 3),
        left=None if rate is None else round(left / rate, 3),
        daemons=sorted({_daemon_of(boot) or "" for boot in boots}),
    )


def _hidden(run: StoredRun, connections: Iterable[str]) -> set[str]:
    """Return those of a run's ``connections`` whose secrets the caller cannot open: it is not shown what ran there."""
    # Only a run that used secrets of its author's own has some. A removed connection counts as well: whoever may not
    # open it may remove it.
    vault, ids = services().vault, set(connections)
    if not run.spec.get("lent", True) or not vault.principals.status(Access()).has_users:
        return set()
    return locked_ones(ids) | (ids - vault.connections.each(ids).keys())


def _daemon_of(boot: str | None) -> str | None:
    return None if boot is None else boot.rpartition("/")[0]


def _names(connections: Iterable[str]) -> dict[str, str | None]:
    """Return the paths of connections as they are now, by their ids, of those that the caller sees."""
    seen = services().authorisation.visible(caller(), {base_of(id) for id in connections})
    return {id: _path(connection) for id, connection in services().vault.connections.each(seen).items()}


def _path(connection: Connection | errors.IntegrityError | None) -> str | None:
    return "/".join(connection.path) if isinstance(connection, Connection) else None


def _with_output(target: RunTarget, row: Row, printed: TargetOutput, characters: int) -> RunTarget:
    """Return a target with the end of what it has printed."""
    if row["output"] is None:
        return target
    # Four bytes a character at the most; what is cut off of the first one is dropped with it.
    stdout, stderr = (
        output_text(text[-4 * characters :], "utf-8")[-characters:] for text in (printed.stdout, printed.stderr)
    )
    return replace(target, stdout=stdout, stderr=stderr, truncated=printed.truncated or None)


def _target(row: Row, names: Mapping[str, str | None]) -> RunTarget:
    id = base_of(row["connection"])
    return RunTarget(
        connection=id,
        name=names.get(id),
        state=row["state"],
        exit_code=row["exit_code"],
        seconds=None if row["seconds"] is None else round(row["seconds"], 6),
        wave=row["wave"] + 1,
        tries=row["tries"],
        error=None if row["error"] is None else json.loads(row["error"]),
        job=row["job"],
        daemon=_daemon_of(row["owner"]),
    )
