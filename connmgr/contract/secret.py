"""``/secret``: values that only their principals can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from connmgr.contract.message import ABSENT, ID, NUL, SECRET, Absent, Fact, Length, Message, SchemaMembers, Wrong

MOST_PRINCIPALS = 64
LONGEST_NAME = 64

ENCRYPTED = Fact("ENCRYPTED")
"""The encrypted form of a secret; opaque to clients."""

PASSWORD = SchemaMembers({"format": "password"})


class EncryptRequest(Message):
    value: Annotated[str, NUL, SECRET, PASSWORD, "The value to encrypt; any text."]
    principals: Annotated[
        list[Annotated[str, Length(1, LONGEST_NAME)]] | None,
        Length(1, MOST_PRINCIPALS),
        "Who may read the value: names of vault users, or `vault` for anybody who may use the vault. Without it: the "
        "user that this session has unlocked, else `vault`.",
    ] = None


class EncryptResponse(Message):
    encrypted: Annotated[Mapping[str, Any], ENCRYPTED]


class DecryptRequest(Message):
    encrypted: Annotated[Mapping[str, Any], ENCRYPTED, "The `encrypted` of `/secret/encrypt`, unchanged."]


class DecryptResponse(Message):
    decrypted: Annotated[str, SECRET, PASSWORD]


class SudoRequest(Message):
    connection: Annotated[str | None, ID, "The connection over which sudo asks for the password."] = None
    category: Annotated[str | None, ID, "In its place: a category, for all connections in it and below it."] = None
    password: Annotated[
        str | Absent | None,
        SECRET,
        PASSWORD,
        "The password to store, in place of any other; null removes it. Without it nothing changes.",
    ] = ABSENT

    def check(self) -> None:
        super().check()
        if (self.connection is None) == (self.category is None):
            raise Wrong("Give either connection or category.", "connection")


class SudoResponse(Message):
    connection: Annotated[str | None, ID, "The connection that the password in use is stored for, if it is one."] = None
    category: Annotated[str | None, ID, "The category that it is stored for, if it is one."] = None
