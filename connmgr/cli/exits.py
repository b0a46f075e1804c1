"""The exit codes, and the errors that carry them."""

from __future__ import annotations

import errno
import re
import shlex
from typing import TYPE_CHECKING, Any

import click

from connmgr.errors import ConnmgrError
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.client import ClientError


FAILED = 1
USAGE = 2
UNREACHABLE = 3
DENIED = 4
NOT_FOUND = 5
TIMED_OUT = 124
NOT_RUN = 125
INTERRUPTED = 130

MEANINGS = {
    0: "done; of `exec`, `shell` and `job wait`: the command exited with 0",
    FAILED: "the request was refused or failed, one of several failed, input or output failed, "
    "or the answer to a question was no or Ctrl-D",
    USAGE: "the command line is wrong",
    UNREACHABLE: "no daemon answers",
    DENIED: "the daemon does not accept the credential, a passphrase is wrong, a secret is locked, or the token is not "
    "for this",
    NOT_FOUND: "no connection, category or job has that name, or several do",
    TIMED_OUT: "`exec`, `job wait`: the command ran longer than `--timeout` and was killed",
    NOT_RUN: "`exec`, `job wait`: connmgr itself failed, for any of the reasons above; "
    "the command did not run, did not end, or lost output, or its end is unknown",
    INTERRUPTED: "interrupted with Ctrl-C",
}
"""The meaning of each exit code; any other comes from the command that ran, 128 + N for signal N."""

FROM_THE_COMMAND = "`connmgr exec` exits with any other code if the command did: 128 + N if signal N ended it."
_FORBIDDEN = {"scope_denied", "policy_denied", "quota_exceeded", "approval_required", "approval_denied"}
_LOCKED = {"secret_locked", "vault_locked", "unlock_failed", "unlock_throttled"}
_UNKNOWN = {f"unknown_{what}" for what in ("connection", "category", "job", "run", "schedule", "inventory")}


class Failure(click.ClickException):
    """Ends the program with a message and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        with_code(self, exit_code)


def with_code(error: click.ClickException, exit_code: int) -> click.ClickException:
    """Set the exit code that ``error`` ends the program with, and return it."""
    error.exit_code = exit_code  # type: ignore[misc] # click declares it for the class, and reads it from the instance
    return error


def io_failure(error: OSError | UnicodeError) -> Failure:
    """Return the failure for a file or standard stream that cannot be read or written."""
    if isinstance(error, UnicodeError):
        return Failure(f"Input or output failed: {error}.")
    reason = error.strerror or type(error).__name__
    return Failure(f"Input or output failed: {reason}." if error.filename is None else f"{error.filename}: {reason}")


def failure(error: ClientError) -> Failure:
    """Return the failure for an error that the daemon answered."""
    # The message may quote output of a machine.
    return Failure(visible(_with_advice(error), lines=True), _code(error))


def _code(error: ClientError) -> int:
    from connmgr.client import AccessDenied, Unreachable

    # A request that was sent may have been carried out, so that a script must not take it for "no daemon runs".
    if isinstance(error, Unreachable):
        return FAILED if error.sent else UNREACHABLE
    if isinstance(error, AccessDenied) or error.code in _LOCKED | _FORBIDDEN:
        return DENIED
    # An unknown command or token is not among them: only names of what a command works on.
    return NOT_FOUND if error.code in _UNKNOWN else FAILED


def _with_advice(error: ClientError) -> str:
    from connmgr.client import Unreachable

    if isinstance(error, Unreachable) and not error.sent:
        return f"{error.message}\n`connmgr serve` starts a daemon; `connmgr service install` has the system start it."
    if error.code in ("secret_locked", "vault_locked"):
        return f"{error.message}\n`connmgr vault unlock USER` unlocks the vault until it is locked again."
    if "elevation" in error.details and (advice := _sudo_advice(error.details)):
        return f"{error.message}\n{advice}"
    if error.code == "shell_lost":
        return f"{error.message}\nThe next command starts a new shell, whose directory and variables are new."
    if error.code == "auth_failed" and "name" in error.details:
        return f"{error.message}\n{_login_advice(error.details)}"
    if error.code == "not_found" or (error.code, error.status) == ("unknown", 200):
        # This program asks for what each daemon of its version has.
        return (
            f"{error.message}\nThe daemon is of another version than this program, as after an update: `connmgr stop` "
            "and then `connmgr serve`, or `connmgr service install` for a service, starts this one."
        )
    if error.code == "invalid_request":
        # The fields of a connection are the command line's own words; where the API has them is not.
        return re.sub(r"(^|\. )data\.(?=[\w.]+: )", r"\1", error.message)
    if error.details.get("restarted"):
        return f"{error.message}\nThe shell was started anew before; its directory and variables are new."
    return error.message


def _sudo_advice(details: dict[str, Any]) -> str:
    """Return the commands that help where sudo has no password or refused one, ``""`` if it failed otherwise."""
    name = shlex.quote(str(details["elevation"].get("name", "CONNECTION")))
    if details.get("passwordRequired"):
        return f"`connmgr sudo-password {name}` stores it; on a terminal it is asked for."
    if details.get("passwordRefused"):
        return (
            f"`connmgr sudo-password --show {name}` prints for what the password is stored; "
            f"`connmgr sudo-password {name}` stores another for this connection."
        )
    return ""


def _login_advice(details: dict[str, Any]) -> str:
    """Return the commands that help after a failed login."""
    name = shlex.quote(str(details["name"]))
    if details.get("passwordRequired") or details.get("passwordRefused"):
        stores = "stores one" if details.get("passwordRequired") else "stores another"
        return f"`connmgr edit {name} --secret password` {stores}."
    if details.get("type", "ssh") != "ssh":
        # Which fields have the credentials is the type's own matter.
        return f"`connmgr info {name}` shows what is stored, and `connmgr edit {name}` changes it."
    if "key" in details:
        key = "" if str(details["key"]).startswith("key ") else f" identity.file={shlex.quote(str(details['key']))}"
        return (
            f"`connmgr edit {name}{key} --secret identity.passphrase` keeps the passphrase sealed in the vault; "
            "commands on a terminal ask for it."
        )
    if "@" in name:
        # An address, most likely: nothing is stored that could be changed.
        offers = "`connmgr add ssh NAME host=HOST user=USER identity.file=FILE` stores a connection with a key."
    else:
        offers = f"`connmgr edit {name} identity.file=FILE` names a key."
    agent = " `ssh-add` puts a key into an ssh-agent, which commands lend." if "agent" in details else ""
    return f"`connmgr info {name}` shows what is offered; {offers}{agent}"


KILLED = "command_timeout"
"""The code of the error that carries the output of a command killed at its timeout."""


class ExecCommand(click.Command):
    """Gives connmgr's own failures exit codes that differ from the command's."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **more)
        except click.UsageError as error:
            raise with_code(error, NOT_RUN) from error

    def invoke(self, ctx: click.Context) -> Any:
        from connmgr.client import ClientError

        try:
            return super().invoke(ctx)
        except ClientError as error:
            code = TIMED_OUT if error.code == KILLED else NOT_RUN
            raise with_code(failure(error), code) from error
        except click.ClickException as error:
            raise with_code(error, NOT_RUN) from error
        except ConnmgrError as error:
            raise Failure(error.message, NOT_RUN) from error
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                # The reader closed the pipe; click then ends quietly.
                raise
            raise with_code(io_failure(error), NOT_RUN) from error
