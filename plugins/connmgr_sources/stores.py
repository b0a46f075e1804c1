"""Secret sources that are programs: any command, and password managers by their documented command lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from connmgr.errors import SecretUnavailable
from connmgr.plugin import Deadline, Integer, Length, List, Range, Schema, SecretSource, Text, ValidationError
from connmgr.plugin.outside import Unanswered, last_line, run_program

_MAX_WORDS = 200
_LONGEST = 4096
MAX_OUTPUT = 64 * 1024


def _no_option(word: str) -> None:
    # The first character decides whether a program takes a word as an option.
    if word.startswith("-"):
        raise ValidationError("It begins with a hyphen, as an option would.")


def _named(description: str) -> Text:
    return Text(required=True, validate=[Length(1, _LONGEST), _no_option], metadata={"description": description})


class CommandSchema(Schema):
    argv = List(
        Text(validate=Length(0, _LONGEST)),
        required=True,
        validate=Length(1, _MAX_WORDS),
        metadata={"description": "The program and its arguments, run on the daemon's machine by no shell."},
    )


class CommandSource(SecretSource):
    name = "command"
    description = "What a command on the daemon's machine prints."
    schema = CommandSchema
    example: ClassVar = {"argv": ["/usr/local/bin/password-of", "web1"]}

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        return printed_by(data["argv"], deadline, self.name)


class PassSchema(Schema):
    entry = _named("The entry's name in the store.")
    line = Integer(
        load_default=1,
        allow_none=True,
        validate=Range(1, 1000),
        metadata={"description": "The line of the entry; the first is the password. Null: all lines, as of a key."},
    )


class PassSource(SecretSource):
    name = "pass"
    description = "An entry of the standard Unix password manager pass."
    schema = PassSchema
    example: ClassVar = {"entry": "servers/web1"}

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        printed = printed_by(["pass", "show", data["entry"]], deadline, self.name, tells=True)
        lines = [printed] if data["line"] is None else printed.split("\n")[data["line"] - 1 :]
        if not lines:
            raise SecretUnavailable(f"The secret source pass failed: the entry has no line {data['line']}.")
        return lines[0]


class OnePasswordSchema(Schema):
    reference = Text(
        required=True,
        validate=Length(1, _LONGEST),
        metadata={"description": "The secret reference, such as `op://vault/item/field`."},
    )


class OnePasswordSource(SecretSource):
    name = "op"
    description = "A field of an item of 1Password, by its command line op."
    schema = OnePasswordSchema
    example: ClassVar = {"reference": "op://servers/web1/password"}

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        return printed_by(["op", "read", "--no-newline", "--", data["reference"]], deadline, self.name, tells=True)


class BitwardenSchema(Schema):
    item = _named("The item's id, or its name if that is unique.")


class BitwardenSource(SecretSource):
    name = "bw"
    description = "The password of an item of Bitwarden, by its command line bw, unlocked by BW_SESSION."
    schema = BitwardenSchema
    example: ClassVar = {"item": "99ee88d2-6046-4ea7-92c2-acac464b1412"}

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        return printed_by(["bw", "--nointeraction", "get", "password", data["item"]], deadline, self.name, tells=True)


class KeyringSchema(Schema):
    service = _named("The entry's service.")
    username = _named("The entry's user name.")


class KeyringSource(SecretSource):
    name = "keyring"
    description = "An entry of the operating system's keyring, with connmgr[keyring]."
    schema = KeyringSchema
    example: ClassVar = {"service": "web1", "username": "deploy"}

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        if find_spec("keyring") is None:
            raise SecretUnavailable("The secret source keyring needs the extra connmgr[keyring]: install it.")
        # In a process of its own, because a keyring that waits for a person to unlock it cannot be interrupted.
        argv = [sys.executable, "-I", "-m", "keyring", "get", data["service"], data["username"]]
        return printed_by(argv, deadline, self.name)


def printed_by(argv: Sequence[str], deadline: Deadline, source: str, *, tells: bool = False) -> str:
    """Return what a program prints, less one newline at its end.

    It gets the daemon's environment without what is meant for the daemon alone. With ``tells``, errors have the last
    line that it wrote to standard error: for programs that never write a secret there.
    :raises SecretUnavailable: it could not be run, failed, printed nothing, more than 64 KiB or no UTF-8, or did not
        end in time.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNMGR_")}
    try:
        output = run_program(argv, deadline, environment=environment, limit=MAX_OUTPUT)
    except Unanswered as why:
        raise _failed(source, str(why)) from why.__cause__
    if output.code:
        complaint = last_line(output.complaint) if tells else ""
        raise _failed(source, f"the program {output.ending}{complaint and f': {complaint}'}")
    try:
        text = output.output.decode()
    except UnicodeDecodeError:
        # Without the cause, which holds the bytes.
        raise _failed(source, "the program printed something that is not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise _failed(source, "the program printed nothing")
    return text


def _failed(source: str, why: str) -> SecretUnavailable:
    error = SecretUnavailable(f"The secret source {source} failed: {why}.")
    error.for_tokens = f"The secret source {source} failed."
    return error
