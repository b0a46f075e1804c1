"""The programs of ``scripts/``, in the language of sh, that work on files of the remote host; and their runs.

Each runs in a helper, as the session's user; its first argument is the session's directory. It answers with a line that
begins with a random mark: ``ok`` and facts, or ``no``, an error code and perhaps details. Data follow.

The programs need only POSIX.1-2017. If present they use stat of GNU, busybox or BSD, GNU find's ``-printf``, a program
that computes SHA-256, and the descriptors of open files in /proc.

There is no SFTP: within a wrapper it would act as another user than the session's, and a channel that runs ``cat`` is
as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain

from connmgr import errors
from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.rpc import EXCHANGE, Chunk, Exchange, Helpers, RemoteProgram
from connmgr.engine.script import Source
from connmgr.engine.stdin_pipe import CHUNKS
from connmgr.errors import RequestError, TransferFailed
from connmgr.fs.path_rules import Gate, PathJudge
from connmgr.plugin import Transport
from connmgr.printable import visible

LISTING_BYTES = 64 << 20
"""Most bytes of a listing, and of a list of checksums."""

RECORD_BYTES = 16 << 10
"""Most bytes of an entry, and of a link's target."""

DISK_BLOCK_BYTES = 64 << 10
"""Block size of the remote host's programs for a large file."""

CHUNK_BYTES = 2 << 20
"""Bytes of one chunk to the remote host; each chunk costs a process there."""

PORTION_BYTES = 16 << 20
"""Most bytes of one chunk of a large file of known size, a multiple of the block size: the remote host reads it back
and flushes it while the next one arrives, by three processes."""

DISK_BYTES_A_SECOND = 1 << 20
"""Rate at which a remote host must at least flush and check, in bytes per second, besides the time of any answer."""

CALL_BYTES = 48 << 10
"""Most bytes of names in one call of a program."""

REFUSALS: dict[str, errors.ConnmgrError] = {
    error.code: error
    for error in (
        errors.NoSuchFile("File does not exist"),
        errors.NoSuchDirectory("The directory does not exist."),
        errors.WrongFileType("The operation does not work on this type of file."),
        errors.FileExists("A file of that name exists already."),
        errors.FileChanged("The file has changed since it was read, so it was not replaced. Read it again."),
        errors.DirectoryNotEmpty("The directory is not empty; set recursive to remove it with its content."),
        errors.PermissionDenied("Permission denied for the user of the session."),
        errors.NoSpace("No space is left on the remote host's disk."),
        errors.TransferFailed("The content did not arrive whole; the old file, if there is one, is unchanged."),
        errors.FileOperationFailed("The operation failed."),
        errors.TarMissing("tar is not installed on the machine; install it, or copy single files."),
    )
}


_SHARED = {"chunks": CHUNKS}
"""Parts that the engine has, for its own programs too."""


def _program(
    name: str, *more: str, setup: str = "", shared: tuple[str, ...] = (), fed: bool = False, paths: int = 1
) -> RemoteProgram:
    body = tuple(Source(__package__, file) for file in (name, *more))
    prepared = Source(__package__, setup) if setup else None
    parts = (_SHARED.get(file, Source(__package__, file)) for file in shared)
    library = (EXCHANGE, Source(__package__, "prelude"), *parts)
    opening = "dir=$1; shift"
    return RemoteProgram(
        f"fs_{name}", library, body, prepared, opening, fed, opens=True, refusals=REFUSALS, paths=paths
    )


@cache
def gated(program: RemoteProgram) -> RemoteProgram:
    """Return the variant for callers with rules over paths, which asks about each path before it uses it."""
    opening = f"{program.opening}; exec 6<&0{'' if program.fed else ' </dev/null'}; guard"
    library = (*program.library, Source(__package__, "gate"))
    body = tuple(Source(__package__, _GATED.get(source.name, source.name)) for source in program.body)
    return replace(program, name=f"{program.name}_gated", library=library, body=body, opening=opening, fed=True)


@cache
def pinned(program: RemoteProgram) -> RemoteProgram:
    """Return the variant that works on the file at exactly its path, which is real, and otherwise does nothing."""
    library = (*program.library, Source(__package__, "pin"))
    return replace(program, name=f"{program.name}_pinned", library=library, opening=f"{program.opening}; pin")


_GATED = {name: f"{name}_gated" for name in ("glob", "mkdir", "move")}
"""The programs that have a different variant for such callers."""


READ = _program("read")
"""``path``. ``ok size``, then the content; succeeds if the whole content can be read."""

WRITE = _program("write", shared=("chunks", "litter", "digest"), fed=True)
"""``path mode nonce``, the block size in bytes, and optionally the time for ``touch -t``, what may be replaced: the
SHA-256 of a file, or ``nothing``; the number of portions, if there are several; and ``uid:gid``.

With the latter the file gets these and the mode, even if it exists, and no set-id bit if it cannot get them.

``ok`` when it is ready, and ``exact`` unless it acknowledges chunks. Then it reads the content in chunks, and a line
``end size sha256``; ``ok`` when the file is in place.
"""

