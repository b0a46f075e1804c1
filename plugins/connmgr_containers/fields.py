"""Fields that types of containers have in common, and what their values may be."""

from __future__ import annotations

import re
from typing import Any

from connmgr.plugin import Reference, Schema, Text, ValidationError

LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The connection to the machine that the daemon runs on, for examples."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]*")


def name(value: str) -> None:
    """Refuse what is no name: none may be taken for an option of the program that is given it.

    :raises ValidationError: it is none.
    """
    if not _NAME.fullmatch(value):
        raise ValidationError("Not a name: letters, digits and . _ - : @, the first a letter or digit.")


def instance(value: str) -> None:
    """Refuse what is no name of an instance: one with a colon would be that of another server.

    :raises ValidationError: it is none.
    """
    name(value)
    if ":" in value:
        raise ValidationError("Not the name of an instance: a colon names a remote. Run over a host of that server.")


def printable(value: str) -> None:
    """Refuse what has characters that no terminal shows, as a newline.

    :raises ValidationError: it has some.
    """
    if not value.isprintable():
        raise ValidationError("Not printable characters alone.")


def absolute(value: str) -> None:
    """Refuse a path that is not absolute.

    :raises ValidationError: it is not.
    """
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
    """The fields of what runs commands inside of a system that has users and directories."""

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
