"""The bundled secret sources: programs, password stores, files and servers that have what the vault does not keep."""

from __future__ import annotations

from collections.abc import Sequence

from connmgr.plugin import SecretSource, hookimpl
from connmgr_sources.files import EnvFileSource
from connmgr_sources.kv import VaultSource
from connmgr_sources.stores import BitwardenSource, CommandSource, KeyringSource, OnePasswordSource, PassSource


@hookimpl
def connmgr_secret_sources() -> Sequence[SecretSource]:
    """Offer the bundled secret sources."""
    return [
        CommandSource(),
        PassSource(),
        EnvFileSource(),
        VaultSource(),
        KeyringSource(),
        OnePasswordSource(),
        BitwardenSource(),
    ]