LIST = _program("list", "describing", setup="find_out_how")
"""``path recursive``. ``ok``, each entry after a mark, and a mark and ``end``.

An entry is mode and type, size, time, ids, names, and ``/./name``.
"""

GLOB = _program("glob", "describing", setup="find_out_how")
"""``pattern``. As LIST, for the matches of the pattern, by their whole paths.

With a gate, ``directory pattern``: ``=`` and a path from that directory precede the entries of each directory.
"""

CHECKSUM = _program("checksum", setup="find_checksum", shared=("inside",))
"""``path name…``. ``ok``; each SHA-256 with two blanks, a file's path from ``path`` and NUL; a mark and ``end``.

The sum of a large file follows its size, a newline and NUL. The names begin with ``./``.
"""

SEARCH = _program("search", setup="find_grep", shared=("inside",))
"""``path text fold names most``: lines with ``text``, in letters of any case if ``fold``, at most ``most`` of a file.

``ok``; a file's path from ``path``, NUL, a line's number, a colon and the line; empty lines between; a mark and
``end``. It has no gated variant.
"""

ARCHIVE = _program("archive", setup="find_tar", shared=("inside",))
"""``path name…``. ``ok``, an archive, and the complaints of tar; the names are paths from ``path`` with ``./``."""

EXTRACT = _program("extract", setup="find_tar", shared=("chunks", "litter"), fed=True)
"""``path nonce`` and the block size.

``ok umask``, and perhaps ``exact``, when it is ready. Then it reads an archive in chunks, and ``end``; ``ok`` when it
has arrived; after a mark each, ``reason/path`` of a member that is not in its place; a mark and ``end``.
"""

STAT = _program("stat", "describing", setup="find_out_how")
"""``path follow``. ``ok``, an entry as in LIST, and after the mark ``target`` the target of a link."""

STATE = _program("state")
"""``path``, a limit in bytes, and optionally ``name``: a link at the end counts itself.

``ok kind size mode uid gid modified sums``, then the real path, NUL, and the content of a ``file``. ``sums`` is ``-``
if nothing there computes a SHA-256.
"""

REMOVE = _program("remove", shared=("digest",))
"""``path recursive``, and optionally the SHA-256 of the file that it may remove. ``ok``."""

MKDIR = _program("mkdir")
"""``path mode parents``, and for the pinned variant ``uid:gid``, if its user may give it. ``ok``."""

MOVE = _program("move", paths=2)
"""``from to overwrite``. ``ok``."""

ATTRIBUTES = _program("attributes", shared=("digest",))
"""``path mode owner group``, each of the last three empty if it stays. ``ok``. It has no gated variant.

The pinned variant also takes the mode, user and group, and the SHA-256, that the file must have.
"""

MAKE_TEMPORARY = _program("make_temporary", paths=0)
"""``name``. ``ok`` and a new directory, 0700."""


@dataclass(frozen=True)
class RemoteFileSystem:
    """The files of a session's host: its transport, working directory and helpers.

    If there is a ``gate``, it decides about every file operation. A cancelled operation begins no further program.
    """

    transport: Transport
    directory: bytes
    helpers: Helpers = field(default_factory=Helpers)
    gate: Gate | None = None
    cancellation: Cancellation = NEVER
    connection_digest: str | None = None
    """The digest of the connection and of all that it runs over, when its link was opened."""
    pinned: bytes | None = None
    """The one real path of all operations: no link leads any of them elsewhere."""

    def run(self, program: RemoteProgram, arguments: Sequence[str | bytes], judge: PathJudge | None = None) -> Exchange:
        """Run one of these programs; ``judge``, or one for the gate, decides about its questions."""
        if self.gate is not None and judge is None:
            judge = PathJudge(self.gate, only=self.pinned)
        if judge is not None:
            program = gated(program)
        elif self.pinned is not None:
            program = pinned(program)
        subject = " -> ".join(map(self._shown, arguments[: program.paths]))
        words = [self.directory, *arguments]
        return Exchange(
            self.transport,
            self.helpers,
            program,
            words,
            judge=judge,
            subject=subject,
            cancellation=self.cancellation,
        )

    def _shown(self, path: str | bytes) -> str:
        """Return a path for a message, with the directory that a relative one begins in."""
        path_bytes = path if isinstance(path, bytes) else path.encode(errors="surrogateescape")
        whole = (
            path_bytes if path_bytes.startswith((b"/", b"~")) else b"/".join([self.directory.rstrip(b"/"), path_bytes])
        )
        return visible(whole.decode(errors="replace"))


