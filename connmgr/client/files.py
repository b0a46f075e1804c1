"""``/fs`` and ``/undo``: files of machines, sent and received in pieces, and what tokens have changed in them."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode

from connmgr.client.errors import ClientError, Unreachable
from connmgr.client.group import Group
from connmgr.client.http import BYTES, JSON
from connmgr.client.wire import Closeable, Response, WireError
from connmgr.contract import fs
from connmgr.contract.message import M, Message, from_json, given_json, replace
from connmgr.contract.undo import ChangeResponse, UndoQueryRequest, UndoReadRequest, UndoRestoreRequest

PIECE_BYTES = 256 * 1024
SOURCE_FAILED = "source_failed"
"""The error code for a source that cannot be read."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes transferred and the total, which is None if unknown."""

TAR = "application/x-tar"

FAILED = "CONNMGR.failed"
"""The pax header of an archive's last directory ``./`` that lists unreadable files, one per line."""

Path = str | os.PathLike[str]


class FileEntry(NamedTuple):
    """A file on the remote host; ``size`` in bytes, ``mode`` its permission bits, ``target`` where a link leads.

    Bytes of names that are not UTF-8 are surrogates, as in :mod:`os`.
    """

    name: str
    type: str
    size: int
    mode: int
    modified: datetime
    uid: int
    gid: int
    owner: str
    group: str
    target: str | None

    @classmethod
    def of(cls, entry: fs.EntryResponse) -> FileEntry:
        """Return what an answer says about a file."""
        return cls(
            name=path_text(entry.name),
            type=entry.type,
            size=entry.size,
            mode=entry.mode,
            modified=entry.modified,
            uid=entry.uid,
            gid=entry.gid,
            owner=entry.owner,
            group=entry.group,
            target=None if entry.target is None else path_text(entry.target),
        )


class Failed(NamedTuple):
    """An entry that could not be moved to its place: its path in the archive, and the reason."""

    path: str
    message: str


class Extracted(NamedTuple):
    """The number of entries unpacked, without directories, and those that could not be moved to their place."""

    files: int
    bytes: int
    failed: tuple[Failed, ...]


class Download(Closeable):
    """A file, or an archive for :mod:`tarfile` with ``mode="r|"``, that is being received.

    ``size`` is in bytes, None for an archive. It occupies the client's connection until it is closed, for example by a
    context manager.
    """

    def __init__(self, response: Response) -> None:
        self._response = response
        self._received = 0
        length = response.headers.get("content-length")
        self.size = int(length) if length else None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content in pieces; raise :class:`Unreachable` if the connection breaks before the end."""
        while piece := self.read(PIECE_BYTES):
            yield piece

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end; raises as the iteration."""
        try:
            piece = self._response.read1(size)
        except (OSError, WireError) as error:
            of = "" if self.size is None else f" of {self.size}"
            raise Unreachable(f"What was sent broke off after {self._received}{of} bytes.", sent=True) from error
        self._received += len(piece)
        return piece

    def close(self) -> None:
        """Release the connection, and discard what was not read."""
        self._response.close()


Source = IO[bytes] | Download


