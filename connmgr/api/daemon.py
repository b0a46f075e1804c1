"""``/daemon``: the version, and the end."""

from __future__ import annotations

import platform
from typing import Any

from marshmallow import fields

from connmgr import __version__
from connmgr.api.group import Group
from connmgr.api.services import services
from connmgr.fields import Schema

API_LEVEL = "24.0"

group = Group("daemon", "The daemon itself.")


class VersionResponse(Schema):
    version = fields.String(
        required=True, metadata={"description": "The level of the API, with connmgr's version as its local part."}
    )
    canonicalVersion = fields.String(required=True, metadata={"description": "The level of the API alone."})
    buildVersion = fields.String(required=True, metadata={"description": "connmgr's own version."})
    jvmVersion = fields.String(required=True, metadata={"description": "The runtime, which is Python."})
    pro = fields.Boolean(required=True, metadata={"description": "Always false."})


@group.endpoint(
    "/version",
    response=VersionResponse,
    methods=("GET", "POST"),
    answer={
        "version": f"{API_LEVEL}+connmgr.{__version__}",
        "canonicalVersion": API_LEVEL,
        "buildVersion": __version__,
        "jvmVersion": "CPython 3.11.7",
        "pro": False,
    },
)
def version() -> dict[str, Any]:
    """Return the versions of the API, the daemon and its runtime."""
    return {
        "version": f"{API_LEVEL}+connmgr.{__version__}",
        "canonicalVersion": API_LEVEL,
        "buildVersion": __version__,
        "jvmVersion": f"{platform.python_implementation()} {platform.python_version()}",
        "pro": False,
    }


@group.endpoint("/stop")
def stop() -> None:
    """Stop the daemon, as SIGTERM does.

    Requests that run are answered, for a few seconds; then commands are cancelled, shells closed, and the daemon exits.
    """
    services().stop()
