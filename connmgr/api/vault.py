"""``/vault``: its users, and which of them a client session has unlocked."""

from __future__ import annotations

from connmgr.api.context import PEER_UID, caller, detail, request_context
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.message import message_of
from connmgr.contract.vault import (
    AddRequest,
    PassphraseRequest,
    RecoveryCreateRequest,
    RecoveryKey,
    RecoveryQueryResponse,
    RecoveryRevokeRequest,
    RecoveryRotateRequest,
    RecoveryUseRequest,
    RecoveryUseResponse,
    RecoveryWordsResponse,
    RemoveRequest,
    RemoveResponse,
    StatusResponse,
    UnlockRequest,
    UnlockResponse,
    UsedRecovery,
)
from connmgr.errors import (
    IntegrityError,
    InvalidRequest,
    LastPrincipal,
    UnknownRecovery,
    UnknownUser,
    UnlockFailed,
    UnlockThrottled,
    UserExists,
    VaultLocked,
    WrongShares,
)
from connmgr.secrets.passphrases import Guesser
from connmgr.secrets.recovery import RecoveryWords

group = Group("vault", "The vault's users. A user's passphrase unlocks the secrets that are sealed for that user.")


@group.endpoint(
    "/status",
    reads=True,
    raises=[IntegrityError],
    answer={"hasUsers": True, "user": "alice", "principals": ["alice", "vault"], "users": ["alice", "bob"]},
)
def status() -> StatusResponse:
    """Return whether the vault has users, and which secrets this session may decrypt.

    While the vault has no users, every session has the principal `vault`.
    """
    return message_of(StatusResponse, services().vault.principals.status(caller().access))


@group.endpoint(
    "/unlock",
    about=("user",),
    raises=[UnlockFailed, UnlockThrottled, IntegrityError],
    waits=True,
    example={"user": "alice", "passphrase": "four words or more"},
    answer={"recoveries": []},
)
def unlock(request: UnlockRequest) -> UnlockResponse:
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
        # Tunnels that failed for want of these secrets open now; the control sockets get the rights of this session.
        services().tunnels.unlocked(caller().access)
        services().sockets.unlocked(caller())
    used = services().vault.recoveries.used_for(request.user)
    return UnlockResponse(
        recoveries=[
            UsedRecovery(recovery=recovery.id, used=recovery.used) for recovery in used if recovery.used is not None
        ]
    )


@group.endpoint("/lock")
def lock() -> None:
    """Lock the user that this session has unlocked, if any; what it has lent to tokens ends at once."""
    caller().access.lock()


@group.endpoint(
    "/user/add",
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

    As long as a recovery key of the user can open such secrets, `force` does not lose them: `recoveries` lists the
    keys, by which the user gets a new passphrase (`/vault/recovery/use`). Recovery keys go with their user.
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


WORDS = {
    "recovery": "635a",
    "user": "alice",
    "threshold": 1,
    "shares": [
        "scroll spew academic academic deploy flavor endorse raspy purchase pupal plunge chew "
        "universe repair cards location stick academic endless adequate"
    ],
}
USER = {"recovery": "635a", "user": "alice"}


@group.endpoint(
    "/recovery/create",
    about=("user", "shares", "threshold"),
    raises=[UnlockFailed, UnlockThrottled, IntegrityError],
    waits=True,
    example={"user": "alice", "passphrase": "four words or more"},
    answer=WORDS,
)
def create_recovery(request: RecoveryCreateRequest) -> RecoveryWordsResponse:
    """Make a recovery key for a user, by whose words the user gets a new passphrase when this one is lost.

    With `shares` 5 and `threshold` 3 there are five lines of words, any three of which are the key. They are in this
    answer and nowhere else. The key covers all that is sealed to the user, before and afterwards. Only the owner makes,
    lists, uses, rotates and revokes recovery keys; no token does.
    """
    words = services().vault.recoveries.create(
        request.user, request.passphrase, shares=request.shares, threshold=request.threshold, guesser=guesser()
    )
    detail(recovery=words.id)
    return _described(words, request.user)


@group.endpoint(
    "/recovery/query",
    reads=True,
    raises=[IntegrityError],
    answer={
        "recoveries": [{**USER, "shares": 5, "threshold": 3, "created": "2026-01-02T03:04:05.000000Z", "used": None}]
    },
)
def query_recoveries() -> RecoveryQueryResponse:
    """Return the recovery keys of all users, without their words."""
    return RecoveryQueryResponse(
        recoveries=[message_of(RecoveryKey, key, recovery=key.id) for key in services().vault.recoveries.all()]
    )


@group.endpoint(
    "/recovery/use",
    raises=[WrongShares, UnlockThrottled, IntegrityError],
    waits=True,
    example={"shares": WORDS["shares"], "newPassphrase": "four other words or more"},
    answer=USER,
)
def use_recovery(request: RecoveryUseRequest) -> RecoveryUseResponse:
    """Set a new passphrase for the user of a recovery key, by its words. It needs no unlocked user, and unlocks none.

    The error `wrong_shares` lists in `shares` the places of mistyped and foreign shares, from 1, as far as their
    checksums tell, and in `missing` how many more are needed. The key stays valid: who has used it should rotate or
    revoke it, and each unlock of the user says so until then. Loans of the user's secrets to tokens end.
    """
    shares = list(request.shares)
    if request.new_passphrase is None:
        key = services().vault.recoveries.check(shares)
    else:
        key = services().vault.recoveries.use(shares, request.new_passphrase)
        services().loans.end_those_by(key.user, "the passphrase of its user was set by a recovery key")
    detail(recovery=key.id, user=key.user, setsPassphrase=request.new_passphrase is not None)
    return RecoveryUseResponse(recovery=key.id, user=key.user)


@group.endpoint(
    "/recovery/rotate",
    about=("recovery",),
    raises=[UnknownRecovery, UnlockFailed, UnlockThrottled, IntegrityError],
    waits=True,
    example={"recovery": "635a", "passphrase": "four words or more"},
    answer={**WORDS, "recovery": "51c0"},
)
def rotate_recovery(request: RecoveryRotateRequest) -> RecoveryWordsResponse:
    """Replace a recovery key by another one of as many shares. The old words open nothing from then on."""
    user, words = services().vault.recoveries.rotate(request.recovery, request.passphrase, guesser())
    detail(user=user, rotatedTo=words.id)
    return _described(words, user)


@group.endpoint(
    "/recovery/revoke",
    about=("recovery",),
    raises=[UnknownRecovery, VaultLocked, IntegrityError],
    example={"recovery": "635a"},
)
def revoke_recovery(request: RecoveryRevokeRequest) -> None:
    """Remove a recovery key: its words open nothing from then on. The session must have unlocked a user."""
    detail(user=services().vault.recoveries.revoke(request.recovery, caller().access))


def _described(words: RecoveryWords, user: str) -> RecoveryWordsResponse:
    return message_of(RecoveryWordsResponse, words, recovery=words.id, user=user)


def guesser() -> Guesser:
    """Return whom wrong passphrases of this request delay."""
    asking, environ = caller(), request_context().environ
    if asking.holder is not None:
        return Guesser(asking.holder)
    uid = environ.get(PEER_UID)
    return Guesser(origin=environ["REMOTE_ADDR"] if uid is None else f"uid {uid}", session=asking.id)
