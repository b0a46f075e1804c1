"""``client.fs``: files of the machines on which shells run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import IO, Any

from connmgr.client.archives import TAR, Archived, Extracted, target_of
from connmgr.client.endpoints import Group, Post, given
from connmgr.client.http import BYTES, HttpSession
from connmgr.client.results import FileEntry, from_path, to_path
from connmgr.client.transfer import PIECE_BYTES, Download, Progress, Source, Upload

Path = str | os.PathLike[str]


class Files(Group):
    """``/fs``; paths are absolute, relative to the shell's directory, or begin with ``~/``.

    Without a ``session``, the connection's own shell is used.
    """

    def __init__(self, post: Post, session: HttpSession) -> None:
        super().__init__(post)
        self._session = session

    def blob(self, source: bytes | Source, progress: Progress | None = None) -> str:
        """Store bytes, the rest of a file, or another client's download, and return the blob's id."""
        if isinstance(source, bytes):
            return str(self._session.send("/fs/blob", source, BYTES)["blob"])
        upload = Upload(source, progress)
        return str(self._session.finish(self._session.open("/fs/blob", upload, BYTES, upload.length))["blob"])

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
    ) -> None:
        """Put a blob into a file; a new file gets ``mode``.
        With ``replaces``, only a file with this SHA-256 in hexadecimal is replaced; with ``create``, none is."""
        options = given(mode=None if mode is None else f"{mode:04o}", replaces=replaces, create=create, session=session)
        self._post("/fs/write", connection=connection, blob=blob, path=to_path(path), **options)

    def upload(
        self,
        connection: str,
        source: bytes | Source,
        path: Path,
        *,
        mode: int | None = None,
        modified: datetime | None = None,
        progress: Progress | None = None,
        session: str | None = None,
    ) -> int:
        """Send bytes, or the rest of a file open for reading, to a file of the far side, and return their number.

        A new file gets ``mode``; ``modified`` is the time of the file's last change.
        """
        when = None if modified is None else modified.isoformat()
        options = given(mode=None if mode is None else f"{mode:04o}", modified=when, session=session)
        target = target_of("/fs/upload", {"connection": connection, "path": os.fspath(path), **options})
        if isinstance(source, bytes):
            return int(self._session.send(target, source, BYTES)["bytes"])
        upload = Upload(source, progress)
        return int(self._session.finish(self._session.open(target, upload, BYTES, upload.length))["bytes"])

    def open(self, connection: str, path: Path, *, session: str | None = None) -> Download:
        """Begin to read a file; close it before the client's next request."""
        body = self._session.encoded(connection=connection, path=to_path(path), **given(session=session))
        return Download(self._session.open("/fs/read", body))

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
        """Write the content of a file to ``target``, and return its size in bytes."""
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
        return str(self._post("/fs/script", connection=connection, blob=blob, **given(session=session))["path"])

    def archive(
        self, connection: str, path: Path, members: Sequence[Path] = (), *, session: str | None = None
    ) -> Download:
        """Begin to read a directory, or ``members`` below it, as an archive; close it before the next request."""
        paths: Any = {"path": to_path(path), "members": [to_path(one) for one in members]}
        body = self._session.encoded(connection=connection, **paths, **given(session=session))
        return Download(self._session.open("/fs/archive", body))

    def extract(
        self, connection: str, source: Archived, path: Path, *, exact: bool = False, session: str | None = None
    ) -> Extracted:
        """Unpack an archive into a directory of the far side; ``exact`` keeps its modes unchanged."""
        target = target_of(
            "/fs/extract", {"connection": connection, "path": os.fspath(path), "exact": exact, **given(session=session)}
        )
        pieces = iter(lambda: source.read(PIECE_BYTES), b"") if hasattr(source, "read") else source
        return Extracted.read(self._session.finish(self._session.open(target, pieces, TAR)), from_path)

    def checksum(
        self, connection: str, path: Path, members: Sequence[Path] = (), *, session: str | None = None
    ) -> dict[str, str]:
        """Return the SHA-256, in hexadecimal, of the files in a directory, or of ``members`` below it, by their paths.
        The machine computes them. Links and unreadable files are left out.
        """
        paths: Any = {"path": to_path(path), "members": [to_path(one) for one in members]}
        found = self._post("/fs/checksum", connection=connection, **paths, **given(session=session))["entries"]
        return {from_path(one["name"]): one["sha256"] for one in found}

    def list(
        self, connection: str, path: Path, *, recursive: bool = False, session: str | None = None
    ) -> list[FileEntry]:
        """List a directory, with ``recursive`` all below it too; names are paths relative to the directory."""
        options = {**given(session=session), **({"recursive": True} if recursive else {})}
        found = self._post("/fs/list", connection=connection, path=to_path(path), **options)["entries"]
        return [FileEntry.read(one) for one in found]

    def glob(self, connection: str, pattern: str, *, session: str | None = None) -> Sequence[FileEntry]:
        """List the files whose paths ``pattern`` matches, with ``*``, ``?`` and ``[…]``; the names are their paths."""
        found = self._post("/fs/glob", connection=connection, pattern=to_path(pattern), **given(session=session))
        return [FileEntry.read(one) for one in found["entries"]]

    def stat(self, connection: str, path: Path, *, follow: bool = True, session: str | None = None) -> FileEntry:
        """Describe a file."""
        options = given(session=session)
        return FileEntry.read(
            self._post("/fs/stat", connection=connection, path=to_path(path), follow=follow, **options)
        )

    def remove(self, connection: str, path: Path, *, recursive: bool = False, session: str | None = None) -> None:
        """Remove a file or directory."""
        options = given(session=session)
        self._post("/fs/remove", connection=connection, path=to_path(path), recursive=recursive, **options)

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
        options = given(mode=None if mode is None else f"{mode:04o}", session=session)
        self._post("/fs/mkdir", connection=connection, path=to_path(path), parents=parents, **options)

    def move(
        self, connection: str, source: Path, target: Path, *, overwrite: bool = False, session: str | None = None
    ) -> None:
        """Rename a file within one machine."""
        paths = {"source": to_path(source), "target": to_path(target)}
        self._post("/fs/move", connection=connection, overwrite=overwrite, **paths, **given(session=session))
