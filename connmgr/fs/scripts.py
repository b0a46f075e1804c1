"""The programs of ``far/``, in the language of sh, that work on files of the far side.

Each runs in a helper, as the session's user; its first argument is the session's directory. It answers with a line that
begins with a random mark: ``ok`` and facts, or ``no``, an error code and perhaps details. Data follow.

The programs need only POSIX.1-2017. If present they use stat of GNU, busybox or BSD, GNU find's ``-printf``, a program
that computes SHA-256, and the descriptors of open files in /proc.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from connmgr import errors
from connmgr.engine.rpc import EXCHANGE, RemoteProgram
from connmgr.engine.script import Source
from connmgr.engine.stdin_pipe import CHUNKS

REFUSALS: dict[str, errors.ConnmgrError] = {
    error.code: error
    for error in (
        errors.NoSuchFile("File does not exist"),
        errors.NoSuchDirectory("The directory does not exist."),
        errors.WrongFileType("The operation does not work on this type of file."),
        errors.FileExists("It exists already."),
        errors.FileChanged("The file's content is not the one to replace; it was not changed. Read the file again."),
        errors.DirectoryNotEmpty("The directory is not empty; set recursive to remove it with its content."),
        errors.PermissionDenied("Permission denied for the user of the session."),
        errors.NoSpace("No space is left there."),
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
    return RemoteProgram(f"fs_{name}", library, body, prepared, "dir=$1; shift", fed, REFUSALS, paths)


@cache
def held(program: RemoteProgram) -> RemoteProgram:
    """Return the variant for callers with rules over paths, which asks about each path before it uses it."""
    opening = f"{program.opening}; exec 6<&0{'' if program.fed else ' </dev/null'}; guard"
    library = (*program.library, Source(__package__, "gate"))
    body = tuple(Source(__package__, _HELD.get(source.name, source.name)) for source in program.body)
    return replace(program, name=f"{program.name}_held", library=library, body=body, opening=opening, fed=True)


_HELD = {name: f"{name}_held" for name in ("glob", "mkdir", "move")}
"""The programs that have a different variant for such callers."""


READ = _program("read")
"""``path``. ``ok size``, then the content; succeeds if the whole content can be read."""

WRITE = _program("write", shared=("chunks", "litter"), fed=True)
"""``path mode nonce``, the block size in bytes, and optionally the time for ``touch -t`` and what may be replaced: the
SHA-256 of a file, or ``nothing``.

``ok`` when it is ready, and ``exact`` unless it acknowledges chunks. Then it reads the content in chunks, and a line
``end size sha256``; ``ok`` when the file is in place.
"""

LIST = _program("list", "describing", setup="find_out_how")
"""``path recursive``. ``ok``, each entry after a mark, and a mark and ``end``.

An entry is mode and type, size, time, ids, names, and ``/./name``.
"""

GLOB = _program("glob", "describing", setup="find_out_how")
"""``pattern``. As LIST, for the matches of the pattern, by their whole paths.

Held, ``directory pattern``: ``=`` and a path from that directory precede the entries of each directory.
"""

CHECKSUM = _program("checksum", setup="find_checksum", shared=("inside",))
"""``path name…``. ``ok``; each SHA-256 with two blanks, a file's path from ``path`` and NUL; a mark and ``end``.

The sum of a large file follows its size, a newline and NUL. The names begin with ``./``.
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

REMOVE = _program("remove")
"""``path recursive``. ``ok``."""

MKDIR = _program("mkdir")
"""``path mode parents``. ``ok``."""

MOVE = _program("move", paths=2)
"""``from to overwrite``. ``ok``."""

MAKE_TEMPORARY = _program("make_temporary", paths=0)
"""``name``. ``ok`` and a new directory, 0700."""
