"""``/secret``: values that only their principals can read."""

from __future__ import annotations

from connmgr.api.connection_data import end_what_runs
from connmgr.api.context import caller, detail
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.message import Absent
from connmgr.contract.secret import (
    DecryptRequest,
    DecryptResponse,
    EncryptRequest,
    EncryptResponse,
    SudoRequest,
    SudoResponse,
)
from connmgr.errors import (
    IntegrityError,
    SecretLocked,
    ShellBusy,
    UnknownCategory,
    UnknownConnection,
    UnknownPrincipal,
)
from connmgr.rights.actions import Action, escapes_rules, sets_passwords_of_categories
from connmgr.vault.names import elevation_of

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


@group.endpoint(
    "/encrypt",
    has_content=True,
    raises=[UnknownPrincipal, IntegrityError],
    example={"value": "correct horse battery staple"},
    answer={"encrypted": EXAMPLE},
)
def encrypt(request: EncryptRequest) -> EncryptResponse:
    """Encrypt a value for principals. Any one of them is enough to decrypt it.

    A connection's data accepts the result in place of a secret. The result is valid in this vault only, which
    authenticates every byte. A session without an unlocked user may encrypt, also to users, but not decrypt.
    """
    sealed = services().vault.principals.seal(request.value, caller().access, request.principals)
    return EncryptResponse(encrypted=sealed)


@group.endpoint(
    "/decrypt",
    has_content=True,
    raises=[SecretLocked, IntegrityError],
    example={"encrypted": EXAMPLE},
    answer={"decrypted": "correct horse battery staple"},
)
def decrypt(request: DecryptRequest) -> DecryptResponse:
    """Decrypt a value, if this session has one of its principals.

    Otherwise the error `secret_locked` lists the value's `principals`. A changed value causes the error `integrity`.
    """
    return DecryptResponse(decrypted=services().vault.principals.unseal(request.encrypted, caller().access))


@group.endpoint(
    "/sudo",
    action=SUDO,
    about=("connection", "category"),
    raises=[UnknownConnection, UnknownCategory, IntegrityError, ShellBusy],
    waits=True,
    example={"connection": CONNECTION, "password": "correct horse"},
    answer={"connection": CONNECTION},
)
def sudo(request: SudoRequest) -> SudoResponse:
    """Store the password that sudo asks for when a request has `elevate`, and tell which one such a request would use.

    That is the connection's, or else that of the nearest category upwards that has one; none is an empty answer. No
    request returns a password. It goes to no connection in memory alone, such as one to an address.
    """
    vault, connection = services().vault, request.connection
    passwords = vault.connections.sudo_passwords
    if connection is not None:
        [stored] = vault.connections.infos([connection])
        if elevation_of(connection) is not None or vault.connections.temporary.get(connection) is not None:
            raise UnknownConnection(connection)
        category = stored.category
    else:
        category = request.category or ""
        vault.categories.infos([category])
    if not isinstance(request.password, Absent):
        sealed = None if request.password is None else vault.principals.seal(request.password, caller().access)
        # Which of them a category reaches is not told by the request, so all are compared.
        before = vault.connections.each(passwords.in_use())
        passwords.store(connection or category, sealed)
        detail(sudoPassword="removed" if sealed is None else "stored")
        after = vault.connections.each(before)
        # What another password has opened ends at once.
        end_what_runs([id for id in before if before[id] != after.get(id)])
    password = passwords.stored(connection, category)
    if password is None:
        return SudoResponse()
    return SudoResponse(connection=password.of) if password.of == connection else SudoResponse(category=password.of)
