"""``/shell/pipe``: a process on a connection, whose streams and exit status belong to one client."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from marshmallow import ValidationError

from connmgr import errors
from connmgr.api.account import caller, cancellation, note_forwarding
from connmgr.api.command import with_words
from connmgr.api.command_fields import SendsEnvironment, VariableName, WhatRuns, program_of, sent_by
from connmgr.api.group import Group
from connmgr.api.schemas import Id, Members
from connmgr.api.services import services
from connmgr.api.shell import EXAMPLE, OPENING
from connmgr.api.stream_endpoint import Begin, StreamEndpoint
from connmgr.engine.dialects import become
from connmgr.engine.kill import hang_up
from connmgr.engine.script import Source, exports, script_argv
from connmgr.fields import Boolean, Integer, Length, Nested, Range, Schema, Text
from connmgr.frames import MAX_SIDE
from connmgr.links.link import Link
from connmgr.links.process import start_over
from connmgr.links.tcp_channel import TcpChannel
from connmgr.plugin import Channel, Pty
from connmgr.rights.action import Action
from connmgr.rights.command_rules import ground_of
from connmgr.streams.opening import Opening
from connmgr.streams.pipe import Pipe

MAX_COMMAND = 64 * 1024
"""Longest command, in bytes: the far side's kernel gets it as one word (MAX_ARG_STRLEN of Linux is 128 KiB)."""

HANG_UP_SECONDS = 10.0
_STREAM = Source("connmgr.engine", "stream")

group = Group(
    "pipe",
    "A process or a TCP stream for one client. A WebSocket carries every byte unchanged, as `ssh` does.",
    prefix="/shell",
)

FRAMES = (
    "101, and then the frames of a stream in both directions: input, output, standard error, and finally the exit "
    "status."
)


_TERMINAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)


def _terminal_name(value: str) -> None:
    if not _TERMINAL_NAME.fullmatch(value):
        raise ValidationError("Not the name of a terminal.")


class Address(Schema):
    host = Text(required=True, validate=Length(min=1, max=255), metadata={"description": "As the far side names it."})
    port = Integer(required=True, validate=Range(min=1, max=65535), metadata={"description": "The TCP port."})


class PtyFields(Schema):
    """The terminal of a process."""

    term = Text(
        load_default="xterm-256color",
        validate=_terminal_name,
        metadata={"description": "The value of TERM."},
    )
    columns = Integer(load_default=80, validate=Range(min=1, max=MAX_SIDE), metadata={"description": "Its width."})
    rows = Integer(load_default=24, validate=Range(min=1, max=MAX_SIDE), metadata={"description": "Its height."})


class PipeRequest(WhatRuns, SendsEnvironment, PtyFields):
    alternatives = ("command", "argv", "saved", "tcp")
    may_lack = True
    max_bytes = MAX_COMMAND

    connection = Id(required=True, metadata={"description": "Where it runs."})
    command = Text(
        metadata={
            "description": "A command in the language of the login shell. Without a command of any kind: the login "
            "shell itself."
        }
    )
    tcp = Nested(
        Address, metadata={"description": "Instead of a command: the address to which the far side opens a TCP stream."}
    )
    pty = Boolean(
        load_default=False,
        metadata={"description": "Gives the process a terminal; standard error then comes with the output."},
    )
    env = Members(
        keys=VariableName(), values=Text(), metadata={"description": "Environment variables for the process."}
    )
    agent = Boolean(
        load_default=True,
        metadata={"description": "False hides the ssh-agent that the connection forwards from the process."},
    )


@group.endpoint(
    "/pipe",
    PipeRequest,
    kind=StreamEndpoint,
    action=Action("shell.pipe", runs=True, takes_input=True, on_terminal=lambda request: request.get("pty") is True),
    about=("connection", "command", "argv", "tcp"),
    selects=with_words,
    raises=[
        *OPENING,
        errors.UnknownCommand,
        errors.ShellLost,
        errors.UpgradeRequired,
        errors.BadFrame,
        errors.StreamLimit,
    ],
    waits=True,
    first_message=True,
    frames=FRAMES,
    example={"connection": EXAMPLE, "command": "tar -cf - /etc"},
)
def pipe(request: dict[str, Any]) -> Begin:
    """Start a process whose input, output and standard error are streams of this WebSocket.

    The first message is the request, as JSON. Failures come as a frame with an error. The process has neither the
    directory nor the variables of a shell. It gets HUP when its client leaves.
    """
    found, access = services(), caller().access
    found.streams.require_room(caller().holder)
    cookie = secrets.token_hex(16)
    open = (
        partial(_open_tcp, request["tcp"])
        if "tcp" in request
        else partial(_start, request, sent_by(request) or {}, cookie)
    )
    timeout, ground = found.settings.start_timeout, ground_of(request)
    lease, channel = start_over(found.links, request["connection"], access, open, timeout, cancellation(), ground)
    note_forwarding(lease.link.first)
    # git and scp often connect again soon, and then need no login.
    found.kept.keep(request["connection"], lease)
    found.vault.connections.touch(request["connection"])

    def join(opening: Opening) -> None:
        transport = lease.link.transport
        with ExitStack() as unless_joined:
            unless_joined.callback(found.streams.loop.work, lease.release)
            unless_joined.callback(found.streams.loop.work, channel.close)
            unless_joined.callback(opening.stream.close)
            Pipe(
                found.streams,
                opening,
                channel,
                request["connection"],
                hang_up=lambda: hang_up(transport, cookie, HANG_UP_SECONDS),
                when_ended=lease.release,
            )
            unless_joined.pop_all()

    return lambda opening: found.streams.loop.call(partial(join, opening))


def _start(request: Mapping[str, Any], sent: Mapping[str, str], cookie: str, link: Link, timeout: float) -> Channel:
    pty = Pty(request["term"], request["columns"], request["rows"]) if request["pty"] else None
    setting = exports({**link.environment.select(sent), **(request.get("env") or {})}).decode()
    script = setting + ("" if request["agent"] else "unset SSH_AUTH_SOCK\n") + _STREAM.text
    if "argv" in request:
        script, words = become() + script, ["argv", *program_of(request)]
    elif "command" in request:
        words = ["command", request["command"]]
    else:
        words = ["login" if pty else "shell"]
    argv = script_argv(script, [cookie, *words], own_locale=True)
    channel = link.transport.open_channel(argv, pty=pty, timeout=timeout)
    channel.expect_bulk()
    return channel


def _open_tcp(address: Mapping[str, Any], link: Link, timeout: float) -> Channel:
    return TcpChannel(link.transport.open_tcp(address["host"], address["port"], timeout=timeout))
