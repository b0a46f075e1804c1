"""Downloads by a browser: a ticket for one file or archive, and the link that a browser follows with it.

A page that fetched a file would hold it in memory. A browser stores what a link leads to directly, but sends no token
with it; the ticket in the link stands for the caller and for the whole request, and can be used once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import flask

from connmgr import errors
from connmgr.api import archive, fs
from connmgr.api.body import REFUSAL, Refusal, load, read_query
from connmgr.api.context import caller, detail
from connmgr.api.endpoint import Endpoint, Group
from connmgr.api.fs import REACHING, place_of
from connmgr.api.running import EXAMPLE
from connmgr.api.services import services
from connmgr.contract.fs import DownloadRequest, DownloadTicketResponse, TicketedDownloadRequest
from connmgr.fs.archives import Archive
from connmgr.fs.files import FileReader
from connmgr.rights.actions import Action, reads_path

SUBJECT = "/fs/download"
"""What tickets for downloads are for; other tickets are refused there."""

NAMELESS = "files"
"""The name of a download of a path that ends without a name, such as ``/``."""

MAX_NAME = 200

_REDEEMED = "redeemed"
"""The key, in what a request keeps from run to run, of what its ticket stands for."""

group = Group("download", "Files and directories as links of a browser.", prefix="/fs")

_READING: Action[Any] = Action("fs.read", paths=reads_path, whole=lambda request: request.archive)
_FAILING = (*REACHING, errors.NoSuchFile, errors.WrongFileType, errors.ArchiveRefused, errors.TarMissing)


@dataclass(frozen=True, kw_only=True)
class TicketedEndpoint(Endpoint):
    """An endpoint that carries out the request for which its ticket was issued, in the name of who asked for it."""

    methods: tuple[str, ...] = ("GET",)
    ticketed: bool = True

    def __call__(self) -> flask.Response:
        daemon, context = services(), self._context()
        refusal: Refusal | None = context.environ.get(REFUSAL)
        if refusal is not None:
            raise refusal.error
        memory = context.continuation.memory
        if _REDEEMED not in memory:
            assert self.request is not None, "the endpoint says that it takes a ticket"  # noqa: S101
            query = load(self.request, read_query(flask.request.query_string, self.request))
            memory[_REDEEMED] = daemon.tickets.redeem_request(query.ticket, SUBJECT)
        asking, request = memory[_REDEEMED]
        self._admit_caller(daemon, context, asking)
        return self._carry_out(daemon, context, request, self._respond)


@group.endpoint(
    "/ticket",
    has_content=True,
    action=_READING,
    suspends=True,
    reads=True,
    about=("connection", "session", "path", "archive"),
    raises=_FAILING,
    waits=True,
    example={"connection": EXAMPLE, "path": "/var/log/syslog"},
    answer={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc", "name": "syslog", "size": 81234},
)
def ticket(request: DownloadRequest) -> DownloadTicketResponse:
    """Return a ticket with which a browser may download a file or an archive: once, and within 30 seconds.

    The file is opened first, so that most errors are answered here, where a page can show them. The rights of the
    caller are checked again when the download begins.
    """
    with place_of(request) as place:
        # What is opened here only tells whether the download would begin; it is not kept for it.
        if request.archive:
            Archive(place, request.path, request.members).close()
            size = None
        else:
            reading = FileReader(place, request.path)
            reading.close()
            size = reading.size
    name = name_of(request.path) + (".tar" if request.archive else "")
    return DownloadTicketResponse(
        ticket=services().tickets.issue(SUBJECT, caller(), request=request), name=name, size=size
    )


@group.endpoint(
    "/download",
    request=TicketedDownloadRequest,
    kind=TicketedEndpoint,
    action=_READING,
    suspends=True,
    reads=True,
    about=("connection", "session", "path", "archive"),
    raises=_FAILING,
    waits=True,
    raw_answer="The file, or the archive, with a Content-Disposition that makes a browser store it.",
)
def download(request: DownloadRequest) -> flask.Response:
    """Return the file or archive of a ticket, as `/fs/read` and `/fs/archive` do.

    The ticket is used up, whatever the answer is. A browser neither shows the content nor runs anything in it.
    """
    response: flask.Response = archive.archive(request) if request.archive else fs.content_of(request)
    name = name_of(request.path) + (".tar" if request.archive else "")
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    detail(download=True)
    return response


def name_of(path: bytes) -> str:
    """Return a name for what is at ``path`` that every file system takes, and that shows what it is."""
    name = path.rstrip(b"/").rpartition(b"/")[2].decode(errors="replace")[:MAX_NAME]
    # Among what is not printable are the characters that make "exe.txt" of "txt.exe" (U+202E).
    shown = "".join(each if each.isprintable() and each not in '\\:*?"<>|' else "_" for each in name)
    return NAMELESS if shown.strip(". ~") == "" else shown
