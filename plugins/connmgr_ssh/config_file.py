"""Files in the format of ssh_config(5): their lines, their patterns and the files that they include."""

from __future__ import annotations

import glob
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from connmgr.errors import TransportUnsupported
from connmgr_ssh import local_file

_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")


def matches(patterns: Sequence[str], subject: str) -> bool:
    """Whether ``patterns`` of ``*``, ``?`` and leading ``!`` mean ``subject``; a negated one that fits decides."""
    found = False
    for pattern in patterns:
        if _fits(pattern.removeprefix("!").lower(), subject.lower()):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _fits(pattern: str, subject: str) -> bool:
    """Whether ``pattern`` means ``subject``; each of its parts is looked for once, from left to right."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == subject
    first, *parts = pattern.split("*")
    if not parts:
        return len(first) == len(subject) and _begins(first, subject, 0)
    last = parts.pop()
    position, end = len(first), len(subject) - len(last)
    if position > end or not _begins(first, subject, 0) or not _begins(last, subject, end):
        return False
    for part in parts:
        while part and position + len(part) <= end and not _begins(part, subject, position):
            position += 1
        position += len(part)
        if position > end:
            return False
    return True


def _begins(part: str, subject: str, at: int) -> bool:
    return all(wanted in ("?", found) for wanted, found in zip(part, subject[at : at + len(part)], strict=True))


def lines(path: Path, *, strict: bool) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number, lower-case keyword and arguments of each line; a file that does not exist has none.

    :param strict: whether a file that others than its owner, this user or root, may write to is refused.
    :raises TransportUnsupported: the file is refused, cannot be read, or cannot be understood.
    """
    try:
        content, status = local_file.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise TransportUnsupported(f"{shown(path)} cannot be read: {error.strerror}.") from error
    others = status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022
    if strict and others and stat.S_ISREG(status.st_mode):
        advice = f"chmod go-w {shown(path)}"
        raise TransportUnsupported(f"{shown(path)} is not used, because others may write to it: {advice}")
    for number, line in enumerate(content.decode(errors="surrogateescape").splitlines(), 1):
        found = _LINE.fullmatch(line.strip())
        if line.lstrip().startswith("#") or not found:
            continue
        try:
            yield number, found[1].lower(), _arguments(found[2])
        except ValueError:
            raise TransportUnsupported(f"{shown(path)}:{number}: a quotation mark has no partner.") from None


def _arguments(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        # The quotation mark may stand in a comment.
        return shlex.split(text, comments=True)
    comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def aliases(path: Path, depth: int = 16) -> list[str]:
    """Return the hosts that the file at ``path``, or one that it includes, names without a pattern; in their order.

    :raises TransportUnsupported: a file is refused, cannot be read, or cannot be understood.
    """
    found: dict[str, None] = {}
    for _, keyword, arguments in lines(path, strict=True):
        if keyword == "host":
            found |= dict.fromkeys(name for name in arguments if not set(name) & set("*?!"))
        elif keyword == "include" and depth:
            for file in included(arguments, Path.home() / ".ssh"):
                found |= dict.fromkeys(aliases(file, depth - 1))
    return list(found)


def included(names: Sequence[str], base: Path) -> Iterator[Path]:
    """Yield the files that the patterns ``names`` mean, those that are not absolute below ``base``."""
    for name in names:
        pattern = home_expanded(name)
        anchored = pattern if pattern.is_absolute() else base / pattern
        # Not Path.glob(), which finds hidden files too, such as those that editors make.
        found = sorted(glob.glob(str(anchored)))  # noqa: PTH207
        yield from (path for path in map(Path, found) if not path.is_dir())


def home_expanded(name: str) -> Path:
    """Return ``name`` with a leading ``~`` or ``~user`` replaced, where there is such a home."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser() raises where this leaves the name alone


def shown(path: Path) -> str:
    """Return the path as a client may see it, without the daemon user's home directory."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
