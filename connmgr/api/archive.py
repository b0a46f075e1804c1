"""The streaming part of ``/fs``: archives, checksums and files of any size, none kept in the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import flask

from connmgr import errors
from connmgr.api.answer import as_pieces, listing_pieces
from connmgr.api.body import LISTED_VALUES
from connmgr.api.context import (
    RequestContext,
    cancellation,
    detail,
    request_context,
    require_client,
    while_valid,
)
from connmgr.api.endpoint import Group
from connmgr.api.errors import as_error
from connmgr.api.fs import REACHING, passed_file, place_of
from connmgr.api.keeping import CHANGED, NO_COPY_OF, change_response, keeping
from connmgr.api.running import EXAMPLE
from connmgr.api.services import services
from connmgr.contract.fs import (
    ChecksumsResponse,
    ExtractRequest,
    ExtractResponse,
    FailedResponse,
    MembersRequest,
    UploadRequest,
    UploadResponse,
)
from connmgr.contract.message import message_of
from connmgr.fs.archives import Archive, Tally, extract
from connmgr.fs.bodies import ArrivingBody
from connmgr.fs.checksums import Checksums
from connmgr.fs.files import NOTHING, FileAttributes, receive
from connmgr.rights.actions import Action, always, reads_path, writes_path
from connmgr.undo.changes import written

TAR = "application/x-tar"
STREAMED_PATHS = frozenset({"/fs/extract", "/fs/upload"})
"""Paths whose request bodies the server passes on while they arrive."""


group = Group(
    "archive",
    "Directories as tar archives, checksums, and files of any size, all streamed.",
    prefix="/fs",
)


@group.endpoint(
    "/archive",
    has_content=True,
    most_values=LISTED_VALUES,
    action=Action("fs.read", paths=reads_path, whole=always),
    suspends=True,
    reads=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile, errors.WrongFileType, errors.ArchiveRefused, errors.TarMissing],
    waits=True,
    raw_answer="The archive.",
    raw_type=TAR,
    example={"connection": EXAMPLE, "path": "/srv/site"},
)
def archive(request: MembersRequest) -> flask.Response:
    """Return the content of a directory, or a single file, as a tar archive.

    Paths in the archive are relative to the directory and begin with `./`. Links stay links; devices, sockets and named
    pipes are left out. A pax header `CONNMGR.failed` of `./`, at the end, lists the files that could not be read whole,
    one per line. If the machine is lost, the HTTP connection ends before the archive does.
    """
    context = request_context()
    passing = Archive(context.resources.enter_context(place_of(request)), request.path, request.members)
    context.resources.callback(passing.close)
    return as_pieces(_counted(while_valid(passing), context, lambda: vars(passing.tally)), TAR)


@group.endpoint(
    "/checksum",
    response=ChecksumsResponse,
    has_content=True,
    most_values=LISTED_VALUES,
    action=Action("fs.read", paths=reads_path, whole=always),
    suspends=True,
    reads=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile, errors.WrongFileType],
    waits=True,
    example={"connection": EXAMPLE, "path": "/srv/site", "members": ["index.html"]},
    answer={
        "entries": [
            {"name": "index.html", "sha256": "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"}
        ]
    },
)
def checksum(request: MembersRequest) -> flask.Response:
    """Return the SHA-256 of a single file or of each file in a directory, computed by its machine.

    Links are not followed; links and unreadable files have no entry. The answer comes in chunks, while the machine
    computes. If the machine is lost, the HTTP connection ends before the answer does.
    """
    context = request_context()
    place = context.resources.enter_context(place_of(request))
    context.resources.enter_context(services().scans.turn(context.holder, request.connection, cancellation()))
    sums = Checksums(place, request.path, request.members)
    context.resources.callback(sums.close)
    pieces = _counted(listing_pieces(sums), context, lambda: {"files": sums.count})
    return as_pieces(pieces, "application/json")


def _counted(pieces: Iterable[bytes], context: RequestContext, counts: Callable[[], dict[str, int]]) -> Iterator[bytes]:
    try:
        yield from pieces
    except errors.ConnmgrError as error:
        context.code = as_error(error, context).code
        raise
    finally:
        context.details.update(counts())


@group.endpoint(
    "/extract",
    action=Action("fs.write", paths=writes_path, whole=always),
    about=("connection", "session", "path"),
    raises=[
        *REACHING,
        errors.NoSuchFile,
        errors.WrongFileType,
        errors.NoSpace,
        errors.ArchiveRefused,
        errors.TarMissing,
    ],
    waits=True,
    raw_body="An uncompressed tar archive, of any Content-Type and any length.",
    example={"connection": EXAMPLE, "path": "/srv/site"},
    answer={"files": 12, "bytes": 34567, "failed": []},
)
def extract_(request: ExtractRequest) -> ExtractResponse:
    """Unpack an archive into a directory, which is created if missing. The query has the request's fields.

    Each file gets its name in one step once the whole archive has arrived; an error before that changes nothing.
    `failed` lists entries that could not be moved to their place; all others are there. A file replaces a file or a
    link. An existing directory keeps its mode and its other content. Files belong to the shell's user. The user's umask
    applies, unless `exact`; setuid, setgid and sticky bits are dropped.

    The daemon refuses archives with absolute paths, `..`, devices, named pipes, sparse files, and members below a link
    of the same archive. No link on the machine below `path` is followed. What it replaces cannot be undone by `/undo`.
    """
    tally, content = Tally(), body()
    with place_of(request, streamed=True) as place:
        failed = extract(place, request.path, content, exact=request.exact, tally=tally)
    detail(files=tally.files, bytes=tally.bytes, failed=len(failed))
    return ExtractResponse(
        files=tally.files,
        bytes=tally.bytes,
        failed=[message_of(FailedResponse, failure) for failure in failed],
    )


@group.endpoint(
    "/upload",
    action=Action("fs.write", paths=writes_path),
    about=("connection", "session", "path"),
    raises=[
        *REACHING,
        errors.NoSuchFile,
        errors.WrongFileType,
        errors.FileExists,
        errors.FileChanged,
        errors.NoSpace,
        errors.SourceFailed,
    ],
    waits=True,
    raw_body="The file's bytes, of any Content-Type and any length.",
    answer={"bytes": 19, "sha256": "9a3a45d01531a20e89ac6ae10b0b0beb0492acd7216a368aa062d1a5fecaf9cd", **CHANGED},
)
def upload(request: UploadRequest) -> UploadResponse:
    """Write the body of the request into a file while it arrives. The query has the request's fields.

    Otherwise as `/fs/write`. The daemon keeps nothing of the body: a slow machine slows the client. Size and SHA-256
    are compared before the file gets its name, and are in the answer.
    """
    # The body comes once, so the write cannot be tried again if others change the file after it was copied: then the
    # copy is the older one.
    attributes = FileAttributes(request.mode, request.modified, NOTHING if request.create else request.replaces or "")
    with (
        _content(request) as (pieces, length),
        place_of(request, streamed=True) as place,
        keeping(request, place, request.path, why_not=NO_COPY_OF) as change,
    ):
        size, digest = receive(place, request.path, pieces, length, attributes)
        if change is not None:
            change.after = written(change, size, digest)
    detail(bytes=size, sha256=digest)
    return message_of(UploadResponse, change_response([change]), bytes=size, sha256=digest)


@contextmanager
def _content(request: UploadRequest) -> Iterator[tuple[Iterable[bytes], int | None]]:
    """Yield the content of an upload and its length, None if that is unknown."""
    if not request.passed:
        yield body(), flask.request.content_length
        return
    with passed_file() as source:
        yield _while_wanted(while_valid(source.pieces())), source.left


def _while_wanted(pieces: Iterable[bytes]) -> Iterator[bytes]:
    # What comes by the client's connection breaks off by itself.
    for piece in pieces:
        require_client()
        yield piece


def body() -> Iterable[bytes]:
    """Return the body of this request, as it arrives.

    :raises InvalidRequest: its header announces no body; an empty one would count as an empty file.
    """
    arriving = flask.request.environ["wsgi.input"]
    if isinstance(arriving, ArrivingBody):
        pieces: Iterable[bytes] = arriving
        return while_valid(pieces)
    # An empty body has no inflow.
    if flask.request.content_length is None:
        raise errors.InvalidRequest("The request has no body: give its Content-Length, or send it in chunks.")
    return iter([arriving.read()])
