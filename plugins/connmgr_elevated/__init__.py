"""The connection type ``shellEnvironment``: a shell of another user, another kind or with commands run at its start.

It runs in any other connection. ``sudo`` is given a prompt of our own and reads the password from its standard input;
``su`` and ``doas`` read it from a terminal.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import AuthFailed, ElevationFailed
from connmgr.plugin import (
    Boolean,
    ConnectionType,
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

PROMPT_TIMEOUT = 9.0
"""Seconds in which the next step of a login must come."""

# Their prompts and refusals are read in English; the session gets its own locale back.
_IN_ENGLISH = 'CONNMGR_LC_ALL=${LC_ALL-} LC_ALL=C exec "$@"'
_IN_OWN_LANGUAGE = 'LC_ALL=$CONNMGR_LC_ALL; [ "$LC_ALL" ] || unset LC_ALL; unset CONNMGR_LC_ALL; exec "$@"'
_PASSWORD_PROMPT = rb"(?i)password[^\r\n]*: ?$"
_REFUSED = rb"(?i)authentication (?:failure|failed)|incorrect password|permission denied|sorry"


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

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str) -> list[str]:
        if not data["elevated"]:
            return list(argv)
        user, password = data["user"], data.get("password")
        if data["method"] == "sudo":
            how = ["-S", "-p", prompt] if password is not None else ["-n"]
            return ["sudo", *how, "-H", "-u", user, "--", *argv]
        own = ["/bin/sh", "-c", _IN_OWN_LANGUAGE, "sh", *argv]
        if data["method"] == "doas":
            how = [] if password is not None else ["-n"]
            return ["/bin/sh", "-c", _IN_ENGLISH, "sh", "doas", *how, "-u", user, *own]
        return ["/bin/sh", "-c", _IN_ENGLISH, "sh", "su", user, "-c", shlex.join(["exec", *own])]

    def needs_pty(self, data: Mapping[str, Any]) -> bool:
        return bool(data["elevated"]) and data["method"] != "sudo" and data.get("password") is not None

    def needs_login(self, data: Mapping[str, Any]) -> bool:
        return bool(data["elevated"])

    def login(self, dialogue: Dialogue, data: Mapping[str, Any]) -> None:
        password = data.get("password")
        prompt = dialogue.prompt if data["method"] == "sudo" else _PASSWORD_PROMPT
        try:
            if password is None:
                dialogue.expect([dialogue.ready], PROMPT_TIMEOUT)
            elif dialogue.expect([dialogue.ready, prompt], PROMPT_TIMEOUT):
                dialogue.send_secret(password)
                if dialogue.expect([dialogue.ready, prompt, _REFUSED], PROMPT_TIMEOUT):
                    raise AuthFailed(f"{data['method']} refused the password.")
        except ElevationFailed as error:
            raise self._explained(error, dialogue.printed, data) from error

    def _explained(self, error: ElevationFailed, printed: str, data: Mapping[str, Any]) -> Exception:
        text = printed.lower()
        if "tty" in text and not self.needs_pty(data):
            return TerminalRequired(printed)
        if data.get("password") is None and ("password" in text or "authentication" in text):
            return AuthFailed(f"{data['method']} wants a password, and the connection has none.")
        return error


@hookimpl
def connmgr_connection_types() -> Sequence[ConnectionType]:
    return [ShellEnvironment()]
