"""``/fs``: blobs, and files of the machines that shells run on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from connmgr.contract.common import AwaitsApproval, Elevate, ShellNamed
from connmgr.contract.message import ID, MODE, PATH, Fact, Length, Message, Pattern, Range, SchemaMembers, Wrong
from connmgr.contract.undo import ChangeResponse

QUERY_PATH = Fact("QUERY_PATH")
"""A path in a query, where any byte can be written as ``%FF``."""

QUERY_USER = Fact("QUERY_USER")
"""A wish to run as another user, given in a query by the user's name."""

MOMENT = Fact("MOMENT", write=datetime.isoformat)
"""A time since 1970, with its offset from UTC."""

SHA256 = Pattern("[0-9a-f]{64}\\Z", published="^[0-9a-f]{64}$")
OWNER = Pattern(
    r"[A-Za-z0-9_.][A-Za-z0-9_.@$-]{0,255}\Z",
    "Not the name or number of a user or group.",
    "^[A-Za-z0-9_.][A-Za-z0-9_.@$-]{0,255}$",
)

Path = Annotated[bytes, PATH]
NewMode = Annotated[int | None, MODE, "The permissions of a new file, in octal. An existing file keeps its own."]


class PathRequest(ShellNamed):
    path: Annotated[Path, "Absolute, relative to the shell's directory, or beginning with `~/`."]


class ReadRequest(PathRequest):
    passed: Annotated[
        bool,
        "True writes the content to a file whose descriptor comes with the request, at the daemon's Unix socket "
        "(`SCM_RIGHTS`), from where that file stands; the answer is empty, and comes when all is written.",
    ] = False


class ListFilesRequest(PathRequest):
    recursive: Annotated[bool, "True also lists the directories below, by paths relative to `path`."] = False


class GlobRequest(ShellNamed):
    pattern: Annotated[Path, "A path with the wildcards `*`, `?` and `[…]` of a shell; otherwise as `path`."]


class SearchRequest(PathRequest):
    text: Annotated[str, Length(1, 1000), "What a line has in it: a text, not a pattern."]
    names: Annotated[str, Length(1, 255), "Only files whose names match this, with `*`, `?` and `[…]`."] = "*"
    ignore_case: Annotated[bool, "True takes the letters a to z as A to Z."] = False
    most: Annotated[int, Range(1, 1000), "Most lines to return."] = 200
    timeout: Annotated[float, Range(0, 50, above=True), "Seconds after which the search ends in any case."] = 30.0

    def check(self) -> None:
        super().check()
        for name in ("text", "names"):
            if any(character in getattr(self, name) for character in "\n\0"):
                raise Wrong("Has a newline or NUL, which no line and no pattern has.", name)


class FoundLine(Message):
    name: Annotated[Path, "The file's path relative to `path`; for a single file its name."]
    line: Annotated[int, "The line's number, from 1."]
    text: Annotated[str, "The line; of a long one 300 characters around the text."]


class SearchResponse(Message):
    lines: Annotated[list[FoundLine], "The lines, each file's in their order, files in no order."]
    complete: Annotated[bool, "Whether these are all; false if there are more, or the time was over."]


class MembersRequest(PathRequest):
    members: Annotated[
        Sequence[Path],
        "Paths below `path`: only these, with everything below them. Without it: everything.",
    ] = ()


class DownloadRequest(MembersRequest):
    archive: Annotated[
        bool, "True: the directory, or its `members`, as a tar archive. False: the content of a file."
    ] = False

    def check(self) -> None:
        super().check()
        if self.members and not self.archive:
            raise Wrong("Only an archive has members: set archive.", "members")


class DownloadTicketResponse(Message):
    ticket: Annotated[str, "For `/fs/download?ticket=TICKET`, once, within 30 seconds."]
    name: Annotated[str, "The name that the download has, without control characters."]
    size: Annotated[int | None, "Bytes of the file; null for an archive."]


class TicketedDownloadRequest(Message):
    ticket: Annotated[str, "A ticket of `/fs/ticket`."]


class ChecksumResponse(Message):
    name: Annotated[Path, "The path relative to `path`; for a single file its name."]
    sha256: Annotated[str, "The SHA-256 of its content, in hexadecimal."]


class ChecksumsResponse(Message):
    entries: Annotated[list[ChecksumResponse], "The files, in no order."]


class QueryShellNamed(ShellNamed):
    elevate: Annotated[Elevate | None, QUERY_USER, "The user to run as, by sudo; otherwise as in `/shell/exec`."] = None


class ExtractRequest(QueryShellNamed):
    path: Annotated[bytes, QUERY_PATH, "The directory; otherwise as in `/fs/list`."]
    exact: Annotated[bool, "True sets the modes of the archive, regardless of the umask of the shell's user."] = False


