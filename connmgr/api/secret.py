"""``/secret``: values that only their principals can read."""

from __future__ import annotations

from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr.api.account import caller, detail
from connmgr.api.group import Group
from connmgr.api.removal import end_what_runs
from connmgr.api.schemas import Id
from connmgr.api.services import services
from connmgr.errors import (
    IntegrityError,
    SecretLocked,
    ShellBusy,
    UnknownCategory,
    UnknownConnection,
    UnknownPrincipal,
)
from connmgr.fields import EncryptedSchema, Schema, Text
from connmgr.rights.action import Action
from connmgr.rights.limits import escapes_rules, sets_passwords_of_categories
from connmgr.vault.elevated import elevation_of

MOST_PRINCIPALS = 64
LONGEST_NAME = 64

EXAMPLE = {
    "encryptedToken": {
        "token": (
            "AQEFdmF1bHQM3DSUARuP48YpMl/DLcc1afG6+1FjrHe5WxeJvu1leC2rq0ytAc8yiqosJd0Y+nkp4Dyw6tbWEXFIGrrRhYPqYNpEb/3w"
            "2gn/QOrNkYZpizheNnBXB9KomX1QUakZpOmPvdWA4M6SKVGIY0AqBXAUxgsqJwtbwLM/xgi+GkxH2g=="
        )
    },
    "secret": {
        "encryptedValue": (
            "8wHL8BgSVQBNlXuaDIYPrV/5Hm2JuMGDeX/nEZHH694m6d1KWWcHwYuCM5gsCp/2SXchRtDP8BE74st2r5SeuaqKB3a7j6yjWcBXFq/b"
            "mn8JH0mgNpYHIwn8Xptfgebt3O3X9el/t1k="
        ),
        "type": "locked",
    },
}

CONNECTION = "f0ec68aa-63f5-405c-b178-9a4454556d6b"

SUDO = Action("secret.sudo", limits=[escapes_rules, sets_passwords_of_categories])

group = Group("secret", "Values that only their principals can read.")


class EncryptRequest(Schema):
    value = Text(
        required=True, allow_nul=True, metadata={"format": "password", "description": "The value to encrypt; any text."}
    )
    principals = fields.List(
        Text(validate=validate.Length(min=1, max=LONGEST_NAME)),
        validate=validate.Length(min=1, max=MOST_PRINCIPALS),
        metadata={
            "description": "Who may read the value: names of vault users, or `vault` for anybody who may use the "
            "vault. Without it: the user that this session has unlocked, else `vault`."
        },
    )


class EncryptResponse(Schema):
    encrypted = fields.Nested(EncryptedSchema, required=True)


class DecryptRequest(Schema):
    encrypted = fields.Nested(
        EncryptedSchema, required=True, metadata={"description": "The `encrypted` of `/secret/encrypt`, unchanged."}
    )


class SudoRequest(Schema):
    connection = Id(metadata={"description": "The connection over which sudo asks for the password."})
    category = Id(metadata={"description": "In its place: a category, for all connections in it and below it."})
    password = Text(
        allow_none=True,
        metadata={
            "format": "password",
            "description": "The password to store, in place of any other; null removes it. Without it nothing changes.",
        },
    )

    @validates_schema
    def check_one(self, data: dict[str, Any], **_: Any) -> None:
        if ("connection" in data) == ("category" in data):
            raise ValidationError("Give either connection or category.", "connection")


class SudoResponse(Schema):
    connection = Id(metadata={"description": "The connection that the password in use is stored for, if it is one."})
    category = Id(metadata={"description": "The category that it is stored for, if it is one."})


class DecryptResponse(Schema):
    decrypted = fields.String(required=True, metadata={"format": "password"})


@group.endpoint(
    "/encrypt",
    EncryptRequest,
    EncryptResponse,
    has_content=True,
    action="secret.encrypt",
    raises=[UnknownPrincipal, IntegrityError],
    example={"value": "correct horse battery staple"},
    answer={"encrypted": EXAMPLE},
)
def encrypt(request: dict[str, Any]) -> dict[str, Any]:
    """Encrypt a value for principals. Any one of them is enough to decrypt it.

    A connection's data accepts the result in place of a secret. The result is valid in this vault only, which
    authenticates every byte. A session without an unlocked user may encrypt, also to users, but not decrypt.
    """
    sealed = services().vault.principals.seal(request["value"], caller().access, request.get("principals"))
    return {"encrypted": sealed}


@group.endpoint(
    "/decrypt",
    DecryptRequest,
    DecryptResponse,
    has_content=True,
    action="secret.decrypt",
    raises=[SecretLocked, IntegrityError],
    example={"encrypted": EXAMPLE},
    answer={"decrypted": "correct horse battery staple"},
)
def decrypt(request: dict[str, Any]) -> dict[str, str]:
    """Decrypt a value, if this session has one of its principals.

    Otherwise the error `secret_locked` lists the value's `principals`. A changed value causes the error `integrity`.
    """
    return {"decrypted": services().vault.principals.unseal(request["encrypted"], caller().access)}


@group.endpoint(
    "/sudo",
    SudoRequest,
    SudoResponse,
    action=SUDO,
    about=("connection", "category"),
    raises=[UnknownConnection, UnknownCategory, IntegrityError, ShellBusy],
    waits=True,
    example={"connection": CONNECTION, "password": "correct horse"},
    answer={"connection": CONNECTION},
)
def sudo(request: dict[str, Any]) -> dict[str, str]:
    """Store the password that sudo asks for when a request has `elevate`, and tell which one such a request would use.

    That is the connection's, or else that of the nearest category upwards that has one; none is an empty answer. No
    request returns a password. It goes to no connection in memory alone, such as one to an address.
    """
    vault = services().vault
    passwords, connection = vault.connections.sudo_passwords, request.get("connection")
    if connection is not None:
        [stored] = vault.connections.infos([connection])
        if elevation_of(connection) is not None or vault.connections.temporary.get(connection) is not None:
            raise UnknownConnection(connection)
        category = stored.category
    else:
        category = request["category"]
        vault.categories.infos([category])
    if "password" in request:
        password = request["password"]
        sealed = None if password is None else vault.principals.seal(password, caller().access)
        before = vault.connections.each(passwords.in_use())
        passwords.store(connection or category, sealed)
        detail(sudoPassword="removed" if password is None else "stored")
        after = vault.connections.each(before)
        # What another password has opened ends at once.
        end_what_runs([id for id in before if before[id] != after.get(id)])
    found = passwords.stored(connection, category)
    if found is None:
        return {}
    return {"connection": found.of} if found.of == connection else {"category": found.of}