class ProgramRuns:
    """The runs of ``program`` over the directory ``path``, for ``names`` in it; without names, one run for everything.

    The constructor begins the first run and reads its answer. Close it afterwards.

    With a gate each name has its own run, as the path. ``lead`` is then the path of the run's archive relative to the
    directory, empty for the whole directory; without a gate it is None. ``missed`` lists the failed runs after the
    first.
    """

    lead: bytes | None = None

    def __init__(self, fs: RemoteFileSystem, program: RemoteProgram, path: bytes, names: Sequence[bytes]) -> None:
        self._fs = fs
        self._program = program
        self._path = path
        self._batches = _batches(names) if fs.gate is None else _one_by_one(names)
        self.missed: list[str] = []
        with ExitStack() as cleanup:
            self._exchange = self._begin(cleanup, next(self._batches))
            self._cleanup = cleanup.pop_all()

    def __iter__(self) -> Iterator[Exchange]:
        """Yield each run when the previous one is over."""
        yield self._exchange
        for names in self._batches:
            self._cleanup.close()
            try:
                exchange = self._begin(self._cleanup, names)
            except RequestError as error:
                if self._fs.gate is None:
                    raise
                self._cleanup.close()
                self.missed.append(f"{names[0].decode(errors='replace')}: {error.message}")
            else:
                yield exchange

    def close(self) -> None:
        """End the remote program. Calling it again does nothing."""
        self._cleanup.close()

    def _begin(self, cleanup: ExitStack, names: list[bytes]) -> Exchange:
        arguments: list[bytes] = [self._path, *names]
        if self._fs.gate is not None:
            self.lead = b"".join(names)
            # The rule is asked about each path as the remote host resolves it there, so each member is a request of its
            # own.
            arguments = [b"/".join([self._path, self.lead]), b"member"] if names else [self._path]
        exchange = cleanup.enter_context(self._fs.run(self._program, arguments))
        exchange.answer()
        return exchange


def _one_by_one(names: Sequence[bytes]) -> Iterator[list[bytes]]:
    return iter([[name] for name in names] or [[]])


def _batches(names: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield ``names`` in lists that fit into one call; one empty list if there is none."""
    batch: list[bytes] = []
    size = 0
    for name in names:
        if batch and size + len(name) > CALL_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        # Two quotes and a blank.
        size += len(name) + 3
    yield batch


def records_of(exchange: Exchange, limit: int) -> Iterator[bytes]:
    """Yield a program's output after each of its marks, as it comes, at most ``limit`` bytes."""
    mark, total, has_begun, rest = exchange.mark + b" ", 0, False, b""
    for piece in exchange.data():
        total += len(piece)
        *records, rest = (rest + piece).split(mark)
        if total > limit or len(rest) > RECORD_BYTES:
            raise TransferFailed(f"The remote host sent more than {limit if total > limit else RECORD_BYTES} bytes.")
        # Start-up files may have printed something before the first mark.
        yield from records if has_begun else records[1:]
        has_begun = has_begun or bool(records)
    if not exchange.succeeded():
        raise TransferFailed("The link broke, or the program that describes the file was killed.")
    if has_begun:
        yield rest


def chunked(pieces: Iterable[bytes | memoryview]) -> Iterator[Chunk]:
    """Yield ``pieces`` in chunks large enough to be worth a process of the remote host."""
    return ((len(chunk), [chunk]) for chunk in joined(pieces, CHUNK_BYTES))


def portions(size: int) -> list[int]:
    """Return the sizes of the portions of ``size`` bytes; all but the last are multiples of the block size.

    They become smaller towards the end, down to an eighth: a client waits while the last one is read back and flushed.
    """
    sizes: list[int] = []
    least = max(DISK_BLOCK_BYTES, PORTION_BYTES // 8)
    while size > (least if sizes else PORTION_BYTES):
        sizes.append(min(PORTION_BYTES, max(least, size // 2 // least * least)))
        size -= sizes[-1]
    return [*sizes, size]


def portioned(pieces: Iterable[bytes], sizes: Sequence[int]) -> Iterator[Chunk]:
    """Yield ``pieces`` in chunks of ``sizes``; the last one has all that is left."""
    source, left = iter(pieces), b""

    def portion(missing: int) -> Iterator[bytes]:
        nonlocal left
        while missing and (piece := left or next(source, None)) is not None:
            taken, left = piece[:missing], piece[missing:]
            missing -= len(taken)
            yield taken

    for size in sizes[:-1]:
        yield size, portion(size)
    yield sizes[-1], chain([left], source)


def joined(pieces: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of ``size`` or more."""
    collected = bytearray()
    for piece in pieces:
        collected += piece
        if len(collected) >= size:
            yield bytes(collected)
            collected.clear()
    if collected:
        yield bytes(collected)
