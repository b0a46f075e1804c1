"""What tools answer: messages declared as the API's are, or an error with its code and advice.

Most answers show an agent a part of what the daemon has answered. Such a class names the message of the contract as its
``source``; its fields then have the contract's sentences, and :func:`project` fills them. pydantic's models, which
publish and check the answers, derive from the same declarations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin

import pydantic
from mcp_types import CallToolResult, ResourceLink, TextContent
from mcp_types.version import is_version_at_least

from connmgr.client import ClientError
from connmgr.contract.message import (
    SEQUENCES,
    Fact,
    Field,
    Length,
    Message,
    OneOf,
    Range,
    fields_of,
    time_to_json,
    to_json,
    unwrapped,
)
from connmgr.printable import visible

LINKS_FROM = "2025-06-18"
"""The first version of the protocol with links to resources."""


class From(NamedTuple):
    """The name that a field has in the source of its class; ``kind`` is the message that describes it instead."""

    name: str
    kind: type[Message] | None = None


class Answer(Message):
    """What a tool answers; with a ``source``, a projection of that message of the contract."""

    source: ClassVar[type[Message] | None] = None

    def links(self) -> list[ResourceLink]:
        """Return links to what the answer leaves out."""
        return []


A = TypeVar("A", bound=Answer)


def project(kind: type[A], source: object, **own: Any) -> A:
    """Return what an agent sees of ``source``, with control characters shown; ``own`` are the fields it has not."""
    return kind(
        **{
            field.name: own[field.name]
            if field.name in own
            else _printable(getattr(source, _source_name(field)), field.type)
            for field in fields_of(kind)
        }
    )


def _source_name(field: Field) -> str:
    renamed: From | None = field.fact(From)
    return field.name if renamed is None else renamed.name


def _printable(value: Any, type_: Any) -> Any:
    if isinstance(type_, type) and issubclass(type_, Answer) and value is not None:
        return project(type_, value)
    if isinstance(value, datetime) and type_ is str:
        return time_to_json(value)
    if isinstance(value, bytes):
        return visible(value.decode(errors="replace"))
    if isinstance(value, list | tuple):
        return [_printable(item, None) for item in value]
    return visible(value) if isinstance(value, str) else value


_MODELS: dict[type[Message], type[pydantic.BaseModel]] = {}


def model_of(kind: type[Message]) -> type[pydantic.BaseModel]:
    """Return pydantic's model of a message; always the same, so that a schema describes it once."""
    if kind not in _MODELS:
        members: dict[str, Any] = {
            field.name: (_model_type(field), _model_field(kind, field)) for field in fields_of(kind)
        }
        _MODELS[kind] = pydantic.create_model(kind.__name__, __doc__=kind.__doc__, **members)
    return _MODELS[kind]


def _model_type(declared: Any) -> Any:
    """Return the type that pydantic checks: of what JSON has, not of what it stands for."""
    type_: Any = declared.type
    values: OneOf | None = next((fact for fact in declared.facts if isinstance(fact, OneOf)), None)
    if get_origin(type_) in SEQUENCES:
        type_ = list[_model_type(unwrapped(get_args(type_)[0]))]  # type: ignore[misc]
    elif isinstance(type_, type) and issubclass(type_, Message):
        type_ = model_of(type_)
    elif values is not None:
        type_ = Literal[values.values]
    elif any(isinstance(fact, Fact) and fact.write for fact in declared.facts):
        type_ = str
    return type_ | None if declared.nullable else type_


def _model_field(kind: type[Message], field: Field) -> Any:
    source: type[Message] | None = getattr(kind, "source", None)
    description = field.description
    if not description and source is not None:
        renamed: From = field.fact(From) or From(field.name)
        # Agents read plain text.
        description = declared_field(renamed.kind or source, renamed.name).description.replace("`", "")
    return pydantic.Field(
        ... if field.required else field.default,
        description=description or None,
        alias=field.json if field.json != field.name else None,
    )


def declared_field(kind: type[Message], name: str) -> Field:
    """Return the field of a message that has this name."""
    return next(field for field in fields_of(kind) if field.name == name)


def derived(kind: type[Message], name: str, description: str | None = None, **own: Any) -> Any:
    """Return pydantic's description of an argument that is the field ``name`` of a request of the contract.

    It has the contract's sentence and limits, unless others are given: those that a call needs for itself.
    """
    declared = declared_field(kind, name)
    limits: dict[str, Any] = {}
    if length := declared.fact(Length):
        limits |= {"min_length": length.min, "max_length": length.max}
    if bounds := declared.fact(Range):
        limits |= {"gt" if bounds.above else "ge": bounds.min, "le": bounds.max}
    return pydantic.Field(description=description or declared.description.replace("`", ""), **{**limits, **own})


