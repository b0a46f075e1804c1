"""``/secret``: values that only their principals can read."""

from __future__ import annotations

from typing import Any

from marshmallow import fields, validate

from connmgr.api.account import caller
from connmgr.api.group import Group
from connmgr.api.services import services
from connmgr.errors import IntegrityError, SecretLocked, UnknownPrincipal
from connmgr.fields import EncryptedSchema, Schema, Text

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


class DecryptResponse(Schema):
    decrypted = fields.String(required=True, metadata={"format": "password"})


@group.endpoint(
    "/encrypt",
    EncryptRequest,
    EncryptResponse,
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
