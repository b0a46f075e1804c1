"""What of ``/fs`` is used while it passes, and nothing of it kept: archives, checksums and files of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flask

from connmgr import errors
from connmgr.api.account import Account, account, detail, while_valid
from connmgr.api.errors import as_error
from connmgr.api.fs import REACHING, place_of
from connmgr.api.fs_schemas import (
    ChecksumResponse,
    ChecksumsResponse,
    ExtractRequest,
    ExtractResponse,
    MembersRequest,
    UploadRequest,
    UploadResponse,
)
from connmgr.api.group import Group
from connmgr.api.listing import written
from connmgr.api.shell import EXAMPLE
from connmgr.fs.archive import Archive, Tally, extract
from connmgr.fs.checksums import Checksums
from connmgr.fs.files import Marks, receive
from connmgr.fs.inflow import Inflow

TAR = "application/x-tar"
STREAMED_PATHS = frozenset({"/fs/extract", "/fs/upload"})
"""Where the server hands on a body as it arrives."""


group = Group(
    "archive",
    "Directories as archives in the format tar, checksums, and files of any size, as they pass.",
    prefix="/fs",
)

_CHECKSUM = ChecksumResponse()


@group.endpoint(
    "/archive",
    MembersRequest,
    action="fs.read",
    reads=True,
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile, errors.WrongFileType, errors.ArchiveRefused, errors.TarMissing],
    waits=True,
    raw_answer="The archive.",
    raw_type=TAR,
    example={"connection": EXAMPLE, "path": "/srv/site"},
)
def archive(request: dict[str, Any]) -> flask.Response:
    """Return what a directory holds, or a single file, as an archive in the format tar.

    Paths in it lead from the directory, and begin with `./`. Links are links in it; devices, sockets and named pipes
    are left out. Files that could not be read whole are told before the end, in a pax header `CONNMGR.failed` of `./`,
    a line each. The connection ends before the archive if the machine is lost.
    """
    known = account()
    passing = Archive(known.held.enter_context(place_of(request)), request["path"], request["members"])
    known.held.callback(passing.close)
    return flask.Response(_counted(while_valid(passing), known, lambda: vars(passing.tally)), mimetype=TAR)


@group.endpoint(
    "/checksum",
    MembersRequest,
    ChecksumsResponse,
    action="fs.read",
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
def checksum(request: dict[str, Any]) -> flask.Response:
    """Return the SHA-256 of each file that a directory holds, or of a single file, computed by its machine.

    Links are not followed; they, and files that cannot be read, have no entry. The answer comes in chunks, while the
    machine computes; the connection ends before the answer if the machine is lost.
    """
    known = account()
    found = Checksums(known.held.enter_context(place_of(request)), request["path"], request["members"])
    known.held.callback(found.close)
    pieces = _counted(written(found, _CHECKSUM), known, lambda: {"files": found.count})
    return flask.Response(pieces, mimetype="application/json")


def _counted(pieces: Iterable[bytes], known: Account, counts: Callable[[], dict[str, int]]) -> Iterator[bytes]:
    try:
        yield from pieces
    except errors.ConnmgrError as error:
        known.code = as_error(error, known.id).code
        raise
    finally:
        known.details.update(counts())


@group.endpoint(
    "/extract",
    ExtractRequest,
    ExtractResponse,
    action="fs.write",
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
    raw_body="An archive in the format tar, not compressed; of any Content-Type and of any length.",
    example={"connection": EXAMPLE, "path": "/srv/site"},
    answer={"files": 12, "bytes": 34567, "failed": []},
)
def extract_(request: dict[str, Any]) -> dict[str, Any]:
    """Write what an archive holds into a directory, which is made if it is missing; the query has the request's fields.

    Each file gets its name in one step once the whole archive has come; an error leaves all as it was. What could not
    be put in its place then is `failed`, and the rest is there. A file replaces a file or a link; a directory that
    exists keeps its mode and what else it holds. The user's umask applies, unless `exact`; setuid, setgid and sticky
    never do. Files belong to the shell's user.

    Refused are archives with absolute paths, `..`, devices, named pipes, sparse files, and what goes through a link of
    the same archive. On the machine nothing goes through a link below `path`.
    """
    tally, content = Tally(), body()
    with place_of(request, streamed=True) as place:
        failed = extract(place, request["path"], content, exact=request["exact"], tally=tally)
    detail(files=tally.files, bytes=tally.bytes, failed=len(failed))
    return {"files": tally.files, "bytes": tally.bytes, "failed": failed}


@group.endpoint(
    "/upload",
    UploadRequest,
    UploadResponse,
    action="fs.write",
    about=("connection", "session", "path"),
    raises=[*REACHING, errors.NoSuchFile, errors.WrongFileType, errors.NoSpace],
    waits=True,
    raw_body="The file's bytes, as they are; of any Content-Type and of any length.",
    answer={"bytes": 19, "sha256": "9a3a45d01531a20e89ac6ae10b0b0beb0492acd7216a368aa062d1a5fecaf9cd"},
)
def upload(request: dict[str, Any]) -> dict[str, Any]:
    """Put the body of the request into a file, while it is sent; the query has the request's fields.

    Otherwise as `/fs/write`. Nothing of it is kept in the daemon: a machine that takes it slowly slows the client. It
    is compared with what has come by size and SHA-256, which the answer has, before it gets its name.
    """
    marks, content = Marks(request.get("mode"), request.get("modified")), body()
    with place_of(request, streamed=True) as place:
        size, digest = receive(place, request["path"], content, flask.request.content_length, marks)
    facts = {"bytes": size, "sha256": digest}
    detail(**facts)
    return facts


def body() -> Iterable[bytes]:
    """Return the body of this request, as it arrives.

    :raises InvalidRequest: its header does not say that there is one, so that an empty one would pass for the file.
    """
    found = flask.request.environ["wsgi.input"]
    if isinstance(found, Inflow):
        pieces: Iterable[bytes] = found
        return while_valid(pieces)
    # A body that is empty is no inflow.
    if flask.request.content_length is None:
        raise errors.InvalidRequest("The request has no body: give its Content-Length, or send it in chunks.")
    return iter([found.read()])
