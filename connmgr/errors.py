"""Every error that connmgr raises on purpose; a client sees its ``code`` and its message.

The tree, of which this module has the leaves in the same order::

    ConnmgrError
    ├── RequestError     400 to 431: the request is at fault
    ├── OperationError   500: the operation could not be carried out
    ├── Unavailable      503: not now; the same request may succeed later
    └── StartupError     the daemon refuses to start
"""

from __future__ import annotations

import re
from typing import Any, ClassVar


class ConnmgrError(Exception):
    """Base of every error raised on purpose: a message for a person and a stable ``code`` for a program.

    ``code`` is the name of the class in lower case with underscores, unless the class says another one; a subclass in
    another module has its parent's. ``status`` is the HTTP status of the answer. ``details`` holds further JSON members
    of the error object: never a secret, a path of the daemon or a traceback.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    for_tokens: str | None = None
    """The message for a token, if the real one names files of the daemon's machine."""

    hop: str | None = None
    """The id of the stored connection on a way that it is about: not for a token that does not see that one."""

    def __init_subclass__(cls, status: int | None = None) -> None:
        if cls.__module__ == __name__ and "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.status = status or cls.status

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def veiled(self, message: str) -> ConnmgrError:
        """Return this error with nothing but another ``message``, for whom the real one is not."""
        # Of its own class, which says after how long to try again.
        veiled = type(self).__new__(type(self), message)
        veiled.__dict__.update(self.__dict__, message=message, details={}, for_tokens=None, hop=None)
        return veiled


class RequestError(ConnmgrError, status=400):
    """The request is at fault; repeating it unchanged fails again."""

    code = "invalid_request"


_ID = re.compile(r"[0-9a-fA-F-]{36}")
"""How the id of a connection begins; that of an elevated one goes on."""


class _Unknown(RequestError):
    """The daemon has nothing of this kind under this uuid or name."""

    code = "invalid_request"
    _what: ClassVar[str]

    def __init_subclass__(cls, what: str) -> None:
        super().__init_subclass__()
        cls._what = what

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown {self._what}: {name}")


class InvalidRequest(RequestError):
    """Bad JSON, or a field that its schema refuses; the message names the field by its path."""


class BadFrame(RequestError):
    """A client of a stream sent an invalid frame, or more than its window allows."""


class UpgradeRequired(RequestError, status=426):
    """The endpoint is a WebSocket, and the request does not ask for one as RFC 6455 requires."""


class InvalidCredential(RequestError):
    """The handshake's API key or auth file content is wrong."""


