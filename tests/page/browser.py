"""Debian's Chromium for tests: pages of a daemon, which fail their test by any error on the console."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.components import program
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.page.wire import ticket_of

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium without a window."""
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=options)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visitor:
    """One user's browser: what its pages keep is shared with no other visitor, and its faults are kept in ``faults``.

    A fault is whatever Chromium reports on the console as an error: exceptions, violations of the policy, files that
    are missing. A test that provokes certain ones removes them by :meth:`forgive`.
    """

    context: BrowserContext
    faults: list[str] = field(default_factory=list)
    provokes: bool = False
    """Set by a test that tries what is forbidden: Chromium reports faults whenever it likes."""

    def __post_init__(self) -> None:
        self.context.set_default_timeout(DEADLINE_SECONDS * 1000)
        self.context.on("console", lambda message: self._note(message.type, f"{message.text} ({message.location})"))
        self.context.on("weberror", lambda error: self.faults.append(str(error.error)))

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "assert"}:
            self.faults.append(text)

    def opened(self, daemon: Daemon, view: str = "", authorization: dict[str, str] | None = None) -> Page:
        """Return a new page that is logged in with the owner's rights, or of whoever sends ``authorization``.

        ``view`` is the address of a view, such as ``#/hub``.
        """
        page = self.context.new_page()
        page.goto(f"{daemon.url}/#login={ticket_of(daemon, authorization)}")
        # Not by wait_for_function, which evaluates a text within the page: its policy forbids that.
        is_in = "sessionStorage.length > 0 && !location.hash.startsWith('#login')"
        eventually(lambda: page.evaluate(is_in), "the page is logged in")
        if view:
            page.evaluate("view => { location.hash = view; }", view)
        return page

    def forgive(self, *words: str) -> None:
        """Forget the faults that contain one of these words; each must have happened.

        :raises AssertionError: one has not.
        """
        for word in words:
            kept = [fault for fault in self.faults if word not in fault]
            assert len(kept) < len(self.faults), f"no fault has {word!r}: {self.faults}"
            self.faults[:] = kept
