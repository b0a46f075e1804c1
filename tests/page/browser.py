"""Debian's Chromium for tests: pages of a daemon, which fail their test by any error on the console."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

from tests.components import program
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.page.wire import ticket_of

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium without a window."""
    # Graphics would be drawn by the main processor, which takes longer and shows the same.
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    options = ["--disable-dev-shm-usage", "--disable-gpu", *root]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=options)
        try:
            yield browser
        finally:
            browser.close()


UNHURRIED = """
const begin = setTimeout;
window.setTimeout = (work, wait, ...given) => begin(work, wait >= 5000 ? 20 * wait : wait, ...given);
"""
"""Messages that go by themselves stay until a test on a loaded machine has read them and pressed their buttons."""

GO = """address => new Promise(done => {
    const drawn = () => requestAnimationFrame(() => setTimeout(() => setTimeout(done)));
    if (location.hash === address) return drawn();
    addEventListener("hashchange", drawn, { once: true });
    location.hash = address;
})"""
"""Goes to an address of the page, and resolves when its view is drawn and has begun to ask for what it shows."""

IS_READ = """document.querySelector("#content")?.textContent.trim() && !document.querySelector("#content .waiting")"""


@dataclass
class Visitor:
    """One user's browser: what its pages keep is shared with no other visitor, and its faults are kept in ``faults``.

    A fault is whatever Chromium reports on the console as an error: exceptions, violations of the policy, files that
    are missing. A test that provokes certain ones names them to :meth:`forgive`.
    """

    context: BrowserContext
    faults: list[str] = field(default_factory=list)
    provokes: bool = False
    """Set by a test that tries what is forbidden: Chromium reports faults whenever it likes."""
    _forgiven: list[str] = field(default_factory=list)
    _asked: set[Request] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.context.set_default_timeout(DEADLINE_SECONDS * 1000)
        self.context.add_init_script(UNHURRIED)
        self.context.on("console", lambda message: self._note(message.type, f"{message.text} ({message.location})"))
        self.context.on("weberror", lambda error: self.faults.append(str(error.error)))
        self.context.on("request", lambda request: self._asked.add(request))
        for end in ("requestfinished", "requestfailed"):
            self.context.on(end, lambda request: self._asked.discard(request))

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

    def settle(self, page: Page, address: str = "") -> None:
        """Wait until the page shows a view and asks nothing more; first go to ``address``, such as ``#/hub``."""
        if address:
            page.evaluate(GO, address)
        eventually(lambda: page.evaluate(IS_READ) and not self._asked, f"the view {address} is there")

    def forgive(self, word: str) -> None:
        """Expect a fault that contains ``word``, and forget all such at the end.

        The test fails if there is none: Chromium may report it later than the page shows it.
        """
        self._forgiven.append(word)

    def leave(self) -> list[str]:
        """Close the browser's pages, and return its faults that were not expected."""
        for word in self._forgiven:
            eventually(lambda word=word: self._has_heard(word), f"Chromium reports a fault with {word!r}")
        self.context.close()
        if self.provokes:
            return []
        return [fault for fault in self.faults if not any(word in fault for word in self._forgiven)]

    def _has_heard(self, word: str) -> bool:
        # What Chromium has reported is received while it answers something.
        self.context.cookies()
        return any(word in fault for fault in self.faults)
