"""The public interface for connection types: the contracts of types, transports and channels, and field helpers.

A :class:`ConnectionType` opens a :class:`Transport`; a transport opens :class:`Channel` s; the engine runs a shell on a
channel. A :class:`Wrapper` has no transport of its own: it rewrites an argv and so runs over any other connection. The
engine does the rest for every type: chains, secrets, framing, timeouts, files and closing.
"""

from __future__ import annotations

import pluggy

from connmgr.fields import (
    Boolean,
    Integer,
    Length,
    List,
    Nested,
    Number,
    OneOf,
    Range,
    Reference,
    Schema,
    Secret,
    Text,
    ValidationError,
    validates_schema,
)
from connmgr.plugin.hooks import Caller, FactProgram, SecretSource, Subjects
from connmgr.plugin.signers import CertificateOrder, CertificateWish, SignedCertificate, SshSigner
from connmgr.plugin.transport import LEAST_SECONDS, ByteStream, Channel, Deadline, Listener, Pty, Transport
from connmgr.plugin.types import (
    BECOME_ARGV,
    DEFAULT_SEND_ENV,
    AnyConnectionType,
    Asker,
    Child,
    ClientEnvironment,
    ConnectionType,
    Described,
    Dialled,
    Dialogue,
    ForgottenKey,
    Forward,
    Logged,
    TerminalRequired,
    Toggled,
    Tunnel,
    Wrapper,
)
from connmgr.processes import connect_unix

__all__ = [
    "BECOME_ARGV",
    "DEFAULT_SEND_ENV",
    "LEAST_SECONDS",
    "AnyConnectionType",
    "Asker",
    "Boolean",
    "ByteStream",
    "Caller",
    "CertificateOrder",
    "CertificateWish",
    "Channel",
    "Child",
    "ClientEnvironment",
    "ConnectionType",
    "Deadline",
    "Described",
    "Dialled",
    "Dialogue",
    "FactProgram",
    "ForgottenKey",
    "Forward",
    "Integer",
    "Length",
    "List",
    "Listener",
    "Logged",
    "Nested",
    "Number",
    "OneOf",
    "Pty",
    "Range",
    "Reference",
    "Schema",
    "Secret",
    "SecretSource",
    "SignedCertificate",
    "SshSigner",
    "Subjects",
    "TerminalRequired",
    "Text",
    "Toggled",
    "Transport",
    "Tunnel",
    "ValidationError",
    "Wrapper",
    "connect_unix",
    "hookimpl",
    "validates_schema",
]

hookimpl = pluggy.HookimplMarker("connmgr")