class UnknownConnection(_Unknown, what="connection"):
    """No connection has this uuid."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        if not _ID.match(name):
            self.message += ". A connection is named by its uuid, which /connection/query finds."


class UnknownCategory(_Unknown, what="category"):
    """No category has this uuid."""


class UnknownType(RequestError):
    """No installed plugin offers this connection type."""


class UnknownPrincipal(RequestError):
    """A principal to seal a secret to does not exist."""


class ConnectionCycle(RequestError):
    """A connection would run over itself."""


class ProtectedEntry(RequestError):
    """A root category, the default category or the local machine cannot be removed."""


class NotToggleable(RequestError):
    """The connection is not to a system that can be started and stopped."""


class PortInUse(RequestError):
    """Another program already listens on the port of a tunnel."""


class NoShell(RequestError):
    """No shell runs on the connection."""


class NoSuchDirectory(RequestError):
    """The remote host cannot enter the requested working directory."""


class UnknownJob(_Unknown, what="job"):
    """No job has this uuid; it may have been removed."""


class JobRunning(RequestError):
    """The operation needs a job that has ended, and this one is running."""


class JobFinished(RequestError):
    """The operation needs a running job, and this one has ended."""


class UnknownRun(_Unknown, what="run"):
    """No run has this uuid; it may have been removed."""


class RunUnderWay(RequestError):
    """The operation needs a run that has ended, and this one is under way."""


class UnknownSchedule(_Unknown, what="schedule"):
    """No schedule has this name or uuid."""


class ScheduleExists(RequestError):
    """Another schedule has this name."""


class UnknownSigner(_Unknown, what="signer"):
    """No signer of SSH certificates has this name."""


class SignerExists(RequestError):
    """Another signer has this name."""


class UnknownInventory(_Unknown, what="inventory"):
    """No inventory has this name."""


class InventoryExists(RequestError):
    """Another inventory has this name."""


class ScheduleEnded(RequestError):
    """The schedule fires no more."""


class AlreadyFired(RequestError):
    """Another daemon has fired this time of the schedule, or the schedule was changed meanwhile."""


class RunEnded(RequestError):
    """The operation needs a run that is under way, and this one has ended."""


class UnknownTerminal(_Unknown, what="terminal"):
    """No terminal has this uuid; it may have ended some time ago."""


class UnknownRecording(_Unknown, what="recording"):
    """No recording has this uuid; it may have been removed for newer ones."""


class UnknownChange(_Unknown, what="change"):
    """No change of a file has this uuid, or not on this connection; it may have been removed for its age."""


class TerminalEnded(RequestError):
    """The program of the terminal has ended, or the terminal was closed."""


class StdinClosed(RequestError):
    """The job takes no input: it was started without open input, its input has ended, or it no longer reads."""


class OutputGone(RequestError):
    """The stored output of the job was removed or replaced on the remote host."""


class UnknownBlob(_Unknown, what="blob"):
    """No blob of the caller has this uuid; it may have expired."""


class BlobQuotaExceeded(RequestError):
    """The daemon has no room for another blob of this size."""


class NoSuchFile(RequestError):
    """There is no file at the path."""


class WrongFileType(RequestError):
    """The operation does not apply to a directory, a device or another kind of file."""


class FileExists(RequestError):
    """Something exists at the path."""


class FileChanged(RequestError):
    """The file at the path has changed since the client read it."""


class DirectoryNotEmpty(RequestError):
    """Removing a directory that is not empty requires ``recursive``."""


class ArchiveRefused(RequestError):
    """The archive is malformed, or would write outside its directory; nothing was written."""


class ValidationFailed(RequestError):
    """A connection to validate could not be opened; ``code`` is its cause's."""

    code = "invalid_request"

    def __init__(self, cause: ConnmgrError) -> None:
        super().__init__(cause.message, **cause.details)
        self.for_tokens, self.hop = cause.for_tokens, cause.hop
        self.code = cause.code  # type: ignore[misc]


class SecretLocked(RequestError):
    """The session may not open a secret that the request needs."""


class UnlockFailed(RequestError):
    """Unknown vault user or wrong passphrase, and clients cannot tell which; or the vault has no users."""


class WrongShares(RequestError):
    """Shares of a recovery key were mistyped, do not belong together, are too few, or of another vault."""


class UnknownRecovery(_Unknown, what="recovery key"):
    """The vault has no recovery key with this id."""


class CategoryExists(RequestError):
    """A category would move beside another one of the same name."""


class UserExists(RequestError):
    """A vault user of this name exists already."""


class UnknownUser(RequestError):
    """No vault user has this name."""


class UnknownApproval(_Unknown, what="or expired approval"):
    """No approval has this uuid, or it has expired or was used up."""


class UnknownCommand(_Unknown, what="saved command"):
    """No command is saved under this name."""


class UnknownAuditLog(_Unknown, what="audit log"):
    """The vault knows no audit log with this id."""


class CommandExists(RequestError):
    """A command is saved under this name already; ``replace`` replaces it."""


class VaultLocked(RequestError):
    """The vault has users, and only a session that has unlocked one may do this."""


class LastPrincipal(RequestError):
    """Removing the user would make stored secrets unreadable for everyone; ``force`` removes a user without a
    recovery key."""


class NotAuthenticated(RequestError, status=401):
    """The request carries no bearer token."""


class InvalidToken(RequestError, status=403):
    """The bearer token is unknown or expired."""


class TokenExpired(RequestError, status=403):
    """The token has expired."""


class TokenRevoked(RequestError, status=403):
    """The token, or one of its ancestors, was revoked."""