class Upload:
    """Reads ``source`` while it is sent, and reports to ``progress``.

    ``length`` is the number of bytes left in a regular file, or the size of a download.
    """

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._source = source
        self._progress = progress
        self.length = source.size if isinstance(source, Download) else _length(source)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes to send.

        :raises ClientError: the file cannot be read, or became shorter meanwhile.
        """
        position = 0
        for piece in self._source if isinstance(self._source, Download) else self._pieces(self._source):
            position += len(piece)
            yield piece
            if self._progress is not None:
                self._progress(position, self.length)
        # The head of the request has promised the length: after a shorter body the daemon would wait for the rest.
        if self.length is not None and position < self.length:
            raise ClientError(f"The file to send ended after {position} of {self.length} bytes.", SOURCE_FAILED, 0)

    def _pieces(self, source: IO[bytes]) -> Iterator[bytes]:
        left = self.length
        try:
            while piece := source.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left)):
                left = None if left is None else left - len(piece)
                yield piece
        except OSError as error:
            message = f"The file to send cannot be read: {error.strerror or error}"
            raise ClientError(message, SOURCE_FAILED, 0) from error


def _length(source: IO[bytes]) -> int | None:
    try:
        status = os.fstat(source.fileno())
        if stat.S_ISREG(status.st_mode):
            return max(0, status.st_size - source.tell())
    except (OSError, io.UnsupportedOperation, AttributeError):
        pass
    return None


Archived = IO[bytes] | Iterator[bytes] | Download


class Files(Group):
    """``/fs``; paths are absolute, relative to the shell's directory, or begin with ``~/``.

    Without a ``session``, the connection's own shell is used.
    """

    def blob(self, source: bytes | Source, progress: Progress | None = None) -> str:
        """Store bytes, the rest of a file, or another client's download, and return the blob's id."""
        return self._send("/fs/blob", source, progress, fs.BlobResponse).blob

    def write(
        self,
        connection: str,
        blob: str,
        path: Path,
        *,
        mode: int | None = None,
        replaces: str | None = None,
        create: bool | None = None,
        session: str | None = None,
    ) -> ChangeResponse:
        """Put a blob into a file; a new file gets ``mode``; return what of the replaced one is kept for ``/undo``.

        With ``replaces``, only a file with this SHA-256 in hexadecimal is replaced; with ``create``, none is.
        """
        request = fs.WriteRequest(
            connection=connection,
            blob=blob,
            path=path_bytes(path),
            mode=mode,
            replaces=replaces,
            create=create,
            session=session,
        )
        return self._ask("/fs/write", request, ChangeResponse)

    def upload(
        self,
        connection: str,
        source: bytes | Source,
        path: Path,
        *,
        mode: int | None = None,
        modified: datetime | None = None,
        replaces: str | None = None,
        create: bool = False,
        progress: Progress | None = None,
        session: str | None = None,
    ) -> int:
        """Send bytes, or the rest of a file open for reading, to a file of the remote host, and return their number.

        A new file gets ``mode``; ``modified`` is the time of the file's last change; ``replaces`` and ``create`` are as
        in :meth:`write`.
        """
        request = fs.UploadRequest(
            connection=connection,
            path=path_bytes(path),
            mode=mode,
            modified=modified,
            replaces=replaces,
            create=create,
            session=session,
        )
        # On this machine the daemon reads the file by itself: its descriptor is passed over the Unix socket, and no
        # byte goes through this process.
        passable = None if isinstance(source, bytes | Download) else self._passable(source)
        if passable is None:
            return self._send(_with_query("/fs/upload", request), source, progress, fs.UploadResponse).bytes
        url = _with_query("/fs/upload", replace(request, passed=True))
        answer = self._pass_file(url, b"", BYTES, passable, _length(passable), progress)
        return from_json(fs.UploadResponse, answer).bytes

    def open(self, connection: str, path: Path, *, session: str | None = None) -> Download:
        """Begin to read a file; close it before the client's next request."""
        return self._download("/fs/read", fs.PathRequest(connection=connection, path=path_bytes(path), session=session))

    def read(self, connection: str, path: Path, *, session: str | None = None) -> bytes:
        """Return the content of a file."""
        with self.open(connection, path, session=session) as content:
            return b"".join(content)

    def download(
        self,
        connection: str,
        path: Path,
        target: IO[bytes],
        progress: Progress | None = None,
        *,
        session: str | None = None,
    ) -> int:
        """Write the content of a file to ``target``, and return its size in bytes.

        ``progress`` learns no total where the daemon writes the file by itself, as it does on this machine.
        """
        passable = self._passable(target)
        if passable is not None:
            request = fs.ReadRequest(connection=connection, path=path_bytes(path), passed=True, session=session)
            start = target.tell()
            self._pass_file("/fs/read", self._http.encode(**given_json(request)), JSON, passable, None, progress)
            # The position that the file object believes in is older.
            return target.seek(0, os.SEEK_CUR) - start
        with self.open(connection, path, session=session) as content:
            received = 0
            for piece in content:
                target.write(piece)
                received += len(piece)
                if progress is not None:
                    progress(received, content.size)
        return received

    def script(self, connection: str, blob: str, *, session: str | None = None) -> str:
        """Put a blob into a new executable file, which is removed with the shell, and return its path."""
        request = fs.ScriptRequest(connection=connection, blob=blob, session=session)
        return path_text(self._ask("/fs/script", request, fs.ScriptResponse).path)

    def archive(
        self, connection: str, path: Path, members: Sequence[Path] = (), *, session: str | None = None
    ) -> Download:
        """Begin to read a directory, or ``members`` below it, as an archive; close it before the next request."""
        return self._download("/fs/archive", _members(connection, path, members, session))

    def extract(
        self, connection: str, source: Archived, path: Path, *, exact: bool = False, session: str | None = None
    ) -> Extracted:
        """Unpack an archive into a directory of the remote host; ``exact`` keeps its modes unchanged."""
        request = fs.ExtractRequest(connection=connection, path=path_bytes(path), exact=exact, session=session)
        pieces = iter(lambda: source.read(PIECE_BYTES), b"") if hasattr(source, "read") else source
        answer = self._http.finish(self._http.open(_with_query("/fs/extract", request), pieces, TAR))
        extracted = from_json(fs.ExtractResponse, answer)
        failed = tuple(Failed(path_text(entry.path), entry.message) for entry in extracted.failed)
        return Extracted(extracted.files, extracted.bytes, failed)

    def checksum(
        self, connection: str, path: Path, members: Sequence[Path] = (), *, session: str | None = None
    ) -> dict[str, str]:
        """Return the SHA-256, in hexadecimal, of the files in a directory, or of ``members`` below it, by their paths.
        The machine computes them. Links and unreadable files are left out.
        """
        answer = self._ask("/fs/checksum", _members(connection, path, members, session), fs.ChecksumsResponse)
        return {path_text(entry.name): entry.sha256 for entry in answer.entries}

    def search(
        self, connection: str, path: Path, text: str, *, session: str | None = None, **options: Any
    ) -> fs.SearchResponse:
        """Return the lines that have ``text`` in a file, or in the files below a directory, and whether these are all.

        ``options`` are further members of the request: ``names``, ``ignore_case``, ``most`` and ``timeout``.
        """
        request = fs.SearchRequest(connection=connection, path=path_bytes(path), text=text, session=session, **options)
        return self._ask("/fs/search", request, fs.SearchResponse)

    def list(
        self, connection: str, path: Path, *, recursive: bool = False, session: str | None = None
    ) -> list[FileEntry]:
        """List a directory, with ``recursive`` all below it too; names are paths relative to the directory."""
        request = fs.ListFilesRequest(
            connection=connection, path=path_bytes(path), recursive=recursive, session=session
        )
        return [FileEntry.of(entry) for entry in self._ask("/fs/list", request, fs.ListResponse).entries]

    def glob(self, connection: str, pattern: str, *, session: str | None = None) -> Sequence[FileEntry]:
        """List the files whose paths ``pattern`` matches, with ``*``, ``?`` and ``[…]``; the names are their paths."""
        request = fs.GlobRequest(connection=connection, pattern=path_bytes(pattern), session=session)
        return [FileEntry.of(entry) for entry in self._ask("/fs/glob", request, fs.ListResponse).entries]

    def stat(self, connection: str, path: Path, *, follow: bool = True, session: str | None = None) -> FileEntry:
        """Describe a file."""
        request = fs.StatRequest(connection=connection, path=path_bytes(path), follow=follow, session=session)
        return FileEntry.of(self._ask("/fs/stat", request, fs.EntryResponse))

    def remove(self, connection: str, path: Path, *, recursive: bool = False, session: str | None = None) -> None:
        """Remove a file or directory."""
        self._tell(
            "/fs/remove",
            fs.RemovePathRequest(connection=connection, path=path_bytes(path), recursive=recursive, session=session),
        )

    def mkdir(
        self,
        connection: str,
        path: Path,
        *,
        mode: int | None = None,
        parents: bool = False,
        session: str | None = None,
    ) -> None:
        """Make a directory."""
        self._tell(
            "/fs/mkdir",
            fs.MkdirRequest(connection=connection, path=path_bytes(path), mode=mode, parents=parents, session=session),
        )

    def move(
        self, connection: str, source: Path, target: Path, *, overwrite: bool = False, session: str | None = None
    ) -> None:
        """Rename a file within one machine."""
        self._tell(
            "/fs/move",
            fs.MoveRequest(
                connection=connection,
                source=path_bytes(source),
                target=path_bytes(target),
                overwrite=overwrite,
                session=session,
            ),
        )

    def attributes(
        self,
        connection: str,
        path: Path,
        *,
        mode: int | None = None,
        owner: str | None = None,
        group: str | None = None,
        session: str | None = None,
    ) -> None:
        """Change the permissions, owner or group of a file or directory, where given."""
        self._tell(
            "/fs/attributes",
            fs.AttributesRequest(
                connection=connection, path=path_bytes(path), mode=mode, owner=owner, group=group, session=session
            ),
        )

    def ticket(
        self,
        connection: str,
        path: Path,
        members: Sequence[Path] = (),
        *,
        archive: bool = False,
        session: str | None = None,
    ) -> str:
        """Return a ticket with which a browser can download a file, or a directory as an ``archive``, once."""
        below = list(map(path_bytes, members))
        request = fs.DownloadRequest(
            connection=connection, path=path_bytes(path), members=below, archive=archive, session=session
        )
        return self._ask("/fs/ticket", request, fs.DownloadTicketResponse).ticket

    def _passable(self, file: IO[bytes]) -> io.FileIO | None:
        """Return the regular file under ``file``, if the daemon can read or write it by itself."""
        # Only these: that of gzip has another content than the descriptor that it names.
        raw = file.raw if isinstance(file, io.BufferedReader | io.BufferedWriter) else file
        if not isinstance(raw, io.FileIO) or _length(raw) is None or not self._http.passes_files:
            return None
        file.flush()
        # Something may have been read ahead, which the daemon would not send.
        return raw if raw.tell() == file.tell() else None

    def _pass_file(
        self, path: str, body: bytes, content_type: str, file: io.FileIO, total: int | None, progress: Progress | None
    ) -> Any:
        start, report = file.tell(), progress or (lambda *_: None)
        answer = self._http.pass_file(path, body, content_type, file.fileno(), lambda at: report(at - start, total))
        report(file.tell() - start, total)
        return answer

    def _download(self, path: str, request: Message) -> Download:
        return Download(self._http.open(path, self._http.encode(**given_json(request))))

    def _send(self, path: str, source: bytes | Source, progress: Progress | None, answer: type[M]) -> M:
        """Send bytes, or a file in pieces, as the body of a request to ``path``."""
        if isinstance(source, bytes):
            return from_json(answer, self._http.send(path, source, BYTES))
        upload = Upload(source, progress)
        return from_json(answer, self._http.finish(self._http.open(path, upload, BYTES, upload.length)))


