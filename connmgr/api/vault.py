"""``/vault``: its users, and which of them a client session has unlocked."""

from __future__ import annotations

from connmgr.api.context import PEER_UID, caller, request_context
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.vault import (
    AddRequest,
    PassphraseRequest,
    RemoveRequest,
    RemoveResponse,
    StatusResponse,
    UnlockRequest,
)
from connmgr.errors import (
    IntegrityError,
    InvalidRequest,
    LastPrincipal,
    UnknownUser,
    UnlockFailed,
    UnlockThrottled,
    UserExists,
    VaultLocked,
)
from connmgr.secrets.passphrases import Guesser

group = Group("vault", "The vault's users. A user's passphrase unlocks the secrets that are sealed for that user.")


@group.endpoint(
    "/status",
    action="vault.status",
    reads=True,
    response=StatusResponse,
    raises=[IntegrityError],
    answer={"hasUsers": True, "user": "alice", "principals": ["alice", "vault"], "users": ["alice", "bob"]},
)
def status() -> StatusResponse:
    """Return whether the vault has users, and which secrets this session may decrypt.

    While the vault has no users, every session has the principal `vault`.
    """
    status = services().vault.principals.status(caller().access)
    return StatusResponse(
        has_users=status.has_users,
        user=status.user,
        principals=tuple(status.principals),
        users=tuple(status.users),
    )


@group.endpoint(
    "/unlock",
    UnlockRequest,
    action="vault.unlock",
    about=("user",),
    raises=[UnlockFailed, UnlockThrottled, IntegrityError],
    waits=True,
    example={"user": "alice", "passphrase": "four words or more"},
)
def unlock(request: UnlockRequest) -> None:
    """Unlock a user for this session, in place of the user unlocked before.

    The user is locked again by `/vault/lock`, after `unlock-ttl` seconds of idleness, and at the end of the session.
    After several failures each further attempt must wait. A client with a token must first get a session token from
    `/handshake`: an unlocked user belongs to that session only, not to all clients with the same token.
    """
    if caller().is_shared:
        raise InvalidRequest(
            "A token by itself cannot unlock a user: exchange it at /handshake, and unlock with the session token."
        )
    services().vault.principals.unlock(caller().access, request.user, request.passphrase, guesser())
    if caller().grant is None:
        services().tunnels.unlocked(caller().access)
        services().sockets.unlocked(caller())


@group.endpoint(
    "/lock",
    action="vault.lock",
)
def lock() -> None:
    """Lock the user that this session has unlocked, if any; what it has lent to tokens ends at once."""
    caller().access.lock()


@group.endpoint(
    "/user/add",
    AddRequest,
    action="vault.user.add",
    about=("user",),
    raises=[VaultLocked, UserExists, UnlockThrottled, IntegrityError],
    waits=True,
    example={"user": "alice", "passphrase": "four words or more"},
)
def add_user(request: AddRequest) -> None:
    """Add a user to the vault.

    Any session may add the first user. From then on every session, this one too, must unlock a user before it decrypts,
    or adds or removes users. A name has 1 to 64 of the characters `a-z 0-9 . _ @ -`.
    """
    services().vault.principals.add_user(caller().access, request.user, request.passphrase)


@group.endpoint(
    "/user/passphrase",
    PassphraseRequest,
    action="vault.user.passphrase",
    about=("user",),
    raises=[UnlockFailed, UnlockThrottled, IntegrityError],
    waits=True,
    example={"user": "alice", "passphrase": "four words or more", "newPassphrase": "four other words or more"},
)
def change_passphrase(request: PassphraseRequest) -> None:
    """Change a user's passphrase. Secrets stay as they are, and sessions that unlocked the user stay unlocked.

    Loans of the user's secrets to tokens end.
    """
    services().vault.principals.change_passphrase(request.user, request.passphrase, request.new_passphrase, guesser())
    services().loans.end_those_by(request.user, "the passphrase of its user was changed")


@group.endpoint(
    "/user/remove",
    RemoveRequest,
    RemoveResponse,
    action="vault.user.remove",
    about=("user",),
    raises=[VaultLocked, UnlockFailed, UnlockThrottled, UnknownUser, LastPrincipal, IntegrityError],
    waits=True,
    example={"user": "bob", "passphrase": "four words or more"},
    answer={
        "connections": ["4d7c1b61-8a0e-4c9f-9b86-0d2b5c7f3e11"],
        "resealed": ["4d7c1b61-8a0e-4c9f-9b86-0d2b5c7f3e11"],
        "heir": "alice",
        "lost": [],
    },
)
def remove_user(request: RemoveRequest) -> RemoveResponse:
    """Remove a user. The session must have unlocked one, or the request has the `passphrase` of the removed user.

    The removal takes effect at once in every session. Secrets of connections that only this user can open are sealed
    anew if the session has unlocked this user or the `passphrase` is given: to the other user that the session has
    unlocked, else to `vault`, so that every remaining user can open them. Otherwise the error `last_principal` counts
    them, and lists their connections in `connections`; with `force` the user is removed and they are lost. Secrets that
    are not in the vault, as those that `/secret/encrypt` returned, stay sealed to the removed user. After the last user
    every session has the principal `vault` again.
    """
    removed = services().vault.principals.remove_user(
        caller().access,
        request.user,
        passphrase=request.passphrase,
        force=request.force,
        guesser=guesser(),
    )
    services().loans.end_those_by(request.user, "its user was removed")
    return RemoveResponse(connections=removed.readable, resealed=removed.resealed, heir=removed.heir, lost=removed.lost)


def guesser() -> Guesser:
    """Return whom wrong passphrases of this request delay."""
    asking, environ = caller(), request_context().environ
    if asking.holder is not None:
        return Guesser(asking.holder)
    uid = environ.get(PEER_UID)
    return Guesser(origin=environ["REMOTE_ADDR"] if uid is None else f"uid {uid}", session=asking.id)
