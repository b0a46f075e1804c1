"""``/handshake``: a client sends a credential and gets the token for all other requests."""

from __future__ import annotations

from typing import Annotated, ClassVar

from connmgr.contract.message import SECRET, Length, Message, Wrong, members

MAX_CREDENTIAL = 4096


class HandshakeAuth(Message):
    """A credential: the auth file's content for a local client, the API key, or a token of `/token/create`."""

    credentials: ClassVar[dict[str, str]] = {"local": "authFileContent", "apikey": "key", "token": "token"}

    type: Annotated[str, "`local`, `apiKey` or `token`, in any letter case."]
    auth_file_content: Annotated[
        str | None, SECRET, Length(max=MAX_CREDENTIAL), "For `local`: the auth file's content."
    ] = None
    key: Annotated[
        str | None, SECRET, Length(max=MAX_CREDENTIAL), "For `apiKey`: the key that `connmgr api-key` prints."
    ] = None
    token: Annotated[
        str | None, SECRET, Length(max=MAX_CREDENTIAL), "For `token`: the `token` that `/token/create` returned."
    ] = None

    def check(self) -> None:
        super().check()
        wanted = self.credentials.get(self.type.lower())
        if wanted is None:
            raise Wrong("Must be local, apiKey or token.", "type")
        names = members(self).keys() & self.credentials.values()
        if wanted not in names:
            raise Wrong("Missing data for required field.", wanted)
        for other in sorted(names - {wanted}):
            raise Wrong(f"Not a field of type {self.type}.", other)

    @property
    def credential(self) -> str:
        """The credential of the given type."""
        return str(members(self)[self.credentials[self.type.lower()]])


class HandshakeClient(Message):
    """Who the client says it is."""

    type: Annotated[str, "`api`, in any letter case."]
    name: Annotated[str, Length(max=200), "A name for the daemon's log."]

    def check(self) -> None:
        super().check()
        if self.type.lower() != "api":
            raise Wrong("Must be api.", "type")


class HandshakeRequest(Message):
    auth: Annotated[HandshakeAuth, "The credential."]
    client: Annotated[HandshakeClient, "The client's name for itself."]


class HandshakeResponse(Message):
    session_token: Annotated[str, SECRET, "256 random bits, URL-safe."]