class UploadRequest(QueryShellNamed):
    path: Annotated[bytes, QUERY_PATH, "The file; otherwise as in `/fs/write`."]
    mode: NewMode = None
    modified: Annotated[datetime | None, MOMENT, "The time of the file's last change. By default it is now."] = None
    passed: Annotated[
        bool,
        "True takes the content from a file whose descriptor comes with the request, at the daemon's Unix socket "
        "(`SCM_RIGHTS`): the rest of that file, from where it stands. The request then has no body.",
    ] = False

    replaces: Annotated[str | None, SHA256, "As in `/fs/write`."] = None
    create: Annotated[bool, "True only creates a new file, as in `/fs/write`."] = False

    def check(self) -> None:
        super().check()
        check_replaced(self.replaces, create=self.create)


class UploadResponse(ChangeResponse):
    bytes: Annotated[int, "Bytes of the file."]
    sha256: Annotated[str, "Their SHA-256, in hexadecimal."]


class FailedResponse(Message):
    path: Annotated[Path, "The path in the archive."]
    message: Annotated[str, "The machine's error message."]


class ExtractResponse(Message):
    files: Annotated[int, "Files and links in the archive."]
    bytes: Annotated[int, "Bytes of their content."]
    failed: Annotated[
        list[FailedResponse],
        "Entries that could not be moved to their place; a directory stands for its whole content.",
    ]


class BlobResponse(Message):
    blob: Annotated[str, SchemaMembers({"format": "uuid"}), "The blob's uuid."]


class ScriptRequest(ShellNamed):
    blob: Annotated[str, ID, "A blob that this session has stored."]


class WriteRequest(PathRequest, ScriptRequest, AwaitsApproval):
    mode: NewMode = None
    replaces: Annotated[
        str | None,
        SHA256,
        "The SHA-256 of the file to replace, in hexadecimal. If another file or content is there, the answer is "
        "`file_changed`. Not together with `create`.",
    ] = None
    create: Annotated[
        bool | None,
        "True only creates a new file. If something exists at the path, the answer is `file_exists`.",
    ] = None

    def check(self) -> None:
        super().check()
        check_replaced(self.replaces, create=bool(self.create))


def check_replaced(replaces: str | None, *, create: bool) -> None:
    """Raise :class:`Wrong` if a file shall both replace another and be new."""
    if replaces is not None and create:
        raise Wrong("Give either replaces or create, not both.", "create")


class ScriptResponse(Message):
    path: Annotated[Path, "The new file's path."]


class EntryResponse(Message):
    """A file; ``size`` in bytes, ``mode`` its permission bits, ``target`` where a link leads."""

    name: Annotated[Path, "The name in its directory; for a single file, the path of the request."]
    type: Annotated[str, "`file`, `directory`, `link`, `fifo`, `socket`, `character`, `block` or `unknown`."]
    size: Annotated[int, "In bytes."]
    mode: Annotated[int, MODE, "Permission bits in octal."]
    modified: Annotated[datetime, "When the content was last changed."]
    uid: Annotated[int, "The owner's number."]
    gid: Annotated[int, "The group's number."]
    owner: Annotated[str, "The owner's name; the number if it has none."]
    group: Annotated[str, "The group's name; the number if it has none."]
    target: Annotated[bytes | None, PATH, "The target of a link, or null."]


class StatRequest(PathRequest):
    follow: Annotated[bool, "True describes a link's target, false the link itself."] = True


class ListResponse(Message):
    entries: Annotated[list[EntryResponse], "The content of the directory, by name."]


class RemovePathRequest(PathRequest, AwaitsApproval):
    recursive: Annotated[bool, "True removes a directory with its content."] = False


class MkdirRequest(PathRequest, AwaitsApproval):
    mode: Annotated[int | None, MODE, "The permissions of the new directory, in octal."] = None
    parents: Annotated[bool, "True creates missing parents too, and accepts an existing directory."] = False


class AttributesRequest(PathRequest, AwaitsApproval):
    mode: Annotated[int | None, MODE, "The new permissions, in octal."] = None
    owner: Annotated[str | None, OWNER, "The new owner, by name or number."] = None
    group: Annotated[str | None, OWNER, "The new group, by name or number."] = None

    def check(self) -> None:
        super().check()
        if self.mode is None and self.owner is None and self.group is None:
            raise Wrong("Give mode, owner or group.", "mode")


class MoveRequest(ShellNamed, AwaitsApproval):
    source: Annotated[Path, "The file or directory to move."]
    target: Annotated[Path, "The new path, not the directory to move into."]
    overwrite: Annotated[bool, "True replaces a file at `target`."] = False