def _members(connection: str, path: Path, members: Sequence[Path], session: str | None) -> fs.MembersRequest:
    below = list(map(path_bytes, members))
    return fs.MembersRequest(connection=connection, path=path_bytes(path), members=below, session=session)


def _with_query(path: str, request: Message) -> str:
    """Return the URL's path with ``request`` as its query, because the body is the file."""
    members = given_json(request)
    # Booleans as JSON writes them; str() would make them True and False.
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in members.items()}
    return f"{path}?{urlencode(texts)}"


def path_bytes(path: Path) -> bytes:
    """Return the bytes of a path; surrogates stand for bytes that are not UTF-8, as in :mod:`os`."""
    return os.fspath(path).encode(errors="surrogateescape")


def path_text(path: bytes) -> str:
    """Return the path that consists of ``path``, the reverse of :func:`path_bytes`."""
    return path.decode(errors="surrogateescape")


class Undo(Group):
    """``/undo``; answers are dicts as in docs/API.md."""

    def query(
        self,
        *,
        token: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: str | None = None,
    ) -> list[dict[str, Any]]:
        """Describe the changes, the newest first: of a token, by its id or name, or on connections that match."""
        request = UndoQueryRequest(
            token=token, since=since, until=until, connection_filter="*" if connection is None else connection
        )
        return list(self._tell("/undo/query", request)["changes"])

    def read(self, change: str) -> bytes:
        """Return the content that a file had before a change."""
        return bytes(self._tell("/undo/read", UndoReadRequest(change=change)))

    def restore(
        self, connection: str, changes: Sequence[str], *, dry_run: bool = False, force: bool = False
    ) -> list[dict[str, Any]]:
        """Undo changes on one connection, the newest first, and tell what became of each.

        A file that somebody has changed since is left alone, unless with ``force``.
        """
        request = UndoRestoreRequest(connection=connection, changes=list(changes), dry_run=dry_run, force=force)
        return list(self._tell("/undo/restore", request)["results"])
