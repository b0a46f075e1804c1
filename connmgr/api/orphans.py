"""``/job/orphans``: jobs on a machine that the vault does not know."""

from __future__ import annotations

from typing import Any

from marshmallow import fields

from connmgr import errors
from connmgr.api.account import caller, detail
from connmgr.api.group import Group
from connmgr.api.job import JOB
from connmgr.api.job_schemas import AGE
from connmgr.api.schemas import Id
from connmgr.api.services import services
from connmgr.api.shell import EXAMPLE, OPENING
from connmgr.fields import Boolean, Number, Schema
from connmgr.jobs.reaper import LEAST_AGE_SECONDS
from connmgr.vault.jobs import ENDED, RUNNING

group = Group("orphans", "Jobs on machines that the vault does not know.", prefix="/job")


class JobOrphansRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection to the machine, as the user who ran them."})
    remove = Boolean(load_default=False, metadata={"description": "True removes those that do not run."})
    minAge = Number(
        load_default=0,
        validate=AGE,
        metadata={"description": f"Begun this many seconds ago or earlier; {LEAST_AGE_SECONDS} at the least."},
    )


class JobOrphan(Schema):
    job = fields.String(required=True, metadata={"format": "uuid", "description": "The job."})
    state = fields.String(
        required=True,
        metadata={"description": "As in `/job/info`, seen from this machine.", "enum": [RUNNING, *ENDED]},
    )
    age = fields.Integer(
        required=True,
        allow_none=True,
        metadata={"description": "Seconds since it began; null where the machine can only tell that it is old enough."},
    )
    removed = fields.Boolean(required=True, metadata={"description": "Whether it was removed now."})


class JobOrphansResponse(Schema):
    orphans = fields.List(fields.Nested(JobOrphan), required=True, metadata={"description": "In the order of uuids."})


@group.endpoint(
    "/orphans",
    JobOrphansRequest,
    JobOrphansResponse,
    action="job.orphans",
    about=("connection",),
    raises=[
        *OPENING,
        errors.ShellLost,
        errors.TransferFailed,
        errors.PermissionDenied,
        errors.FileOperationFailed,
        errors.ShellBusy,
    ],
    waits=True,
    example={"connection": EXAMPLE, "remove": True, "minAge": 86400},
    answer={"orphans": [{"job": JOB, "state": "exited", "age": 172800, "removed": True}]},
)
def orphans(request: dict[str, Any]) -> dict[str, Any]:
    """List the jobs on a machine that the vault does not know, and optionally remove those that do not run.

    Such jobs stay after a restored backup or a removed connection. Jobs of other vaults that use the same account are
    listed and removed too: nothing shows to which vault a job belongs.
    """
    found = services().orphans.find(request["connection"], caller().access, request["minAge"], remove=request["remove"])
    detail(orphans=len(found), orphansRemoved=sum(one.removed for one in found))
    return {"orphans": found}
