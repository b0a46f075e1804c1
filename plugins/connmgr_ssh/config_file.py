"""Files in the format of ssh_config(5): their lines, their patterns and the files that they include."""

from __future__ import annotations

import glob
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from connmgr.errors import TransportUnsupported
from connmgr_ssh import local_file

_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")


_SPECIAL = frozenset("*?!")


class Patterns:
    """Compiled patterns of ``*``, ``?`` and leading ``!``; a negated pattern that matches overrules the others."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.names = [pattern.lower() for pattern in patterns]
        self.are_names = not any(_SPECIAL & set(name) for name in self.names)
        self._parts = [] if self.are_names else [(name.startswith("!"), name.removeprefix("!")) for name in self.names]

    def mean(self, subject: str) -> bool:
        """Whether they match ``subject``."""
        subject = subject.lower()
        if self.are_names:
            return subject in self.names
        found = False
        for negated, pattern in self._parts:
            if _fits(pattern, subject):
                if negated:
                    return False
                found = True
        return found


def _fits(pattern: str, subject: str) -> bool:
    """Whether ``pattern`` matches ``subject``; linear, because each part is searched once, from left to right."""
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


def matches(patterns: Sequence[str], subject: str) -> bool:
    """Whether ``patterns`` match ``subject``."""
    return Patterns(patterns).mean(subject)


@dataclass(frozen=True)
class Block:
    """The lines from one ``Host`` or ``Match`` to the next; ``keyword`` is empty before the first.

    ``hosts`` are the patterns of ``Host``, ``written`` their text, ``criteria`` those of ``Match``. Each of ``lines``
    is a number, a keyword in lower case, and arguments.
    """

    keyword: str
    hosts: Patterns
    written: list[str]
    criteria: Criteria
    lines: list[tuple[int, str, list[str]]] = field(default_factory=list)


Criteria = list[tuple[str, bool, Patterns]]
"""For each criterion its name in lower case, whether it is negated, and its patterns."""

WITHOUT_PATTERNS = ("all", "final")


class ConfigFile:
    """One parsed file, indexed so that a host needs few of thousands of blocks."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self.blocks = [Block("", Patterns([]), [], [])]
        # Blocks with plain host names are found by name; all others are examined for every host.
        self._named: dict[str, list[int]] = {}
        self._others = [0]
        for number, keyword, arguments in _lines(path, strict=strict):
            if keyword in ("host", "match"):
                self._begin(keyword, arguments)
            else:
                self.blocks[-1].lines.append((number, keyword, arguments))

    def _begin(self, keyword: str, arguments: list[str]) -> None:
        written = arguments if keyword == "host" else []
        hosts = Patterns(written)
        if keyword == "host" and hosts.are_names:
            for name in dict.fromkeys(hosts.names):
                self._named.setdefault(name, []).append(len(self.blocks))
        else:
            self._others.append(len(self.blocks))
        self.blocks.append(Block(keyword, hosts, written, _criteria(arguments) if keyword == "match" else []))

    def blocks_of(self, host: str) -> Iterator[Block]:
        """Yield the blocks that may apply to ``host``, in their order."""
        for index in sorted([*self._others, *self._named.get(host.lower(), ())]):
            yield self.blocks[index]


class ConfigFiles:
    """Caches configuration files and their includes, so that each is read once for several hosts."""

    def __init__(self) -> None:
        self._files: dict[tuple[Path, bool], ConfigFile] = {}
        self._included: dict[tuple[tuple[str, ...], Path], list[Path]] = {}

    def read(self, path: Path, *, strict: bool) -> ConfigFile:
        """Return the file at ``path``, empty if missing; ``strict`` refuses one that others may write to."""
        if (path, strict) not in self._files:
            self._files[path, strict] = ConfigFile(path, strict=strict)
        return self._files[path, strict]

    def included(self, names: Sequence[str], base: Path) -> list[Path]:
        """Return the files that match the patterns ``names``, relative ones below ``base``."""
        key = (tuple(names), base)
        if key not in self._included:
            self._included[key] = list(_included(names, base))
        return self._included[key]

    def aliases(self, path: Path) -> list[str]:
        """Return the host names without wildcards in the file at ``path`` and its includes, in their order."""
        found: dict[str, None] = {}
        self._collect(path, found, set())
        return list(found)

    def _collect(self, path: Path, found: dict[str, None], seen: set[Path]) -> None:
        seen.add(path)
        for block in self.read(path, strict=True).blocks:
            found |= dict.fromkeys(name for name in block.written if not _SPECIAL & set(name))
            for _, keyword, arguments in block.lines:
                if keyword == "include":
                    for file in self.included(arguments, Path.home() / ".ssh"):
                        if file not in seen:
                            self._collect(file, found, seen)


def _criteria(words: Sequence[str]) -> Criteria:
    remaining = iter(words)
    found = []
    for word in remaining:
        criterion = word.lower().removeprefix("!")
        patterns = [] if criterion in WITHOUT_PATTERNS else next(remaining, "").split(",")
        found.append((criterion, word.startswith("!"), Patterns(patterns)))
    return found


def _lines(path: Path, *, strict: bool) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number, lower-case keyword and arguments of each line; a missing file has none.

    :param strict: whether to refuse a file that others than its owner, this user or root may write to.
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
        if "\0" in line:
            # No path and no name has one, and the system's calls raise other errors for it.
            raise TransportUnsupported(f"{shown(path)}:{number}: a NUL is not text.")
        try:
            yield number, found[1].lower(), _arguments(found[2])
        except ValueError:
            raise TransportUnsupported(f"{shown(path)}:{number}: a quotation mark has no partner.") from None


def _arguments(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        # The quotation mark may be part of a comment.
        return shlex.split(text, comments=True)
    comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def _included(names: Sequence[str], base: Path) -> Iterator[Path]:
    """Yield the files that match the patterns ``names``, relative ones below ``base``."""
    for name in names:
        pattern = home_expanded(name)
        anchored = pattern if pattern.is_absolute() else base / pattern
        # Path.glob() would also find hidden files, such as those that editors make.
        found = sorted(glob.glob(str(anchored)))  # noqa: PTH207
        yield from (path for path in map(Path, found) if not path.is_dir())


def home_expanded(name: str) -> Path:
    """Return ``name`` with a leading ``~`` or ``~user`` replaced, if that home exists."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser() raises where this leaves the name alone


def shown(path: Path) -> str:
    """Return the path for clients, without the daemon user's home directory."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
