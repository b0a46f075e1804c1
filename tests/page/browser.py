"""Debian's Chromium for tests: pages of a daemon, which fail their test by any error on the console."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, sync_playwright

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
    is_first: bool = True
    """Whether nobody has used the context before."""
    faults: list[str] = field(default_factory=list)
    provokes: bool = False
    """Set by a test that tries what is forbidden: Chromium reports faults whenever it likes."""
    _forgiven: list[str] = field(default_factory=list)
    _asked: set[Request] = field(default_factory=set)
    _origins: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.is_first:
            self.context.set_default_timeout(DEADLINE_SECONDS * 1000)
            self.context.add_init_script(UNHURRIED)
        self._heard: dict[str, Callable[[Any], None]] = {
            "console": self._note,
            "weberror": lambda error: self.faults.append(str(error.error)),
            "request": self._ask,
            "requestfinished": lambda request: self._asked.discard(request),
            "requestfailed": lambda request: self._asked.discard(request),
        }
        for event, heard in self._heard.items():
            self.context.on(event, heard)  # type: ignore[call-overload]

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "assert"}:
            self.faults.append(f"{message.text} ({message.location})")

    def _ask(self, request: Request) -> None:
        self._asked.add(request)
        self._origins.add("/".join(request.url.split("/", 3)[:3]))

    def new_page(self) -> Page:
        """Return a new page that shows nothing yet."""
        return self.context.new_page()

    def opened(self, daemon: Daemon, view: str = "", authorization: dict[str, str] | None = None) -> Page:
        """Return a new page that is logged in with the owner's rights, or of whoever sends ``authorization``.

        ``view`` is the address of a view, such as ``#/hub``.
        """
        page = self.new_page()
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
        self._end()
        if self.provokes:
            return []
        return [fault for fault in self.faults if not any(word in fault for word in self._forgiven)]

    def _end(self) -> None:
        self.context.close()

    def _has_heard(self, word: str) -> bool:
        # What Chromium has reported is received while it answers something.
        self.context.cookies()
        return any(word in fault for fault in self.faults)


EMPTY = "setTimeout(() => location.replace('about:blank'))"
"""Has a page show nothing. It goes there by itself, so Chromium keeps the page's process for the next page."""


@dataclass
class Guest(Visitor):
    """A visitor in a context that others use afterwards, who find nothing of what it has left there.

    Its first page stays, empty, as the first page of the next visitor: a new one, in a new process, costs as much as
    most of what a test does.
    """

    gives_back: Callable[[BrowserContext], None] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._left: Page | None = self.context.pages[0] if self.context.pages else None

    def new_page(self) -> Page:
        """Return a new page, or the one that the visitor before has left."""
        page, self._left = self._left, None
        return page or super().new_page()

    def _end(self) -> None:
        # Of several origins a page keeps things that only a page of each could remove.
        if self.provokes or len(self._origins) != 1 or not self.context.pages:
            self.context.close()
            return
        # What Chromium has reported is received while it answers something; what ends with the visit is no fault.
        self.context.cookies()
        for event, heard in self._heard.items():
            self.context.remove_listener(event, heard)
        page, *others = self.context.pages
        for other in others:
            other.close()
        self._empty(page, *self._origins)
        self.context.clear_cookies()
        self.context.clear_permissions()
        self.gives_back(self.context)

    def _empty(self, page: Page, origin: str) -> None:
        """Leave ``page`` as a new one is, which has shown ``origin`` alone."""
        # Before it is empty: nothing is drawn of it then, and movements may wait for that.
        page.mouse.move(0, 0)
        page.on("dialog", _accept)
        with page.expect_navigation(url="about:blank"):
            page.evaluate(EMPTY)
        page.remove_listener("dialog", _accept)
        page.unroute_all()
        page.set_viewport_size(DESKTOP)
        # An empty page that another one went to has the origin of that one.
        page.evaluate("sessionStorage.clear(); window.name = '';")
        session = self.context.new_cdp_session(page)
        session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        session.send("Page.resetNavigationHistory")
        session.detach()


def _accept(dialog: Dialog) -> None:
    """Leave a page where something is not saved: the browser asks."""
    dialog.accept()


class Contexts:
    """Contexts of one browser. Those without options are used again."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: list[BrowserContext] = []

    def visitor(self, **options: Any) -> Visitor:
        """Return a new visitor; ``options`` are those of playwright's ``new_context``."""
        if options:
            return Visitor(self._browser.new_context(**{"viewport": DESKTOP, **options}))
        used = self._free.pop() if self._free else None
        return Guest(used or self._browser.new_context(viewport=DESKTOP), used is None, gives_back=self._free.append)
