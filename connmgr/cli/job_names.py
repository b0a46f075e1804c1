"""The names by which people refer to jobs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.names import MAX_COMPLETIONS, offered
from connmgr.cli.output import ago
from connmgr.client import Client
from connmgr.client.names import MAX_CANDIDATES, UUID, did_you_mean, is_text, with_beginning
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.client.jobs import Job, JobInfo


class JobName(click.types.StringParamType):
    """The name of a job, completed by the daemon's jobs; without a daemon there are no completions, and no error."""

    name = "job"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offered(ctx, lambda client: _names(client, incomplete))]


def find_job(client: Client, name: str, *, reads: bool = False) -> Job:
    """Return the job that ``name`` means: by its uuid or its whole name; if ``reads``, by the beginning of its uuid.

    :raises Failure: none matches, or several do, which are listed.
    """
    if UUID.fullmatch(name):
        return client.jobs.get(name.lower())
    found = client.jobs.query(name=name) if is_text(name) else []
    if not found and reads:
        every = {one.id: one for one in client.jobs.query()}
        found = [every[id] for id in with_beginning(every, name)]
    if len(found) == 1:
        return client.jobs.get(found[0].id)
    if not found:
        times = Counter(one.name for one in client.jobs.query() if one.name) if is_text(name) else {}
        hint = did_you_mean(name, {one: one for one, number in times.items() if number == 1})
        raise Failure(f"No job is called {name!r}.{hint} `connmgr job ls` lists them.", NOT_FOUND)
    raise Failure(_ambiguous(name, found), NOT_FOUND)


def outcome(one: JobInfo) -> str:
    """Return the state of a job in a few words, such as ``exited 3``."""
    words = [one.state]
    if one.exit_code is not None:
        words.append(str(one.exit_code))
    if one.stale and one.ended is None:
        words.append("(seen last)")
    return " ".join(words)


def _ambiguous(name: str, found: list[JobInfo]) -> str:
    # The newest job is the most likely one.
    shown = found[: -MAX_CANDIDATES - 1 : -1]
    lines = [f"  {one.id}  {visible(one.name or '')}  {outcome(one)}, begun {ago(one.created)}" for one in shown]
    if len(found) > len(lines):
        lines.append(f"  and {len(found) - len(lines)} more")
    return "\n".join([f"{name!r} may be any of {len(found)} jobs:", *lines])


def _names(client: Client, incomplete: str) -> list[str]:
    found = client.jobs.query()
    times = Counter(one.name for one in found)
    names = sorted(one.name if one.name and times[one.name] == 1 else one.id for one in found)
    return [name for name in names if name.startswith(incomplete)][:MAX_COMPLETIONS]
