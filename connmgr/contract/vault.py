"""``/vault``: its users, and which of them a client session has unlocked."""

from __future__ import annotations

from typing import Annotated

from connmgr.contract.message import SECRET, Fact, Length, Message, SchemaMembers

LONGEST_NAME = 64
LONGEST_PASSPHRASE = 1024
MIN_CHARACTERS, MAX_CHARACTERS = 8, 1024
"""The bounds of a new passphrase."""

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