class ScopeDenied(RequestError, status=403):
    """The token lacks a scope for this, or may not be used from this address."""


class PolicyDenied(RequestError, status=403):
    """A rule of the token, or an authorising plugin, refuses the request.

    ``details["rule"]`` is the rule's index in its token, from 0, or its name; null if no rule allows the request.
    """


class ApprovalRequired(RequestError, status=403):
    """A rule of the token asks for an approval; ``details`` have its id as ``approval``, and when it ``expires``."""


class ApprovalDenied(RequestError, status=403):
    """A person denied the token's request; ``details`` have the ``approval``."""


class StepUpRequired(RequestError, status=403):
    """A page in a browser has to give a passphrase or get an approval first; ``details`` have which as ``stepUp``."""


class QuotaExceeded(RequestError, status=429):
    """The token has used up its requests of the day, or has too many under way."""


class UnknownToken(_Unknown, what="token"):
    """No token has this uuid, or it was not created with the caller's."""


class ForbiddenOrigin(RequestError, status=403):
    """A web page of another origin sent the request."""


class NotFound(RequestError, status=404):
    """No such endpoint."""


class MethodNotAllowed(RequestError, status=405):
    """The endpoint does not answer this HTTP method."""


class KeyReused(RequestError, status=409):
    """The key of a start was used for something else before: the answer would be a job or run that does that."""


class ConnectionChanged(RequestError, status=409):
    """A connection has changed since the client read it, and nothing was stored."""


class BodyTooLarge(RequestError, status=413):
    """The request body exceeds the daemon's limit."""


class UnsupportedMediaType(RequestError, status=415):
    """The request body is compressed, or is to be JSON and is not declared as ``application/json``."""


class MisdirectedRequest(RequestError, status=421):
    """The Host header names an address of another server (DNS rebinding)."""


class HeadersTooLarge(RequestError, status=431):
    """The header of the request exceeds the daemon's limit."""


class OperationError(ConnmgrError):
    """The operation could not be carried out."""

    code = "internal"

    names_hop = False
    """Whether its message begins with the name of the connection on the way to which it is about."""


class HostUnresolved(OperationError):
    """The host name has no address."""


class HostRefused(OperationError):
    """The host refused the TCP connection, or closed it before it had decided on the login."""


class HostUnreachable(OperationError):
    """No route leads to the host."""


class ConnectTimeout(OperationError):
    """The remote host did not answer in time while a link was opened."""


class HostKeyUnknown(OperationError):
    """The host's key is unknown; the message gives its fingerprint and how to accept it."""


class HostKeyChanged(OperationError):
    """The host's key differs from the known one, or is revoked."""


class PageMissing(OperationError):
    """This installation of the daemon has no page: what it is made of was not there when it was installed."""


class AuthFailed(OperationError):
    """The remote host refused every credential offered."""


class SignerUnavailable(OperationError):
    """A signer of SSH certificates cannot be reached, or fails."""


class SignerTimeout(OperationError):
    """A signer of SSH certificates did not answer in time."""


class SignerRefused(OperationError):
    """A signer of SSH certificates does not sign what a login needs, or its limits forbid it."""


class CertificateInvalid(OperationError):
    """A signer's answer is not the certificate that was ordered: nothing was sent to the host."""


class CertificateExpired(OperationError):
    """A login's certificate is not valid at this time: it expired during the login, or clocks are apart."""


class SecretUnavailable(OperationError):
    """A secret source did not return the secret that a connection takes from there."""


class ElevationFailed(OperationError):
    """The program for elevation (sudo, su, doas) refused for another reason than the password."""


class TransportUnsupported(OperationError):
    """The transport does not offer what a connection needs, such as a TCP stream."""


class ChannelRefused(OperationError):
    """The remote host opens no further channel on this link (sshd's MaxSessions); another link may be opened."""


class UnsupportedShell(OperationError):
    """The remote host's shell cannot host a session (nologin, restricted or menu shells)."""


class ShellStartFailed(OperationError):
    """The shell could not be started, for a reason without a class of its own."""


