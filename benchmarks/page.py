"""The daemon's page in Chromium: its bytes, the time until it is seen, 5,000 machines, keys, memory, and fifty pages.

Run it with ``python -m benchmarks.page``; it takes about two minutes. Chromium has no window and draws with the main
processor, as in the tests: a computer with a screen draws faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from statistics import median
from typing import Any

import psutil
from playwright.sync_api import Browser, Page

from benchmarks.daemon import LOCAL_MACHINE, temporary_daemon
from benchmarks.terminals import Connmgr, User
from benchmarks.timing import percentile, print_table
from connmgr.api.page_files import PAGE, PageFiles
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.events.listening import ListeningSocket
from tests.page.browser import Visitor, chromium
from tests.page.wire import login

REPEAT = "python -m benchmarks.page"
MACHINES = 5000
LOADS = 10
SCROLL_MS = 4000
SEARCHES = ("node4", "node49", "node499", "node4999", "rack7", "{node1,node2}*")
KEYS = 100
TERMINALS = 8
SCROLLBACK = 5000
PAGES = 50
WATCHED_SECONDS = 30
"""Two rounds of the lines by which streams show that they are alive, and the end of the connections that pages left."""

READS: dict[str, dict[str, Any]] = {
    "/token/info": {},
    "/category/query": {"filter": "*"},
    "/connection/query": {"categoryFilter": "*", "connectionFilter": "*", "typeFilter": "*", "names": True},
    "/connection/types": {},
    "/shell/list": {},
    "/tunnel/query": {},
    "/job/query": {"states": ["starting", "running"]},
    "/terminal/query": {},
}
"""What a page asks for when it is opened."""

OBSERVED = """
new MutationObserver(() => {
    window.rowsAt ??= document.querySelector("#hub-rows .row") ? performance.now() : undefined;
}).observe(document, {childList: true, subtree: true});
const Native = WebSocket;
window.WebSocket = class extends Native {
    constructor(...given) {
        super(...given);
        this.addEventListener("message", () => { window.messageAt = performance.now(); });
    }
};
"""
"""Notes when the first machine is drawn, and when the last message came."""

SCROLL = """lasting => new Promise(done => {
    const rows = document.getElementById("hub-rows");
    const frames = [];
    let before = performance.now();
    const end = before + lasting;
    const step = at => {
        frames.push(at - before);
        before = at;
        rows.scrollTop += 137;
        if (rows.scrollTop + rows.clientHeight >= rows.scrollHeight - 1) rows.scrollTop = 0;
        at < end ? requestAnimationFrame(step) : done(frames.slice(1));
    };
    requestAnimationFrame(step);
})"""
"""Scrolls by four rows a frame, and resolves to the milliseconds between frames."""

SEARCH = """wanted => new Promise(done => {
    const field = document.querySelector("input.find");
    field.value = wanted;
    const began = performance.now();
    field.dispatchEvent(new Event("input", {bubbles: true}));
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""
"""Types into the search, and resolves to the milliseconds until the frame with its result is drawn."""

KEY = """() => new Promise((done, fail) => {
    const field = document.querySelector(".xterm-helper-textarea");
    const rows = document.querySelector(".xterm-rows");
    const given = {key: "x", code: "KeyX", keyCode: 88, bubbles: true, cancelable: true};
    const late = setTimeout(() => fail(new Error("no echo")), 5000);
    const began = performance.now();
    window.messageAt = undefined;
    const drawn = new MutationObserver(() => {
        if (window.messageAt === undefined) return;
        drawn.disconnect();
        clearTimeout(late);
        done([window.messageAt - began, performance.now() - began]);
    });
    drawn.observe(rows, {childList: true, subtree: true, characterData: true});
    field.dispatchEvent(new KeyboardEvent("keydown", given));
    field.dispatchEvent(new KeyboardEvent("keypress", {...given, charCode: 120, keyCode: 120}));
})"""
"""Presses a key in the terminal, and resolves to the milliseconds until its echo has come, and until it is drawn."""


def main() -> None:
    """Measure all of it."""
    _bytes()
    with temporary_daemon() as daemon, chromium() as browser:
        _machines(daemon)
        _opening(daemon, browser)
        _rows(daemon, browser)
    with temporary_daemon("--max-connection-terminals", "20") as daemon, chromium() as browser:
        _echo(daemon, browser)
        _memory(daemon, browser)
    # A daemon of its own: that of the terminals looks each second whether one of them waits for input.
    with temporary_daemon() as daemon:
        _pages(daemon)


def _bytes() -> None:
    """Print what a browser that has nothing yet gets for the hub, and what all views are."""
    own = [path for path in PAGE.rglob("*") if path.suffix in {".js", ".css", ".html"} and "vendor" not in path.parts]
    html = (PAGE / "index.html").read_text()
    first = [path for path in own if f"/page/{path.relative_to(PAGE)}" in html or path.name == "index.html"]
    vendor = [path for path in (PAGE / "vendor").iterdir() if path.suffix in {".js", ".mjs", ".css"}]
    preact = [path for path in vendor if path.name == "htm-preact.js"]
    rows = [
        (name, str(len(paths)), f"{_size(paths):,}", f"{_packed(paths):,}")
        for name, paths in (
            ("ours, for the hub", first),
            ("ours, all views", own),
            ("preact and htm", preact),
            ("xterm, with the first terminal", [path for path in vendor if path not in preact]),
        )
    ]
    print_table("Bytes of the page", ("", "files", "bytes", "gzipped"), rows, repeat=REPEAT)


def _size(paths: Sequence[Any]) -> int:
    return sum(path.stat().st_size for path in paths)


def _packed(paths: Sequence[Any]) -> int:
    """Each file by itself, as the daemon delivers it."""
    files = PageFiles()
    return sum(len(files.get(path.relative_to(PAGE).as_posix()).packed) for path in paths)


def _machines(daemon: Daemon) -> None:
    """Store machines in fifty categories."""
    entries = [
        {
            "name": f"node{number}",
            "data": {"type": "ssh", "host": f"node{number}.example.com"},
            "category": ["fleet", f"rack{number % 50}"],
        }
        for number in range(MACHINES)
    ]
    daemon.client.post("/connection/apply", add=entries)


@contextmanager
def _visitor(browser: Browser) -> Iterator[Visitor]:
    visitor = Visitor(browser.new_context(viewport={"width": 1280, "height": 800}))
    visitor.context.add_init_script(OBSERVED)
    try:
        yield visitor
    finally:
        faults = visitor.leave()
        if faults:
            raise RuntimeError(f"The page has reported errors: {faults}")


def _opening(daemon: Daemon, browser: Browser) -> None:
    """Print how long it takes until something is painted, and until machines are seen."""
    taken: dict[str, list[tuple[float, float]]] = {"new browser": [], "reload": []}
    for _ in range(LOADS):
        with _visitor(browser) as visitor:
            page = visitor.opened(daemon)
            taken["new browser"].append(_painted(page))
            page.reload()
            taken["reload"].append(_painted(page))
    rows = []
    for name, times in taken.items():
        paints, machines = zip(*times, strict=True)
        rows.append((name, f"{median(paints):.0f}", f"{max(paints):.0f}", f"{median(machines):.0f}"))
    heads = ("", "first paint, median ms", "longest", "machines are drawn, median ms")
    print_table(f"The page opens, {MACHINES:,} machines, {LOADS} times", heads, rows, repeat=REPEAT)


def _painted(page: Page) -> tuple[float, float]:
    eventually(lambda: page.evaluate("window.rowsAt"), "machines are drawn")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return paint, page.evaluate("window.rowsAt")


def _rows(daemon: Daemon, browser: Browser) -> None:
    """Print how evenly the machines scroll, and how long a search takes."""
    with _visitor(browser) as visitor:
        page = visitor.opened(daemon)
        visitor.settle(page)
        frames = page.evaluate(SCROLL, SCROLL_MS)
        searches = [page.evaluate(SEARCH, wanted) for wanted in SEARCHES]
    row = (
        f"{1000 * len(frames) / sum(frames):.0f}",
        f"{percentile(frames, 99):.0f}",
        f"{max(frames):.0f}",
        f"{median(searches):.0f}",
        f"{max(searches):.0f}",
    )
    heads = ("frames a second", "99 % of frames within ms", "longest", "a search, median ms", "longest")
    print_table(f"{MACHINES:,} machines scroll for {SCROLL_MS / 1000:.0f} s", heads, [row], repeat=REPEAT)


def _echo(daemon: Daemon, browser: Browser) -> None:
    """Print how long a key takes until its echo, in ``connmgr shell`` and in the page, on the same terminal."""
    terminal = daemon.client.terminal.open(LOCAL_MACHINE, command="exec cat")
    subject = Connmgr(daemon, LOCAL_MACHINE)
    subject.words = [*subject.words, "--attach"]
    user = User(subject)
    # Until then keys are echoed by this program's own terminal.
    eventually(lambda: daemon.client.terminal.query()[-1]["clients"] == 1, "connmgr shell is attached")
    user.type(b"ready\r")
    user.expect(b"ready\r\nready")
    shell = []
    for _ in range(KEYS):
        began = time.perf_counter()
        user.type(b"x")
        user.expect(b"x")
        shell.append((time.perf_counter() - began) * 1e3)
    user.type(subject.detach)
    user.wait()
    with _visitor(browser) as visitor:
        page = visitor.opened(daemon)
        _attach(page, terminal)
        came, drawn = zip(*(page.evaluate(KEY) for _ in range(KEYS)), strict=True)
    daemon.client.terminal.close(terminal)
    rows = [
        (name, f"{median(times):.1f}", f"{percentile(times, 95):.1f}")
        for name, times in (("connmgr shell", shell), ("page, the echo came", came), ("page, it is drawn", drawn))
    ]
    print_table(f"A key until its echo, {KEYS} keys", ("", "median ms", "p95 ms"), rows, repeat=REPEAT)


def _attach(page: Page, terminal: str) -> None:
    page.evaluate("address => { location.hash = address; }", f"#/terminal/{terminal}")
    page.locator(".tabs .here .dot.attached").wait_for(state="attached")
    eventually(lambda: page.evaluate("document.querySelector('.xterm-rows') !== null"), "the terminal is drawn")


def _memory(daemon: Daemon, browser: Browser) -> None:
    """Print what a page with terminals needs, each with as many lines as it keeps."""
    with _visitor(browser) as visitor:
        page = visitor.opened(daemon)
        visitor.settle(page)
        session = visitor.context.new_cdp_session(page)
        session.send("Performance.enable")
        before = _heap(session), _renderer()
        for _ in range(TERMINALS):
            command = f"read line; seq -f '%070.0f' {SCROLLBACK}; echo all; exec cat"
            terminal = daemon.client.terminal.open(LOCAL_MACHINE, command=command)
            _attach(page, terminal)
            page.keyboard.press("Enter")
            found = "[...document.querySelectorAll('.xterm-rows')].some(rows => rows.textContent.includes('all'))"
            eventually(partial(page.evaluate, found), "the lines are drawn")
        session.send("HeapProfiler.collectGarbage")
        after = _heap(session), _renderer()
    rows = [
        (name, *(f"{size / 2**20:.0f}" for size in sizes))
        for name, sizes in (("the hub alone", before), (f"with {TERMINALS} terminals", after))
    ]
    title = f"Memory of a page, terminals with {SCROLLBACK:,} lines"
    print_table(title, ("", "JavaScript MiB", "its process MiB"), rows, repeat=REPEAT)


def _heap(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize"))


def _renderer() -> int:
    """The memory of the largest process of Chromium that runs pages, shared libraries not counted."""
    sizes = []
    for one in psutil.Process().children(recursive=True):
        # A process that was only prepared may end at any moment.
        with suppress(psutil.NoSuchProcess):
            if "--type=renderer" in one.cmdline():
                sizes.append(one.memory_full_info().uss)
    return max(sizes)


def _pages(daemon: Daemon) -> None:
    """Print what the daemon needs for pages: each a session with its stream, which has read the lists once."""
    process = psutil.Process(daemon.pid)
    with ExitStack() as opened:
        # The first one loads modules, which are not counted.
        opened.enter_context(_opened(daemon))
        before, threads = process.memory_info().rss, process.num_threads()
        for _ in range(PAGES):
            opened.enter_context(_opened(daemon))
        grown, more = process.memory_info().rss - before, process.num_threads() - threads
        used = _cpu(process)
        time.sleep(WATCHED_SECONDS)
        share = (_cpu(process) - used) / WATCHED_SECONDS
        told = _told(daemon, opened)
    row = (f"{grown / PAGES / 1024:.0f}", str(more), f"{share * 100:.2f}", f"{told * 1e3:.1f}")
    heads = ("KiB each", "threads more", "% of a core", "ms until all know of a change")
    print_table(f"The daemon with {PAGES} pages", heads, [row], repeat=REPEAT)


@contextmanager
def _opened(daemon: Daemon) -> Iterator[ListeningSocket]:
    session = login(daemon)
    ticket = session.send("/event/ticket").json["ticket"]
    with ListeningSocket(daemon.url, None, ticket=ticket) as listening:
        listening.line()
        for path, fields in READS.items():
            answer = session.send(path, **fields)
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.body!r}")
        yield listening


def _told(daemon: Daemon, opened: ExitStack) -> float:
    """Return the seconds until fifty more pages have heard of a new machine."""
    listening = [opened.enter_context(_opened(daemon)) for _ in range(PAGES)]
    ends: list[float] = []

    def hear(one: ListeningSocket) -> None:
        while one.line()["kind"] != "connection":
            pass
        ends.append(time.perf_counter())

    threads = [threading.Thread(target=hear, args=(one,)) for one in listening]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    daemon.client.connection.add("new", {"type": "ssh", "host": "new.example.com"})
    for thread in threads:
        thread.join()
    return max(ends) - began


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
