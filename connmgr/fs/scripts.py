"""The programs, in the language of sh, that work on files on the far side: those of ``far/``.

They run in a helper, started as every process of the connection is, and so as the session's user. The first argument is
the session's directory. What a program has to say is a line that begins with a random mark: ``ok`` and facts, or
``no``, the code of an error and perhaps details. What follows it is data.

They use what POSIX.1-2017 has, and beyond that what they can do without: stat in the ways of GNU, busybox and BSD, GNU
find's ``-printf``, a program that computes SHA-256, and open files by their descriptors in /proc.
"""

from __future__ import annotations

from connmgr.engine.helper import Program
from connmgr.engine.script import Source


def _program(name: str, *more: str, setup: str = "", fed: bool = False) -> Program:
    body = tuple(Source(__package__, file) for file in (name, *more))
    prepared = Source(__package__, setup) if setup else None
    return Program(f"fs_{name}", Source(__package__, "prelude"), body, prepared, "dir=$1; shift", fed)


READ = _program("read")
"""``path``. ``ok size``, then the content; it succeeds if that can be read to its end."""

WRITE = _program("write", fed=True)
"""``path size sha256 mode nonce``, and the size as that of a block, a number of blocks and a rest, in bytes.

``ok`` when it is ready for the content, and ``ok`` when that is in its place.
"""

LIST = _program("list", "describing", setup="find_out_how")
"""``path``. ``ok``, each entry after a mark: mode and type, size, time, ids, names, ``/./name``; a mark and ``end``."""

STAT = _program("stat", "describing", setup="find_out_how")
"""``path follow``. ``ok``, an entry as of LIST, and after the mark ``target`` with the link's own target."""

REMOVE = _program("remove")
"""``path recursive``. ``ok``."""

MKDIR = _program("mkdir")
"""``path mode parents``. ``ok``."""

MOVE = _program("move")
"""``from to overwrite``. ``ok``."""

MAKE_TEMPORARY = _program("make_temporary")
"""``name``. ``ok`` and a new directory, 0700."""
