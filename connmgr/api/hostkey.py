"""``/hostkey``: the keys that identify SSH hosts."""

from __future__ import annotations

from connmgr import errors
from connmgr.api.context import caller, detail
from connmgr.api.endpoint import Group
from connmgr.api.running import EXAMPLE
from connmgr.api.services import services
from connmgr.contract.connection import (
    ForgottenHostKey,
    HostKeyForgetRequest,
    HostKeyForgetResponse,
    HostKeyTrustRequest,
)
from connmgr.contract.event import HOSTKEY
from connmgr.contract.message import message_of
from connmgr.links import chain

group = Group("hostkey", "The keys that identify SSH hosts.")

_RAISES = (errors.UnknownConnection, errors.SecretLocked, errors.IntegrityError, errors.TransportUnsupported)
_HOST = "[build.example.org]:2222"


@group.endpoint(
    "/trust",
    has_content=True,
    about=("connection", "host", "hostKey"),
    raises=[*_RAISES, errors.HostKeyChanged, errors.HostKeyUnknown, errors.ConnectTimeout],
    waits=True,
    example={
        "connection": EXAMPLE,
        "host": _HOST,
        "hostKey": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhWUlLMGpnt47wGQzkVVlkG0RKUhVwUhn9WSI6QLQ6u",
    },
)
def trust(request: HostKeyTrustRequest) -> None:
    """Accept a host's key from now on, for all connections to that host.

    Compare its fingerprint with the host's administrator first: nothing else distinguishes the host from an impostor.
    """
    _require_own()
    vault, registry = services().vault, services().registry
    chain.trust_host_key(vault, registry, request.connection, request.host, request.host_key, caller().access)
    services().events.publish(HOSTKEY, "trusted", request.connection, address=request.host)


@group.endpoint(
    "/forget",
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
def forget(request: HostKeyForgetRequest) -> HostKeyForgetResponse:
    """Remove the known keys of a host that was reinstalled, from the daemon user's known_hosts files too.

    The host's next key is then unknown. Whole lines are removed, and `FILE.old` keeps the old content of a file.
    """
    _require_own()
    vault, registry = services().vault, services().registry
    forgotten = chain.forget_host_keys(vault, registry, request.connection, request.host, caller().access)
    detail(removed=[key.key for key in forgotten if not key.kept])
    services().events.publish(HOSTKEY, "forgotten", request.connection, address=request.host)
    return HostKeyForgetResponse(keys=[message_of(ForgottenHostKey, key) for key in forgotten])


def _require_own() -> None:
    """Refuse a token that uses secrets by a loan: a host that it trusts could get them.

    :raises ScopeDenied: its lender, or any other client, may do it.
    """
    if caller().access.lent() is not None:
        raise errors.ScopeDenied(
            "A token with a loan of secrets cannot change known host keys: its lender could send a secret to another "
            "host then. Let the owner do it, or do it after the loan."
        )