class FactsFailed(OperationError):
    """A program that gathers facts took too long, printed too much, or failed."""


class InventoryFailed(OperationError):
    """The source of an inventory cannot be read, lists no hosts, or lists some that cannot be connections."""


class RuntimeUnreachable(OperationError):
    """The program that enters containers is missing on its host, or cannot reach its server."""


class NoShellInside(OperationError):
    """The system inside has no ``/bin/sh``, like images of a single program."""


class ShellLost(OperationError):
    """The shell died or its link broke; start it again. ``sent`` is false if nothing of a command was sent."""

    def __init__(self, message: str, *, sent: bool = True, **details: Any) -> None:
        super().__init__(message, **details)
        self.sent = sent


class ShellStopped(OperationError):
    """The shell was stopped while the command ran or waited."""


class CommandTimeout(OperationError):
    """The command ran longer than its timeout and was killed; carries its output, cut if ``truncated``.

    ``memory`` is what the output is counted by, for as long as it is here.
    """

    def __init__(
        self,
        message: str,
        stdout: bytes | bytearray,
        stderr: bytes | bytearray,
        *,
        truncated: bool,
        memory: object = None,
    ) -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr
        self.truncated = truncated
        self.memory = memory


class CommandCancelled(OperationError):
    """The command was killed, or never began: its client disconnected, or the vault could not record its job."""


class PermissionDenied(OperationError):
    """The remote host denies the session's user access to the file."""


class NoSpace(OperationError):
    """The remote host's disk or quota is full; nothing was changed."""


class TransferFailed(OperationError):
    """A file was not transferred completely."""


class SourceFailed(OperationError):
    """The file that a client has passed for an upload cannot be read, or became shorter meanwhile."""


class FileOperationFailed(OperationError):
    """The remote host could not work on the file, for a reason without a class of its own."""


class TarMissing(OperationError):
    """The remote host has no ``tar``; transfers of single files work without it."""


class RecordingFailed(OperationError):
    """The recording of a terminal cannot be written; the terminal was not opened."""


class NoControlSocket(OperationError):
    """A control socket cannot be opened: its directory cannot be used, or too many are open."""


class BackupFailed(OperationError):
    """A backup of the vault cannot be written or restored."""


class IntegrityError(OperationError):
    """Stored or given data was changed outside of connmgr, and is refused."""

    code = "integrity"


class InternalError(OperationError):
    """A fault of connmgr itself; the daemon's log has the details."""

    code = "internal"


class ReadOnlyUnavailable(OperationError):
    """The token may only look, and the machine has no sandbox to run a command in; nothing was run."""


class Unavailable(ConnmgrError, status=503):
    """The daemon cannot do this now; the same request may succeed after ``retry_after`` seconds."""

    code = "busy"
    retry_after: int = 1


class Busy(Unavailable):
    """Every slot for long-running requests is taken."""


class ShellBusy(Unavailable):
    """Other commands held the session until this request's deadline."""


class TokenLimit(Unavailable):
    """The most tokens allowed are stored."""


class JobLimit(Unavailable):
    """The most jobs allowed are under way."""


class RunLimit(Unavailable):
    """The most runs allowed are under way."""


class TerminalLimit(Unavailable):
    """The most terminals allowed are open."""


class StreamLimit(Unavailable):
    """The most streams allowed are open."""


class SessionLimit(Unavailable):
    """The connection has the most shells allowed."""


class TemporaryLimit(Unavailable):
    """The most temporary connections allowed exist."""


class UnlockThrottled(Unavailable):
    """Too many failed unlocks; wait ``retry_after`` seconds before the next."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class VaultUnavailable(Unavailable):
    """The vault's database does not answer, or cannot be written to."""


class AuditUnavailable(Unavailable):
    """The audit log cannot be written, and the daemon is set to do nothing without it."""


class Stopping(Unavailable):
    """The daemon is shutting down."""


class StartupError(ConnmgrError):
    """The daemon cannot start safely; the message is the one line that the user sees."""

    code = "internal"
