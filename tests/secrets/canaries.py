"""Values that must not appear anywhere, and the search for them."""

from __future__ import annotations

import base64
import secrets
import stat
import threading
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path


def running_processes() -> set[Path]:
    """Return the directories of the running processes."""
    return {process for process in Path("/proc").iterdir() if process.name.isdigit()}


class Canaries:
    """Creates secret values with a common random stem, which finds all of them, in base64 too."""

    def __init__(self) -> None:
        self.stem = "Canary" + secrets.token_hex(12)
        self._numbers = count(1)
        self.given: list[str] = []
        # The base64 of the stem depends on the number of bytes before it, modulo three.
        spellings = [base64.b64encode(b"\0" * n + self.stem.encode())[4 if n else 0 : -4] for n in range(3)]
        self._spellings = [self.stem.encode(), self.stem.encode().hex().encode(), *spellings]

    def new(self) -> str:
        """Return another value."""
        self.given.append(f"{self.stem}-{next(self._numbers):02}")
        return self.given[-1]

    def also(self, *values: str) -> None:
        """Search for these values too, which have no stem."""
        self._spellings += [value.encode() for value in values]

    def within(self, content: bytes) -> bool:
        """Whether ``content`` has one of them."""
        return any(spelling in content for spelling in self._spellings)

    def found_in_files(self, directories: Iterable[Path]) -> list[str]:
        """Return the files below ``directories`` with one in their content or name."""
        paths = [path for directory in directories for path in directory.rglob("*")]
        files = [path for path in paths if stat.S_ISREG(path.lstat().st_mode)]
        assert files, "there is nothing to search"
        return [str(path) for path in files if self.within(path.read_bytes()) or self.within(str(path).encode())]

    def found_in_processes(self, but: Container[Path] = ()) -> set[str]:
        """Return the running processes, ``but`` some, with one in their arguments or environment."""
        found = set()
        for process in running_processes():
            if process not in but:
                for part in ("cmdline", "environ"):
                    with suppress(OSError):
                        content = (process / part).read_bytes()
                        if self.within(content):
                            found.add(f"{part} of process {process.name}: {content[:200]!r}")
        return found

    @contextmanager
    def watched_processes(self) -> Iterator[set[str]]:
        """Search all new processes again and again, and yield the set of finds."""
        found: set[str] = set()
        before = running_processes()
        over = threading.Event()
        rounds = count()

        def watch() -> None:
            while not over.wait(0.05):
                next(rounds)
                found.update(self.found_in_processes(before))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
        assert next(rounds) > 3, "the processes were hardly looked at"
