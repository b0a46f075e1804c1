"""Commands with ``detachAfter``: they run as jobs, and are answered like other commands if they end in time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import flask

from connmgr import errors
from connmgr.api import output
from connmgr.api.account import caller, detail, turns
from connmgr.api.answer import as_json
from connmgr.api.command_fields import printed_until
from connmgr.api.launch import begin, start_shell
from connmgr.api.services import services
from connmgr.engine.running import Result
from connmgr.jobs.jobs import JobOutput
from connmgr.vault.jobs import ENDED

RAISES = (
    errors.JobLimit,
    errors.UnknownJob,
    errors.OutputGone,
    errors.NoSpace,
    errors.PermissionDenied,
    errors.TransferFailed,
    errors.FileOperationFailed,
)
"""Errors of such commands, in addition to those of commands in the shell."""

_JOB = "job"
_RESTARTED = "restarted"


def respond(request: Mapping[str, Any]) -> flask.Response:
    """Answer with the command's outcome, or after ``detachAfter`` seconds with its job and the output so far.

    :raises connmgr.errors.CommandTimeout: it exceeded its timeout.
    :raises connmgr.errors.ShellLost: its machine was restarted, or its output was removed there.
    """
    kept, encoding = turns().kept, request["encoding"]
    if _JOB not in kept:
        kept[_RESTARTED] = request["start"] and start_shell(request)
        kept[_JOB] = begin(request)[0].id
    id, access, jobs = kept[_JOB], caller().access, services().jobs
    detail(job=id)
    followed = jobs.look(id, access)
    if not followed.over:
        turns().wait(partial(jobs.subscribe, id, access, followed.last.version), request["detachAfter"])
    most = services().settings.max_output
    found = jobs.output(id, access, 0, 0, most)
    # If the machine is unreachable, the output still exists there: answer the error, not an empty output.
    if found.stale or followed.stored.state not in ENDED:
        shown = {name: output.shown(getattr(found, name)[:most], encoding) for name in ("stdout", "stderr")}
        return as_json({"job": id, **shown} | ({"restarted": True} if kept[_RESTARTED] else {}))
    result = _result(found, followed.stored.exit_code, most)
    jobs.remove(id, access, force=False)
    if followed.stored.state == "timed_out":
        text = f"The command ran longer than {request['timeout']:g} s and was killed."
        timeout = errors.CommandTimeout(text, result.stdout, result.stderr, truncated=result.truncated)
        timeout.details = printed_until(timeout, encoding)
        raise timeout
    if followed.stored.exit_code is None:
        raise errors.ShellLost("The command's machine was restarted, or what it printed was removed there.")
    detail(exitCode=result.exit_code, stdoutBytes=len(result.stdout), stderrBytes=len(result.stderr))
    return output.respond(result, encoding, restarted=kept[_RESTARTED])


def _result(found: JobOutput, exit_code: int | None, most: int) -> Result:
    seen = found.seen
    cut = seen is not None and any(one.truncated or one.size > most for one in (seen.stdout, seen.stderr))
    return Result(exit_code or 0, found.stdout[:most], found.stderr[:most], cut)
