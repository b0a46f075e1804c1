"""A connection's data on its way in: checked by its type, its secrets sealed, and comparable with what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marshmallow import ValidationError

from connmgr.api.body import describe
from connmgr.api.services import services
from connmgr.errors import IntegrityError, InvalidRequest, SecretLocked
from connmgr.fields import map_secrets, references
from connmgr.plugin import AnyConnectionType, Wrapper
from connmgr.secrets.principals import Access
from connmgr.vault import record

_BLANK = "secret"


@dataclass(frozen=True, repr=False)
class ConnectionData:
    """The ``data`` of a request, loaded by its type's schema; secrets are in plain in ``_plain`` alone."""

    kind: AnyConnectionType
    sealed: dict[str, Any]
    references: list[str]
    """The connections that it names, to run over."""
    parent: str | None
    """The connection whose place it extends, and whose path its own begins with: that of a wrapper."""
    fingerprint: bytes
    _plain: dict[str, Any]
    _access: Access

    @classmethod
    def load(cls, data: Mapping[str, Any], access: Access, *, kind: str | None = None) -> ConnectionData:
        """Check ``data`` whole, seal its plain secrets and open its sealed ones for comparison.

        ``kind`` is the type that it must have, where that is settled.
        :raises InvalidRequest: a field that the type refuses, named by its path.
        :raises UnknownType: no plugin offers its type.
        :raises SecretLocked: ``access`` may not open a secret that came sealed.
        :raises IntegrityError: one was changed since it was sealed.
        """
        type = _type(data, kind)
        schema = type.schema()
        try:
            loaded: dict[str, Any] = schema.load({key: value for key, value in data.items() if key != "type"})
        except ValidationError as error:
            messages: Any = error.messages
            raise InvalidRequest(describe(messages, "data")) from None
        principals = services().vault.principals
        return cls(
            kind=type,
            references=references(schema, loaded),
            parent=loaded.get(type.via) if type.via and isinstance(type, Wrapper) else None,
            fingerprint=record.fingerprint(map_secrets(schema, loaded, lambda _: _BLANK)),
            _plain=map_secrets(schema, loaded, lambda s: s if isinstance(s, str) else principals.unseal(s, access)),
            sealed=map_secrets(schema, loaded, lambda s: principals.seal(s, access) if isinstance(s, str) else s),
            _access=access,
        )

    def equals(self, stored: Mapping[str, Any]) -> bool:
        """Whether the ``stored`` data of a connection of this type, with the same fingerprint, has the same secrets.

        Where the caller may not open those, it does not: else adding connections would tell which secrets others have.
        """
        principals = services().vault.principals
        try:
            plain = map_secrets(self.kind.schema(), stored, lambda secret: principals.unseal(secret, self._access))
        except (SecretLocked, IntegrityError):
            return False
        return bool(record.without_nulls(plain) == record.without_nulls(self._plain))


def _type(data: Mapping[str, Any], settled: str | None) -> AnyConnectionType:
    name = data.get("type")
    if name is None:
        raise InvalidRequest("data.type: Missing data for required field.")
    if not isinstance(name, str):
        raise InvalidRequest("data.type: Not a valid string.")
    if settled is not None and name != settled:
        raise InvalidRequest(f"data.type: The type of a connection stays what it is: {settled}.")
    return services().registry.get(name)