def compact(message: Message) -> str:
    """Return a message as JSON text; its length is what an agent pays for it."""
    return json.dumps(to_json(message), ensure_ascii=False, separators=(",", ":"))


def answered(result: Answer, protocol: str | None = None) -> CallToolResult:
    """Return a tool's answer as structured content, and as JSON text for clients that show only text.

    Clients of a ``protocol`` that has links get those, too.
    """
    links = result.links() if is_version_at_least(protocol or "", LINKS_FROM) else []
    text = TextContent(type="text", text=compact(result))
    return CallToolResult(content=[text, *links], structured_content=to_json(result))


class FailedCall(Answer):
    """The error of a failed call."""

    code: str
    message: str
    next: str | None = None
    approval: str | None = None
    expires: str | None = None


def refused(error: ClientError) -> CallToolResult:
    """Return an error as the result of a tool, as JSON text alone.

    Many clients validate structured content by the tool's output schema, which an error does not match.
    """
    details = {name: error.details[name] for name in ("approval", "expires") if name in error.details}
    message = visible(error.message, lines=True)
    text = compact(FailedCall(code=error.code, message=message, next=advice(error), **details))
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def invalid(error: pydantic.ValidationError) -> CallToolResult:
    """Return the faults in the arguments of a call as the result of a tool."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    message = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults)
    return refused(ClientError(message, "invalid_arguments", 0))


_ASK = "Ask the person whom you work for: "
_WAIT = "Wait some seconds, and repeat the call."

NEXT: Mapping[str, str] = {
    # What the call says
    "invalid_arguments": "Correct the arguments as the tool's schema has them.",
    "invalid_request": "Correct the argument that the message names, and call again.",
    "unknown_connection": "Call list_systems for the valid names.",
    "unknown_type": _ASK + "this kind of system needs a plugin that is not installed.",
    "unknown_job": "Call list_jobs for the existing jobs. A job is kept for a day after its end.",
    "unknown_approval": "Repeat the call that needs the approval: its error has the valid one, if it still needs it.",
    "unknown_command": "Call list_commands for the saved commands.",
    "unknown_terminal": "Open one with open_terminal. An ended terminal is kept for five minutes.",
    "unknown_blob": "Repeat the call.",
    "no_shell": "Repeat the call: it starts the shell.",
    "no_such_directory": "Create it with create_directory, or name another. If you named none, your directory was "
    "removed: the next command begins in the home directory.",
    "unknown_run": "Only a run that run_on_many has answered can be read. It is kept for some days after its end.",
    "run_ended": "The run has ended: read_run shows its results.",
    "run_limit": "Too many runs are under way. Wait for one with read_run, or stop one with stop_run.",
    "job_running": "Stop it first with stop_job, or wait for its end with read_job.",
    "job_finished": "The job has ended: read_job shows its result.",
    "stdin_closed": "The job takes no input: only run_command with openStdin allows input later.",
    "no_such_question": "Look again with read_job or read_screen: `waiting` has the question that waits now, if any.",
    "asks_for_secret": "Do not type it in another way. Use a system whose password is stored, such as NAME/root, or "
    "ask the person whom you work for to answer it on the page.",
    "terminal_ended": "The program has ended: read_screen shows its last screen. Open another with open_terminal.",
    "output_gone": "Its output was removed. Run it again if that does no harm.",
    # Files
    "no_such_file": "Look for it with list_files or find_file. A relative path begins in your directory.",
    "wrong_file_type": "Look at its type with get_file_info.",
    "file_exists": "The path exists. Choose another path, or omit createOnly to replace a file.",
    "directory_not_empty": "Look at its content with list_files.",
    "text_not_found": "Read the file with read_file, and copy `old` from it exactly, with blanks and line ends.",
    "text_not_unique": "Add neighbouring lines to `old`, so that it occurs only once.",
    "unknown_change": "The change is too old, or somebody has removed it; nothing was put back.",
    "file_changed": "Somebody else has changed it. Read it again, and repeat the edit if it is still right.",
    "not_text": "It is not UTF-8 text. Read it with binary=true as base64; change it with run_command.",
    "file_too_large": "Read a part of it with offset and limit, or work on it with run_command.",
    "permission_denied": "This system's user has no permission. list_systems may show one with more rights, such as "
    "NAME/root.",
    "no_space": "The disk or a quota is full there. Nothing was changed.",
    "transfer_failed": "The data did not arrive whole, and nothing was changed. Repeat the call.",
    "file_operation_failed": "Read the machine's error in the message.",
    "tar_missing": "Work on single files.",
    "source_failed": "The file to send could not be read on the daemon's machine. Check it there.",
    "archive_refused": "Work on single files.",
    "body_too_large": "Send less at once.",
    "blob_quota_exceeded": _WAIT,
    # What the token may do
    "scope_denied": "The token does not allow it. Do not try another way. Ask the person whom you work for: they may "
    "extend the token.",
    "policy_denied": "A rule denies it. Do not try to evade it. Ask the person whom you work for: they may change the "
    "rule.",
    "approval_required": "Tell the person what waits and how to approve it; show_approval shows it to them. "
    "Then repeat the very same call.",
    "approval_denied": "A person has denied it. Do not try to achieve the same in another way; ask what they want.",
    "quota_exceeded": "Wait, and send fewer requests. The message names the quota.",
    "token_expired": _ASK + "the token has expired and must be renewed.",
    "token_revoked": _ASK + "the token was revoked. Nothing more is allowed.",
    "invalid_token": _ASK + "the token is not valid.",
    "invalid_credential": _ASK + "the token is not valid.",
    "not_authenticated": _ASK + "the token is not valid.",
    "secret_locked": _ASK
    + "a password or key of this system is locked; `connmgr token lend` lends its use while it is unlocked.",
    "vault_locked": _ASK + "the vault has to be unlocked.",
    "secret_unavailable": _ASK + "the place from which the system's password or key is fetched does not give it.",
    # The way to the machine
    "host_unresolved": "The machine's name has no address. Try another system, or ask whether it is still there.",
    "host_refused": "The machine refuses connections now. Try again later, or ask whether it runs.",
    "host_unreachable": "No route leads to the machine. Try again later, or ask whether it runs.",
    "connect_timeout": "The machine does not answer. Try again later, or ask whether it runs.",
    "host_key_unknown": _ASK + "they have to compare and accept the machine's key.",
    "host_key_changed": _ASK + "the machine's key has changed. Do not use it until they have checked.",
    "auth_failed": _ASK + "the machine refuses the login that is stored for it.",
    "unknown_signer": _ASK + "nobody signs the certificate that this system needs.",
    "signer_unavailable": "What signs the login's certificate does not answer. " + _WAIT,
    "signer_timeout": "What signs the login's certificate does not answer. " + _WAIT,
    "signer_refused": _ASK + "no certificate is signed for this login.",
    "certificate_invalid": _ASK + "the login's certificate is not what was ordered, and is not used.",
    "certificate_expired": _ASK + "the login's certificate is not valid now, or the clocks differ.",
    "elevation_failed": _ASK + "sudo, su or doas refuses the stored password.",
    "transport_unsupported": "This system cannot do that. Use another one.",
    "channel_refused": "The machine opens no further process over this link. " + _WAIT,
    "read_only_unavailable": _ASK + "your token may only look, and this system has no sandbox to run commands in.",
    "unsupported_shell": "The login shell there runs no commands. Use another system.",
    "shell_start_failed": "The message tells why no shell starts there.",
    "shell_lost": "The link broke, and it is unknown whether the command began. Check its effects before you repeat "
    "the call.",
    "shell_stopped": "Somebody stopped the shell. Repeat the call if that does no harm.",
    "command_timeout": "It exceeded its time limit. Use run_command, which lets it run on.",
    "command_cancelled": "Repeat the call if that does no harm.",
    "recording_failed": _ASK + "recordings cannot be written.",
    "integrity": _ASK + "the stored data of this system was changed outside connmgr, and is refused.",
    # The daemon
    "not_toggleable": "It can be neither started nor stopped. `usage` in list_systems shows which systems can.",
    "port_in_use": "Another program listens there. " + _ASK + "they may free the port or choose another.",
    "connection_cycle": _ASK + "a system would run over itself.",
    "runtime_unreachable": "The program that runs the containers does not answer there. Check whether it runs.",
    "no_shell_inside": "The container has no shell. It can only be used from the system that contains it.",
    "busy": _WAIT,
    "shell_busy": "Another command holds the shell. " + _WAIT,
    "session_limit": "Omit session, or use one that list_jobs shows: a system has 16 at most.",
    "job_limit": "Too many jobs run. Wait for one with read_job, or stop one with stop_job.",
    "key_reused": "The key stands for another start. Repeat that start as it was, or leave the key out.",
    "connection_changed": "Somebody has changed the system meanwhile. Read it again, and repeat the call.",
    "terminal_limit": "Too many terminals are open. Close one with close_terminal.",
    "stream_limit": _WAIT,
    "temporary_limit": _WAIT,
    "vault_unavailable": _WAIT,
    "audit_unavailable": _ASK + "the audit log cannot be written, and the daemon does nothing without it.",
    "stopping": "The daemon is stopping. Jobs run on. " + _WAIT,
    "unreachable": "The daemon or the machine does not answer. Jobs run on. "
    + _WAIT
    + " If the command was started, the call finds it and does not start it twice.",
    "internal": _ASK + "this is a fault of the program; its log has more.",
}


def advice(error: ClientError) -> str | None:
    """Return what to do after ``error``, None if there is no advice."""
    return NEXT.get(error.code)
