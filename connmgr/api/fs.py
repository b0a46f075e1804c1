"""``/fs``: blobs, and the files of the machines that running shells are on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import flask

from connmgr import errors
from connmgr.api.answer import as_listing, as_pieces
from connmgr.api.context import (
    PASSED,
    RequestContext,
    caller,
    cancellation,
    detail,
    request_context,
    require_client,
    while_valid,
)
from connmgr.api.endpoint import Group
from connmgr.api.keeping import CHANGED, NO_COPY_OF, change_response, keeping
from connmgr.api.running import EXAMPLE
from connmgr.api.services import services
from connmgr.contract.common import AwaitsApproval, ShellNamed
from connmgr.contract.fs import (
    AttributesRequest,
    BlobResponse,
    EntryResponse,
    FoundLine,
    GlobRequest,
    ListFilesRequest,
    ListResponse,
    MkdirRequest,
    MoveRequest,
    PathRequest,
    ReadRequest,
    RemovePathRequest,
    ScriptRequest,
    ScriptResponse,
    SearchRequest,
    SearchResponse,
    StatRequest,
    WriteRequest,
)
from connmgr.contract.message import members, message_of, path_to_json
from connmgr.contract.undo import ChangeResponse
from connmgr.engine.session import Session
from connmgr.fs import files, listing
from connmgr.fs.bodies import Blob, BlobSpool, PassedFile
from connmgr.fs.files import NOTHING, FileReader
from connmgr.fs.remote import RemoteFileSystem
from connmgr.fs.search import SearchedText
from connmgr.fs.search import search as search_lines
from connmgr.rights.actions import (
    Action,
    TouchedPaths,
    always,
    changes_attributes,
    puts_programs,
    reads_path,
    writes_path,
)
from connmgr.rights.grant import Grant
from connmgr.rights.rule import READ, WRITE
from connmgr.rights.visibility import Visibility
from connmgr.undo.changes import written
from connmgr.undo.store import ABSENT_FILE

BLOB_PATH = "/fs/blob"
MAX_TRIES = 3
"""A write is tried so often while others change its file between the copy of it and the write."""

BLOB = "0a4f9c2e-5d1b-4a57-9f0e-2f6f2c8f1d11"

group = Group(
    "fs",
    "Files on the machine of a connection's running shell, with the rights of the shell's user (root's in an elevated "
    "shell). File operations do not wait for the shell's commands; they use its directory, but not its variables. "
    'A path that is not UTF-8 is written as `{"base64": "…"}`.',
)

REACHING = (
    errors.UnknownConnection,
    errors.NoShell,
    errors.SecretLocked,
    errors.NoSuchDirectory,
    errors.PermissionDenied,
    errors.TransferFailed,
    errors.ChannelRefused,
    errors.SecretUnavailable,
    errors.ElevationFailed,
    errors.AuthFailed,
    errors.UnknownSigner,
    errors.SignerUnavailable,
    errors.SignerTimeout,
    errors.SignerRefused,
    errors.CertificateInvalid,
    errors.CertificateExpired,
    errors.ConnectTimeout,
    errors.FileOperationFailed,
)
"""Errors that any file operation may have."""


def _goes_back(_visibility: Visibility, grant: Grant, request: GlobRequest) -> None:
    """Refuse a pattern that rules over paths cannot judge before its machine is asked."""
    if grant.has_rules_over_paths:
        listing.split_pattern(request.pattern)


@group.endpoint(
    "/blob",
    raises=[errors.BodyTooLarge, errors.BlobQuotaExceeded, errors.NoSpace],
    raw_body="The bytes, of any Content-Type.",
    answer={"blob": BLOB},
)
def blob() -> BlobResponse:
    """Store bytes for a later write. Only this session can use them; they are dropped after `blob-ttl`."""
    body = flask.request.environ["wsgi.input"]
    if not isinstance(body, BlobSpool):
        # An empty body has no spool; one beyond the limit was already refused.
        empty, body = body, services().blobs.spool(caller().holder)
        body.append(empty.read())
    detail(bytes=len(body))
    return BlobResponse(blob=services().blobs.store(caller(), body, caller().holder))


@group.endpoint(
    "/write",
    action=Action("fs.write", paths=writes_path),
    suspends=True,
    about=("connection", "session", "path"),
    raises=[
        *REACHING,
        errors.UnknownBlob,
        errors.NoSuchFile,
        errors.WrongFileType,
        errors.FileExists,
        errors.FileChanged,
        errors.NoSpace,
    ],
    waits=True,
    example={"connection": EXAMPLE, "blob": BLOB, "path": "/etc/motd", "mode": "0644"},
    answer=CHANGED,
)
def write(request: WriteRequest) -> ChangeResponse:
    """Write a blob to a file. The file changes in one step, once the whole blob is on disk.

    After a failure the path has the old file or the new one. A link is followed. An existing file must be writable and
    keeps its mode, owner, access list and extended attributes. Its other hard links keep the old content.

    With `replaces` or `create` the existing file is checked before the blob is sent, and again before the new file gets
    its name.

    A file is overwritten instead of replaced if a new file could not get its owner, if it is a mount point, or if the
    machine has no `stat`. A crash may then leave it incomplete. What a token replaces is kept before, for `/undo`.
    """
    with _borrow_blob(request) as blob, place_of(request, blob=blob) as place:
        detail(bytes=blob.size, sha256=blob.sha256)
        replaces = NOTHING if request.create else request.replaces or ""
        for turn in range(MAX_TRIES):
            with keeping(request, place, request.path, why_not=NO_COPY_OF) as change:
                guard = "" if change is None else change.guard
                try:
                    files.write(place, request.path, blob, request.mode, replaces or guard)
                except errors.FileChanged:
                    if replaces or change is None or turn == MAX_TRIES - 1:
                        raise
                    # Others wrote in between: the copy is not what this write would have replaced. Copy and write anew.
                    change.dropped = True
                    continue
                if change is not None:
                    change.after = written(change, blob.size, blob.sha256)
            break
    return change_response([change])


@group.endpoint(
    "/read",
    action=Action("fs.read", paths=reads_path),
    suspends=True,
    reads=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile, errors.WrongFileType],
    waits=True,
    raw_answer="The file's bytes, with their Content-Length.",
    example={"connection": EXAMPLE, "path": "/etc/hostname"},
)
def read(request: ReadRequest) -> flask.Response:
    """Return the content of a file, with its length when the reading began.

    The connection ends before `Content-Length` bytes if the file becomes shorter or its machine is lost. The content is
    that of one file, even if another file gets its name meanwhile. Files without a size, such as those in `/proc`, may
    have up to 16 MiB.
    """
    return _read_into_passed(request) if request.passed else content_of(request)


def content_of(request: PathRequest) -> flask.Response:
    """Return the content of the file that ``request`` names, as the answer of :func:`read`."""
    context = request_context()
    reading = FileReader(context.resources.enter_context(place_of(request)), request.path)
    context.resources.callback(reading.close)
    response = as_pieces(_without_slot_at_last(while_valid(reading), reading.size, context), "application/octet-stream")
    response.content_length = reading.size
    detail(bytes=reading.size)
    return response


def _without_slot_at_last(pieces: Iterator[bytes], size: int, context: RequestContext) -> Iterator[bytes]:
    """Yield ``pieces``, ``size`` bytes in all; give the slot of the request ``context`` back before the last one.

    A client that has read all that the length promised may send its next request before this one is over, and with the
    slot still taken would be told that the daemon is busy.
    """
    if not size:
        context.slot.close()
    for piece in pieces:
        size -= len(piece)
        if not size:
            context.slot.close()
        yield piece


def _read_into_passed(request: ReadRequest) -> flask.Response:
    with passed_file() as target, place_of(request) as place, closing(FileReader(place, request.path)) as reading:
        for piece in while_valid(reading):
            require_client()
            target.write(piece)
    detail(bytes=reading.size)
    return flask.Response(mimetype="application/octet-stream")


@contextmanager
def passed_file() -> Iterator[PassedFile]:
    """Yield the file whose descriptor has come with this request.

    :raises InvalidRequest: none has come, or it is not a regular file.
    """
    borrow: Callable[[], int | None] = request_context().environ.get(PASSED, lambda: None)
    descriptor = borrow()
    if descriptor is None:
        raise errors.InvalidRequest("passed: No descriptor came with the request; only the Unix socket can pass one.")
    with closing(PassedFile(descriptor)) as file:
        yield file


@group.endpoint(
    "/script",
    action=Action("fs.script", limits=[puts_programs]),
    about=("connection", "session"),
    raises=[*REACHING, errors.UnknownBlob, errors.NoSpace],
    waits=True,
    example={"connection": EXAMPLE, "blob": BLOB},
    answer={"path": "/tmp/connmgr-5x2kQv8LmA/script"},  # noqa: S108 - of a far machine, and an example
)
def script(request: ScriptRequest) -> ScriptResponse:
    """Write a blob to a new executable file, and return its path. The file is removed when the shell is stopped.

    It is in a new directory below `$TMPDIR` or `/tmp` that only the shell's user can enter. If programs may not be
    executed from there, pass the path to an interpreter.
    """
    with _borrow_blob(request) as blob, _session(request) as session:
        detail(bytes=blob.size, sha256=blob.sha256)
        place = _place_of(session, request, blob)
        directory = files.make_temporary(place)
        session.remove_at_stop(directory)
        path = directory + b"/script"
        files.write(place, path, blob, 0o700)
    return ScriptResponse(path=path)


@group.endpoint(
    "/list",
    response=ListResponse,
    action=Action("fs.list", paths=reads_path),
    suspends=True,
    reads=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile, errors.WrongFileType],
    waits=True,
    example={"connection": EXAMPLE, "path": "/srv"},
    answer={"entries": []},
)
def list_(request: ListFilesRequest) -> flask.Response:
    """List a directory, sorted by name, without `.` and `..`. Links are not followed.

    The directory must be readable and searchable. A listing may have 64 MiB, some 500,000 entries. With `recursive`,
    the content of unreadable directories is left out.
    """
    with place_of(request) as place:
        entries = files.list_directory(place, request.path, recursive=request.recursive)
    return as_listing(entries)


@group.endpoint(
    "/glob",
    response=ListResponse,
    action=Action("fs.list", limits=[_goes_back]),
    suspends=True,
    reads=True,
    about=("connection", "session", "pattern"),
    raises=REACHING,
    waits=True,
    example={"connection": EXAMPLE, "pattern": "/var/log/*.log"},
    answer={"entries": []},
)
def glob(request: GlobRequest) -> flask.Response:
    """List the files whose paths a pattern matches, sorted by path. Links are not followed.

    The machine's shell expands the pattern, but no command or variable in it. A pattern that matches nothing has no
    entries; a pattern without wildcards has the file of that name.
    """
    with place_of(request) as place:
        entries = files.matching(place, request.pattern)
    return as_listing(entries)


@group.endpoint(
    "/search",
    action=Action("fs.read", paths=reads_path, whole=always),
    suspends=True,
    reads=True,
    about=("connection", "session", "path", "text", "names"),
    raises=[*REACHING, errors.NoSuchFile],
    waits=True,
    example={"connection": EXAMPLE, "path": "/etc/ssh", "text": "PermitRootLogin", "names": "*.conf"},
    answer={
        "lines": [{"name": "sshd_config.d/10-own.conf", "line": 3, "text": "PermitRootLogin no"}],
        "complete": True,
    },
)
def search(request: SearchRequest) -> SearchResponse:
    """Find the lines that have a text in a file, or in the files below a directory, by its machine's find and grep.

    Links are not followed. Unreadable files, binary ones (with NUL) and those over 1 GiB are passed over. For tokens
    with path rules the daemon reads the files itself, which takes longer.
    """
    sought = SearchedText(request.text, request.names, request.most, request.ignore_case)
    turn = services().scans.turn(caller().holder, request.connection, cancellation())
    with place_of(request) as place, turn:
        lines, complete = search_lines(place, request.path, sought, request.timeout)
    detail(lines=len(lines))
    return SearchResponse(lines=[message_of(FoundLine, line) for line in lines], complete=complete)


@group.endpoint(
    "/stat",
    action=Action("fs.stat", paths=reads_path),
    suspends=True,
    reads=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile],
    waits=True,
    example={"connection": EXAMPLE, "path": "/etc/hostname"},
    answer={
        "name": "/etc/hostname",
        "type": "file",
        "size": 7,
        "mode": "0644",
        "modified": "2025-01-31T08:15:00.000000Z",
        "uid": 0,
        "gid": 0,
        "owner": "root",
        "group": "root",
        "target": None,
    },
)
def stat(request: StatRequest) -> EntryResponse:
    """Describe a file of any type. It need not be readable."""
    with place_of(request) as place:
        return files.stat_file(place, request.path, follow=request.follow)


@group.endpoint(
    "/remove",
    action=Action("fs.remove", paths=writes_path, whole=lambda request: request.recursive),
    suspends=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile, errors.DirectoryNotEmpty, errors.WrongFileType],
    waits=True,
    example={"connection": EXAMPLE, "path": "/srv/old", "recursive": True},
    answer=CHANGED,
)
def remove(request: RemovePathRequest) -> ChangeResponse:
    """Remove a file, a link (not its target) or a directory. The root directory stays."""
    why_not = NO_COPY_OF if request.recursive else {**NO_COPY_OF, "directory": ""}
    with (
        place_of(request) as place,
        keeping(request, place, request.path, follow=False, why_not=why_not) as change,
    ):
        files.remove(place, request.path, recursive=request.recursive, timeout=_timeout())
        if change is not None:
            change.after = ABSENT_FILE
    return change_response([change])


@group.endpoint(
    "/mkdir",
    action=Action("fs.mkdir", paths=writes_path),
    suspends=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.FileExists, errors.NoSuchFile, errors.WrongFileType, errors.NoSpace],
    waits=True,
    example={"connection": EXAMPLE, "path": "/srv/new", "mode": "0750"},
    answer=CHANGED,
)
def mkdir(request: MkdirRequest) -> ChangeResponse:
    """Make a directory."""
    change, why_not = None, None
    with place_of(request) as place, ExitStack() as kept_before:
        try:
            change = kept_before.enter_context(keeping(request, place, request.path))
        except (errors.NoSuchDirectory, errors.NoSuchFile):
            if not request.parents:
                raise
            why_not = "the directories above it were made, too"
        files.make_directory(place, request.path, request.mode, parents=request.parents, timeout=_timeout())
        if change is not None:
            change.dropped = change.seen.state.kind == "directory"
    return change_response([change], why_not)


def _moved_paths(request: MoveRequest) -> TouchedPaths:
    # Under its new name a file may become readable, so that moving it reads it too.
    return [(request.source, READ), (request.source, WRITE), (request.target, WRITE)]


@group.endpoint(
    "/move",
    action=Action("fs.move", paths=_moved_paths, whole=always),
    suspends=True,
    about=("connection", "session", "source", "target"),
    raises=[*REACHING, errors.NoSuchFile, errors.FileExists, errors.WrongFileType, errors.NoSpace],
    waits=True,
    example={"connection": EXAMPLE, "source": "/srv/new", "target": "/srv/old"},
    answer=CHANGED,
)
def move(request: MoveRequest) -> ChangeResponse:
    """Give a file or directory another path on the same machine.

    A directory at `target` is never replaced. Between two file systems the move is a copy and a removal, not one step.
    """
    with (
        place_of(request) as place,
        keeping(request, place, request.source, follow=False, why_not=NO_COPY_OF) as source,
        keeping(request, place, request.target, follow=False, why_not=NO_COPY_OF) as target,
    ):
        files.move(place, request.source, request.target, overwrite=request.overwrite, timeout=_timeout())
        if source is not None and target is not None:
            source.after, target.after = ABSENT_FILE, source.seen.state
    return change_response([source, target])


@group.endpoint(
    "/attributes",
    action=Action("fs.attributes", paths=writes_path, limits=[changes_attributes]),
    suspends=True,
    about=("connection", "session", "path", "owner", "group"),
    raises=[*REACHING, errors.NoSuchFile, errors.WrongFileType],
    waits=True,
    example={"connection": EXAMPLE, "path": "/srv/site", "mode": "0750", "group": "www-data"},
    answer=CHANGED,
)
def attributes(request: AttributesRequest) -> ChangeResponse:
    """Change the permissions, the owner or the group of a file or directory. A link is followed.

    The mode is set as given, setuid, setgid and sticky included. Only root gives a file to another owner, and only a
    member of a group to that group. Tokens with rules over paths cannot do it.
    """
    detail(**({} if request.mode is None else {"mode": f"{request.mode:04o}"}))
    with place_of(request) as place, keeping(request, place, request.path) as change:
        files.change_attributes(place, request.path, request.mode, request.owner, request.group, timeout=_timeout())
    return change_response([change])


def _borrow_blob(request: ScriptRequest) -> AbstractContextManager[Blob]:
    return services().blobs.borrowed(caller(), request.blob)


@contextmanager
def place_of(request: ShellNamed, *, blob: Blob | None = None, streamed: bool = False) -> Iterator[RemoteFileSystem]:
    """Yield the place of the request's shell, under the caller's rules over paths; approvals cover the ``blob``."""
    # A `streamed` body cannot be approved.
    with _session(request) as session:
        yield _place_of(session, request, blob, streamed=streamed)


def _session(request: ShellNamed) -> AbstractContextManager[Session]:
    return services().shells.using(request.connection, caller().access, request.session)


def _place_of(
    session: Session, request: ShellNamed, blob: Blob | None = None, *, streamed: bool = False
) -> RemoteFileSystem:
    shown: dict[str, Any] = {} if blob is None else {"bytes": blob.size, "sha256": blob.sha256}
    shown |= {name: _shown(value) for name, value in members(request).items() if name not in _NOT_ASKED}
    wait = request.wait if isinstance(request, AwaitsApproval) else 0
    rules = services().authorisation.path_rules(
        caller(), request.connection, None if streamed else shown, wait, session.connection_digest
    )
    if rules is not None:
        # A streamed answer ends after Flask's request context.
        context = request_context()
        context.resources.callback(lambda: context.authority.update(rules.reasons))
    digest = session.connection_digest
    return RemoteFileSystem(session.transport, session.directory, session.helpers, rules, cancellation(), digest)


_NOT_ASKED = {"connection", "blob", "passed", "wait", "timeout"}
"""Fields that are not part of an approval, or are part of it in another form."""


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return path_to_json(value)
    return [_shown(item) for item in value] if isinstance(value, list | tuple) else value


def _timeout() -> float:
    return services().settings.command_timeout
