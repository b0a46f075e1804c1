"""``/vault``: its users, and which of them a client session has unlocked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from connmgr.contract.message import AWARE, SECRET, Fact, Length, Message, Range, SchemaMembers

LONGEST_NAME = 64
LONGEST_PASSPHRASE = 1024
MIN_CHARACTERS, MAX_CHARACTERS = 8, 1024
"""The bounds of a new passphrase."""

MAX_SHARES = 16
"""Most shares of a recovery key, a limit of SLIP-0039."""

NEW_PASSPHRASE = Fact("NEW_PASSPHRASE")
"""A passphrase that fits a user: long enough."""

_PASSWORD = SchemaMembers({"format": "password"})
User = Annotated[str, Length(1, LONGEST_NAME), "The user's name."]
Passphrase = Annotated[str, SECRET, Length(max=LONGEST_PASSPHRASE), _PASSWORD]
NewPassphrase = Annotated[
    str,
    SECRET,
    NEW_PASSPHRASE,
    Length(max=LONGEST_PASSPHRASE),
    _PASSWORD,
    f"{MIN_CHARACTERS} to {MAX_CHARACTERS} characters.",
]
RecoveryId = Annotated[str, Length(1, 16), "The recovery key's id; each share has it in its first words."]
Words = Annotated[str, SECRET, Length(1, 1000), _PASSWORD]
Uuid = Annotated[str, SchemaMembers({"format": "uuid"})]


class StatusResponse(Message):
    """Whether the vault has users, the user that this session unlocked, and whose secrets it can decrypt."""

    has_users: Annotated[bool, "Whether a user must be unlocked to decrypt."]
    user: Annotated[str | None, "The user that this session has unlocked, or null."]
    principals: Annotated[tuple[str, ...], "The principals whose secrets this session can decrypt."]
    users: Annotated[tuple[str, ...], "All users, if this session has unlocked one; else empty."]


class UnlockRequest(Message):
    user: User
    passphrase: Annotated[Passphrase, "The user's passphrase."]


class UsedRecovery(Message):
    """A recovery key that has set a passphrase, and since then was neither rotated nor revoked."""

    recovery: RecoveryId
    used: Annotated[datetime, AWARE, "When it last set a new passphrase."]


class UnlockResponse(Message):
    """What the user should know."""

    recoveries: Annotated[
        Sequence[UsedRecovery],
        "The user's recovery keys that have set a passphrase: whoever did that knows the words. Told at each unlock "
        "until they are rotated or revoked.",
    ]


class AddRequest(Message):
    user: User
    passphrase: NewPassphrase


class PassphraseRequest(Message):
    user: User
    passphrase: Annotated[Passphrase, "The present passphrase."]
    new_passphrase: NewPassphrase


class RemoveRequest(Message):
    user: User
    passphrase: Annotated[
        Passphrase | None,
        "The passphrase of this user: it permits the removal, and lets secrets be sealed anew.",
    ] = None
    force: Annotated[bool, "Remove the user even if secrets are then lost to everyone."] = False


class RemoveResponse(Message):
    """The effect of a vault user's removal, on connections by their ids."""

    connections: Annotated[
        list[Uuid],
        "Connections with secrets that the user could read: change these passwords and keys on their machines.",
    ]
    resealed: Annotated[list[Uuid], "Those of them whose secrets only this user could open, and were sealed anew."]
    heir: Annotated[str | None, "The principal that these were sealed to; null: none was sealed anew."]
    lost: Annotated[list[Uuid], "Those of them with secrets that nobody can open any more; empty without `force`."]


class RecoveryCreateRequest(Message):
    user: User
    passphrase: Annotated[Passphrase, "The user's passphrase."]
    shares: Annotated[int, Range(1, MAX_SHARES), "How many shares to make."] = 1
    threshold: Annotated[int, Range(1, MAX_SHARES), "How many of them are needed; at least 2 of several."] = 1


class RecoveryRotateRequest(Message):
    recovery: RecoveryId
    passphrase: Annotated[Passphrase, "The passphrase of the key's user."]


class RecoveryRevokeRequest(Message):
    recovery: RecoveryId


class RecoveryUseRequest(Message):
    shares: Annotated[Sequence[Words], Length(1, MAX_SHARES), "The words of enough shares, in any order."]
    new_passphrase: Annotated[
        NewPassphrase | None, "The user's new passphrase. Without it the shares are checked, and nothing changes."
    ] = None


class RecoveryUseResponse(Message):
    recovery: RecoveryId
    user: User


class RecoveryWordsResponse(Message):
    """A new recovery key. The daemon keeps no copy of the words."""

    recovery: RecoveryId
    user: User
    threshold: Annotated[int, "How many of the shares are needed."]
    shares: Annotated[Sequence[Words], "The words of each share."]


class RecoveryKey(Message):
    """What the vault knows of a recovery key; the words are not part of it."""

    recovery: RecoveryId
    user: User
    shares: Annotated[int, "How many shares were made."]
    threshold: Annotated[int, "How many of them are needed."]
    created: Annotated[datetime, AWARE]
    used: Annotated[datetime | None, AWARE, "When it last set a new passphrase, or null."]


class RecoveryQueryResponse(Message):
    recoveries: Annotated[Sequence[RecoveryKey], "Oldest first."]
