"""Credentials that somebody names: tokens and the API key, as parameters, in files and in variables.

Whoever names one gets exactly that one or an error, never the auth file of this user's daemon in its place. A
parameter or an option outranks the variables; two of the same rank are refused, because choosing would be a guess.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from connmgr.client.errors import AccessDenied
from connmgr.paths import (
    API_KEY_FILE_VARIABLE,
    CLIENT_VARIABLES,
    CREDENTIAL_VARIABLES,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    misspelt,
)

TOKEN_PREFIX = "cmgr_"  # noqa: S105 - no token
"""The prefix of tokens of ``/token/create``, which no API key has."""

MAX_BYTES = 4096
"""Longest credential that the daemon accepts."""


class BadCredential(AccessDenied):
    """What somebody has named is not a credential, or cannot be read; nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "invalid_credential", 0)


def check_token(text: str, source: str) -> str:
    """Return the token that ``text`` consists of; ``source`` names the place it comes from, for errors.

    :raises BadCredential: it is not a token. An API key is not one, since its holder may do everything.
    """
    token = _one_word(text, source, "token")
    if not token.startswith(TOKEN_PREFIX):
        raise BadCredential(
            f"{source} does not contain a token: tokens begin with {TOKEN_PREFIX} (`connmgr token create` makes one)."
        )
    return token


def check_api_key(text: str, source: str) -> str:
    """Return the API key that ``text`` consists of, or the token; otherwise as :func:`check_token`."""
    return _one_word(text, source, "API key")


def read_token(path: str | os.PathLike[str], named_by: str = "") -> str:
    """Return the token in a file, which the variable ``named_by`` may name; raise :class:`BadCredential`."""
    return check_token(_read(path, "token", named_by), f"The file {os.fspath(path)}")


def read_api_key(path: str | os.PathLike[str], named_by: str = "") -> str:
    """Return the API key in a file; otherwise as :func:`read_token`."""
    return check_api_key(_read(path, "API key", named_by), f"The file {os.fspath(path)}")


def from_environment(environ: Mapping[str, str]) -> str | None:
    """Return the token or API key that variables name, None if they name none.

    :raises BadCredential: there are two, or it is not one; an empty or misspelt variable names none, but does not mean
        the owner.
    """
    variables = [variable for variable in CREDENTIAL_VARIABLES if variable in environ]
    if not variables:
        if wrong := misspelt(environ, CLIENT_VARIABLES):
            raise BadCredential(wrong)
        return None
    if len(variables) > 1:
        raise BadCredential(f"{' and '.join(variables)} name several credentials: unset all but one.")
    [variable] = variables
    value = environ[variable]
    if not value.strip():
        raise BadCredential(f"The variable {variable} is empty: set it to a credential, or unset it.")
    # Functions, because only the reader of the one variable may open a file.
    readers = {
        TOKEN_VARIABLE: lambda: check_token(value, f"The variable {TOKEN_VARIABLE}"),
        TOKEN_FILE_VARIABLE: lambda: read_token(value, TOKEN_FILE_VARIABLE),
        API_KEY_FILE_VARIABLE: lambda: read_api_key(value, API_KEY_FILE_VARIABLE),
    }
    return readers[variable]()


def is_token(credential: str | None) -> bool:
    """Whether a named credential is a token, whose holder may do only what it allows."""
    return credential is not None and credential.startswith(TOKEN_PREFIX)


def digest(credential: str) -> str:
    """Return a name for a credential's sessions, which does not tell the credential."""
    # Loading OpenSSL takes a tenth of the start of a command, and few commands name a credential.
    from hashlib import sha256

    return sha256(credential.encode(errors="surrogatepass")).hexdigest()[:16]


def _read(path: str | os.PathLike[str], kind: str, named_by: str) -> str:
    origin = f" ({named_by})" if named_by else ""
    what = f"The {kind} in {os.fspath(path) or 'a file without a name'}{origin} cannot be read"
    try:
        with Path(path).open("rb") as file:
            # A pipe, such as <(pass show ci), yields its content in pieces.
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadCredential(f"{what}: {error.strerror}.") from error
    except ValueError as error:
        raise BadCredential(f"{what}: {error}.") from None
    try:
        return content.decode()
    except UnicodeError:
        raise BadCredential(f"{what}: it is not text.") from None


def _one_word(text: str, source: str, kind: str) -> str:
    stripped = text.strip()
    if not stripped:
        raise BadCredential(f"{source} is empty: no {kind} is in it, and no other credential is used instead.")
    if len(stripped.splitlines()) > 1:
        raise BadCredential(f"{source} has several lines; a {kind} is one line.")
    if len(stripped) > MAX_BYTES or not stripped.isascii() or not stripped.isprintable():
        raise BadCredential(f"{source} does not contain a valid {kind}: one line of printable ASCII characters.")
    return stripped
