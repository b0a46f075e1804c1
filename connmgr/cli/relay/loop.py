"""Waits for several descriptors at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

READABLE, WRITABLE = select.POLLIN, select.POLLOUT
WAKE_BYTES = 512


class Task(Protocol):
    """Something that the loop runs until it is ``over``."""

    over: bool

    def wanted(self) -> Iterable[tuple[int, int]]:
        """Return the descriptors to wait for, each with READABLE or WRITABLE, or with both."""

    def ready(self, descriptor: int) -> None:
        """Proceed: ``descriptor`` is ready as wanted, or at its end, or broken."""


class Loop:
    """Runs ``tasks``; a task may add others."""

    def __init__(self, *tasks: Task) -> None:
        self.tasks = list(tasks)

    def run(self, until: Callable[[], bool]) -> None:
        """Run until ``until()`` is true, which is checked after each round."""
        waited: dict[int, int] = {}
        poll = select.poll()
        while not until():
            self.tasks = [task for task in self.tasks if not task.over]
            wanted = {descriptor: (mask, task) for task in self.tasks for descriptor, mask in task.wanted()}
            for descriptor in waited.keys() - wanted.keys():
                poll.unregister(descriptor)
            for descriptor, (mask, _) in wanted.items():
                if waited.get(descriptor) != mask:
                    poll.register(descriptor, mask)
            waited = {descriptor: mask for descriptor, (mask, _) in wanted.items()}
            for descriptor, _ in poll.poll():
                task = wanted[descriptor][1]
                if not task.over:
                    task.ready(descriptor)


class Signals:
    """A task that calls a function in the loop after a signal, so that it interrupts nothing."""

    over = False

    def __init__(self, calls: dict[signal.Signals, Callable[[], None]]) -> None:
        self._calls = calls
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)

    @contextlib.contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch the signals within the block."""
        before = {number: signal.signal(number, _leave_to_the_loop) for number in self._calls}
        woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._read)
            os.close(self._write)

    def wanted(self) -> Iterable[tuple[int, int]]:
        return [(self._read, READABLE)]

    def ready(self, descriptor: int) -> None:
        for number in set(os.read(self._read, WAKE_BYTES)):
            if number in self._calls:
                self._calls[signal.Signals(number)]()


def _leave_to_the_loop(number: int, _: object) -> None:
    """Do nothing: the loop reads the number from the descriptor that Python wrote it to."""
