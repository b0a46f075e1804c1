"""The connection type ``shellEnvironment``: a shell of another user or kind, or with commands run at its start.

It runs in any other connection. ``sudo`` is given our prompt and reads the password from its standard input; ``su`` and
``doas`` read it from a terminal.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import AuthFailed, ElevationFailed
from connmgr.plugin import (
    BECOME_ARGV,
    Boolean,
    Dialogue,
    List,
    OneOf,
    Reference,
    Schema,
    Secret,
    TerminalRequired,
    Text,
    ValidationError,
    Wrapper,
    hookimpl,
)

STEP_SECONDS = 8.0
"""Longest wait for the next step of a login."""

# Prompts and refusals are recognised in English; the session gets its own locale back. sudo passes LC_* on.
_IN_ENGLISH = 'LC_CONNMGR=${LC_ALL-} LC_ALL=C exec "$@"'
_IN_OWN_LANGUAGE = 'LC_ALL=${LC_CONNMGR-}; [ "$LC_ALL" ] || unset LC_ALL; unset LC_CONNMGR; '
# sudo and doas run programs as users whose login shell refuses logins, such as www-data, but name that shell in SHELL.
_WITH_SHELL = "case ${SHELL-} in */nologin|*/false) SHELL=/bin/sh; export SHELL;; esac; "
# Bounded, because an unbounded search would scan to the end of the line for each "password".
_PASSWORD_PROMPT = rb"(?i)pass(?:word|code|phrase)[^\r\n]{0,200}: ?$"
_REFUSED = re.compile(r"(?i)authentication (?:failure|failed|error)|incorrect password|sorry, try|su: sorry")
_WANTED = re.compile(r"(?i)password|authentication|terminal is required to")
_TERMINAL = re.compile(r"\btty\b")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EXPIRED = (
    rb"(?i)changing password for|password (?:is|has) expired|"
    rb"(?:change|reset) your password (?:immediately|and try)|new password: ?$"
)


def _user_name(value: str) -> None:
    if not value or value.startswith("-") or not value.isprintable() or " " in value:
        raise ValidationError("Not a user's name.")


class ShellEnvironmentSchema(Schema):
    """The fields of a shell environment."""

    host = Reference(required=True, metadata={"description": "The connection that it runs in."})
    shell = Text(allow_none=True, metadata={"description": "The session's shell; the user's login shell otherwise."})
    elevated = Boolean(load_default=False, metadata={"description": "Whether it runs as another user."})
    commands = List(
        Text(),
        allow_none=True,
        load_default=None,
        metadata={"description": "Commands run once when a session starts; one that fails ends the start."},
    )
    user = Text(load_default="root", validate=_user_name, metadata={"description": "The user of an elevated shell."})
    method = Text(
        load_default="sudo",
        validate=OneOf(["sudo", "su", "doas"]),
        metadata={"description": "The program that elevates."},
    )
    password = Secret(allow_none=True, metadata={"description": "The password that the program asks for."})


class ShellEnvironment(Wrapper):
    """A shell in another connection, elevated or not."""

    name = "shellEnvironment"
    description = "A shell in another connection: elevated by sudo, su or doas, or with its own shell and commands."
    schema = ShellEnvironmentSchema
    example: ClassVar[Mapping[str, Any]] = {
        "host": "f0ec68aa-63f5-405c-b178-9a4454556d6b",
        "elevated": True,
        "method": "sudo",
        "user": "root",
        "password": "a secret",
        "commands": ["cd /etc"],
    }
    via = "host"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        if not data["elevated"]:
            return list(argv)
        own = ["/bin/sh", "-c", _WITH_SHELL + _IN_OWN_LANGUAGE + BECOME_ARGV, "sh", *argv]
        return ["/bin/sh", "-c", _IN_ENGLISH, "sh", *self._elevation(own, data, prompt)]

    def _elevation(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str) -> list[str]:
        user, silent = data["user"], data.get("password") is None
        if data["method"] == "sudo":
            # Of two % sudo prints one (sudo(8), -p). Without a password, -n makes sudo fail instead of waiting for one.
            return ["sudo", *(["-n"] if silent else ["-S", "-p", f"%%{prompt}"]), "-H", "-u", user, "--", *argv]
        if data["method"] == "doas":
            return ["doas", *(["-n"] if silent else []), "-u", user, *argv]
        # `exec`, so that the program and not a shell between gets the signals and the end of input.
        return ["su", user, "-c", shlex.join(["exec", *argv])]

    def needs_pty(self, data: Mapping[str, Any]) -> bool:
        return bool(data["elevated"]) and data["method"] != "sudo" and data.get("password") is not None

    def needs_login(self, data: Mapping[str, Any]) -> bool:
        return bool(data["elevated"])

    def login(self, dialogue: Dialogue, data: Mapping[str, Any]) -> None:
        # sudo prints one of the two %. A shell that traces commands (set -x) prints both: that is not a prompt.
        prompt = rb"(?<!%)%" + dialogue.prompt if data["method"] == "sudo" else _PASSWORD_PROMPT
        answered = False
        try:
            if dialogue.expect([dialogue.ready, prompt], STEP_SECONDS):
                dialogue.send_secret(self._answer(data))
                answered = True
                step = dialogue.expect([dialogue.ready, _EXPIRED, prompt], STEP_SECONDS)
                self._check(step, data["method"])
        except ElevationFailed as error:
            raise self._explained(error, dialogue.printed, data, answered) from error

    def _answer(self, data: Mapping[str, Any]) -> str:
        password: str | None = data.get("password")
        if password is None:
            raise _wants_password(data["method"])
        if _CONTROL.search(password):
            raise AuthFailed(
                f"The stored password has control characters, which cannot be typed at {data['method']}'s prompt: "
                "store another password."
            )
        return password

    def _check(self, step: int, method: str) -> None:
        if step == 1:
            raise ElevationFailed(f"{method}: the password has expired. Change it there, and store the new password.")
        if step == 2:
            raise _refused(method)

    def _explained(self, error: ElevationFailed, printed: str, data: Mapping[str, Any], answered: bool) -> Exception:
        """Return why the program ended; ``answered`` says whether it received a password."""
        method = data["method"]
        if "is not allowed to" in printed:
            return ElevationFailed(f"{method} is not allowed to run /bin/sh as {data['user']} there.")
        if _TERMINAL.search(printed) and not self.needs_pty(data):
            return TerminalRequired(printed)
        if f"{method}: not found" in printed:
            return ElevationFailed(f"{method} is not installed there.")
        if data.get("password") is None and _WANTED.search(printed):
            return _wants_password(method)
        if answered and _REFUSED.search(printed):
            return _refused(method)
        return error


def _wants_password(method: str) -> AuthFailed:
    return AuthFailed(f"{method} wants a password, and the connection has none.", passwordRequired=True)


def _refused(method: str) -> AuthFailed:
    return AuthFailed(f"{method} refused the password.", passwordRefused=True)


@hookimpl
def connmgr_connection_types() -> Sequence[Wrapper]:
    return [ShellEnvironment()]
