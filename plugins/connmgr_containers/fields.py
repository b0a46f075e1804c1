"""Fields that the container types have in common, and the checks of their values."""

from __future__ import annotations

import re
from typing import Any

from connmgr.plugin import Reference, Schema, Text, ValidationError

LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The uuid of the connection to the daemon's own machine, for examples."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]*")


def name(value: str) -> None:
    """Raise ValidationError unless ``value`` is a name, which no program takes for an option."""
    if not _NAME.fullmatch(value):
        raise ValidationError("Not a name: letters, digits and . _ - : @, the first a letter or digit.")


def instance(value: str) -> None:
    """Raise ValidationError unless ``value`` names an instance of the host's own server, not of a remote."""
    name(value)
    if ":" in value:
        raise ValidationError("Not the name of an instance: a colon names a remote. Run over a host of that server.")


def printable(value: str) -> None:
    """Raise ValidationError if ``value`` has characters that are not printable, such as a newline."""
    if not value.isprintable():
        raise ValidationError("Not printable characters alone.")


def absolute(value: str) -> None:
    """Raise ValidationError unless ``value`` is an absolute path."""
    if not value.startswith("/"):
        raise ValidationError("Not an absolute path.")


def required(description: str) -> Any:
    """Return the field of a name that must be given."""
    return Text(required=True, validate=name, metadata={"description": description})


def optional(description: str) -> Any:
    """Return the field of a name that need not be given."""
    return Text(allow_none=True, validate=name, metadata={"description": description})


class HostSchema(Schema):
    """The field of every type: where the runtime's program runs."""

    host = Reference(required=True, metadata={"description": "The connection on whose machine the program runs."})


class InsideSchema(HostSchema):
    """The fields of types that run commands inside a system with users and directories."""

    user = Text(
        allow_none=True,
        validate=name,
        metadata={"description": "Whom to run as: `name` or `uid:gid`; the image's user otherwise."},
    )
    workdir = Text(
        allow_none=True,
        validate=absolute,
        metadata={"description": "The directory in which programs start, absolute; the image's otherwise."},
    )
