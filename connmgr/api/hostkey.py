"""``/hostkey``: the keys that identify SSH hosts."""

from __future__ import annotations

from typing import Any

from marshmallow import fields, validate

from connmgr import errors
from connmgr.api.account import caller, detail
from connmgr.api.group import Group
from connmgr.api.schemas import Id
from connmgr.api.services import services
from connmgr.api.shell import EXAMPLE
from connmgr.fields import Schema, Text
from connmgr.links import host_keys

LONGEST_HOST = 300
LONGEST_KEY = 16384

group = Group("hostkey", "The keys that identify SSH hosts.")

_RAISES = (errors.UnknownConnection, errors.SecretLocked, errors.IntegrityError, errors.TransportUnsupported)
_HOST = "[build.example.org]:2222"


class HostKeyTrustRequest(Schema):
    connection = Id(required=True, metadata={"description": "A connection whose links lead to the host."})
    host = Text(
        required=True,
        validate=validate.Length(1, LONGEST_HOST),
        metadata={"description": "The host's name in known_hosts: `host` of `host_key_unknown`."},
    )
    hostKey = Text(
        required=True,
        validate=validate.Length(1, LONGEST_KEY),
        metadata={"description": "Its key, type and base64: `hostKey` of `host_key_unknown`."},
    )


class HostKeyForgetRequest(Schema):
    connection = Id(required=True, metadata={"description": "A connection whose links lead to the host."})
    host = Text(
        validate=validate.Length(1, LONGEST_HOST),
        metadata={"description": "The host's name in known_hosts; by default the host that the connection leads to."},
    )


class ForgottenKeySchema(Schema):
    key = fields.String(required=True, metadata={"description": "Its type and fingerprint."})
    place = fields.String(required=True, metadata={"description": "The file and line where it stood."})
    kept = fields.String(
        required=True, metadata={"description": "Why the key is still there; empty if it was removed."}
    )


class HostKeyForgetResponse(Schema):
    keys = fields.List(fields.Nested(ForgottenKeySchema), required=True)


@group.endpoint(
    "/trust",
    HostKeyTrustRequest,
    has_content=True,
    action="hostkey.trust",
    about=("connection", "host", "hostKey"),
    raises=[*_RAISES, errors.HostKeyChanged, errors.HostKeyUnknown, errors.ConnectTimeout],
    waits=True,
    example={
        "connection": EXAMPLE,
        "host": _HOST,
        "hostKey": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhWUlLMGpnt47wGQzkVVlkG0RKUhVwUhn9WSI6QLQ6u",
    },
)
def trust(request: dict[str, Any]) -> None:
    """Accept a host's key from now on, for all connections to that host.

    Compare its fingerprint with the host's administrator first: nothing else distinguishes the host from an impostor.
    """
    _require_own()
    wanted = (request["connection"], request["host"], request["hostKey"])
    host_keys.trust(services().vault, services().registry, *wanted, caller().access)


@group.endpoint(
    "/forget",
    HostKeyForgetRequest,
    HostKeyForgetResponse,
    action="hostkey.forget",
    about=("connection", "host"),
    raises=[*_RAISES, errors.ConnectTimeout],
    waits=True,
    example={"connection": EXAMPLE, "host": _HOST},
    answer={
        "keys": [
            {
                "key": "ssh-ed25519 SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDmzgN2wbbkQ7Nh9RQ",
                "place": "~/.ssh/known_hosts, line 3",
                "kept": "",
            }
        ]
    },
)
def forget(request: dict[str, Any]) -> dict[str, Any]:
    """Remove the known keys of a host that was reinstalled, from the daemon user's known_hosts files too.

    The host's next key is then unknown. Whole lines are removed, and `FILE.old` keeps the old content of a file.
    """
    _require_own()
    wanted = (request["connection"], request.get("host"))
    found = host_keys.forget(services().vault, services().registry, *wanted, caller().access)
    detail(removed=[one.key for one in found if not one.kept])
    return {"keys": found}


def _require_own() -> None:
    """Refuse a token that uses secrets by a loan: a host that it trusts could get them.

    :raises ScopeDenied: its lender, or any other client, may do it.
    """
    if caller().access.lent() is not None:
        raise errors.ScopeDenied(
            "A token with a loan of secrets changes no known keys of hosts: its lender could send a secret to another "
            "host then. Let the owner do it, or do it after the loan."
        )
