"""Terminals in the page: found again, shared, held back, and harmless whatever a remote host prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connmgr.client import LOCAL_MACHINE, Client
from tests.api.wire import client_of
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.page.conftest import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.page.browser import Visitor

pytestmark = pytest.mark.needs("chromium", "libatomic")

LONG_LINE = 100_000_000

SHOWS = """text => [...document.querySelectorAll(".xterm-rows")].some(
    rows => [...rows.children].some(row => row.textContent.replaceAll("\\u00a0", " ").includes(text)))"""
"""Whether a terminal of the page shows a text in one line."""


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client whose daemon runs no terminals before and after the test."""
    own = client_of(daemon)
    _close_all(own)
    yield own
    _close_all(own)
    own.close()


def _close_all(client: Client) -> None:
    for one in client.terminal.query():
        client.terminal.close(one["terminal"])


def _until(page: Page, condition: str, arg: str = "") -> None:
    # Not by wait_for_function, which evaluates texts within the page, and its policy forbids that.
    eventually(lambda: page.evaluate(condition, arg), f"the page fulfils {condition} of {arg!r}")


def _shows(page: Page, text: str) -> None:
    _until(page, SHOWS, text)


def _opened(page: Page) -> str:
    """Open a terminal on this machine by the keyboard, and return its uuid."""
    page.get_by_role("combobox", name="Open a terminal on").fill("local machine")
    # The machines may still be on their way to the page, and Enter chooses among those that are shown.
    page.get_by_role("option", name="local machine").first.wait_for()
    page.keyboard.press("Enter")
    _typable(page)
    return page.url.rpartition("/")[2]


def _typable(page: Page) -> None:
    _until(page, "document.activeElement?.classList.contains('xterm-helper-textarea')")
    page.locator(".tabs .here .dot.attached").wait_for(state="attached")


def _attach(page: Page, daemon: Daemon, terminal: str) -> None:
    page.goto(f"{daemon.url}/#/terminal/{terminal}")
    _typable(page)


def _button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


@pytest.mark.needs("vim")
def test_vim_is_found_again_after_a_reload_and_in_another_browser(
    daemon: Daemon, client: Client, visit: Visit, tmp_path: Path
) -> None:
    page = visit().opened(daemon, "#/terminal")
    terminal = _opened(page)
    page.keyboard.type(f"cd {tmp_path}; vim -u NONE notes\n")
    _shows(page, "[New")
    page.keyboard.type("ihello from a page")
    _shows(page, "hello from a page")
    page.reload()
    _typable(page)
    _shows(page, "hello from a page")
    other = visit().opened(daemon, "#/terminal")
    other.locator(f'a[href="#/terminal/{terminal}"]').click()
    _typable(other)
    _shows(other, "hello from a page")
    other.keyboard.type(" and another")
    _shows(page, "hello from a page and another")
    other.keyboard.press("Escape")
    other.keyboard.type(":wq\n")
    eventually(lambda: (tmp_path / "notes").is_file(), "vim has written the file")
    assert (tmp_path / "notes").read_text() == "hello from a page and another\n"
    assert [one["terminal"] for one in client.terminal.query() if one["state"] == "running"] == [terminal]


def test_the_window_sets_the_size_and_other_viewers_follow(daemon: Daemon, client: Client, visit: Visit) -> None:
    page = visit().opened(daemon, "#/terminal")
    terminal = _opened(page)

    def size() -> tuple[int, int]:
        [found] = [one for one in client.terminal.query() if one["terminal"] == terminal]
        return found["columns"], found["rows"]

    eventually(lambda: size()[0] > 100, "the window is wider than a terminal at first")
    wide = size()
    page.set_viewport_size({"width": 900, "height": 500})
    eventually(lambda: size()[0] < wide[0] and size()[1] < wide[1], "the terminal is as small as its window")
    own = size()
    phone = visit(viewport={"width": 390, "height": 600})
    other = phone.opened(daemon)
    _attach(other, daemon, terminal)
    eventually(lambda: size()[0] < own[0], "whoever attached last sets the size")
    page.get_by_role("button", name="use mine").wait_for()
    other.close()
    eventually(lambda: size() == own, "the size returns when they leave")
    page.get_by_role("button", name="use mine").wait_for(state="hidden")
    page.keyboard.type("stty size\n")
    _shows(page, f"{own[1]} {own[0]}")


def test_what_a_remote_host_prints_is_text_and_reaches_no_clipboard(
    daemon: Daemon, client: Client, visitor: Visitor
) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.opened(daemon, "#/terminal")
    pages = visitor.context.pages
    page.evaluate("navigator.clipboard.writeText('mine')")
    hostile = [
        r"\033]52;c;c3RvbGVu\007",
        r"\033]0;<img src=x onerror=alert(1)>\007",
        r"\033]8;;javascript:alert(1)\033\\script\033]8;;\033\\ ",
        r"\033]8;;http://127.0.0.1:9/%%3Cb%%3E\033\\website\033]8;;\033\\ <b>bold</b>",
    ]
    # Printed while a viewer is there: what came before is drawn by the daemon, without links.
    command = f"read -r line; printf '{''.join(hostile)}'; exec sleep 1000"
    _attach(page, daemon, client.terminal.open(LOCAL_MACHINE, command=command))
    page.keyboard.press("Enter")
    _shows(page, "script website <b>bold</b>")
    page.locator(".pane .title", has_text="<img src=x onerror=alert(1)>").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "mine"
    row = page.locator(".xterm-rows > div", has_text="script website")
    box = row.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 3, box["y"] + 5)
    page.mouse.move(box["x"] + 75, box["y"] + 5)
    page.mouse.move(box["x"] + 80, box["y"] + 5)
    page.locator(".xterm-cursor-pointer").wait_for()
    page.mouse.click(box["x"] + 80, box["y"] + 5)
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("http://127.0.0.1:9/%3Cb%3E").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    assert visitor.context.pages == pages


def test_a_line_without_end_freezes_nothing(daemon: Daemon, client: Client, visitor: Visitor) -> None:
    page = visitor.opened(daemon, "#/terminal")
    terminal = _opened(page)
    page.keyboard.type(f"head -c {LONG_LINE} /dev/zero | tr '\\0' x; echo o''ver\n")
    _shows(page, "xxxxxxxxxxxxxxxxxxxx")
    page.get_by_role("link", name="All").click()
    page.get_by_role("cell", name="local machine").first.wait_for()
    page.go_back()
    _typable(page)
    page.keyboard.press("Control+C")
    page.keyboard.type("echo ca''lm\n")
    assert client.terminal.screen(terminal, contains="calm", wait=25)
    _shows(page, "calm")


def test_a_terminal_whose_files_do_not_come_says_so_and_tries_again(
    daemon: Daemon, client: Client, visitor: Visitor
) -> None:
    visitor.forgive("ERR_FAILED")
    page = visitor.opened(daemon)
    page.route("**/xterm.mjs", lambda route: route.abort())
    terminal = client.terminal.open(LOCAL_MACHINE)
    page.evaluate("address => { location.hash = address; }", f"#/terminal/{terminal}")
    page.get_by_text("The daemon does not answer; trying again.").wait_for()
    page.unroute_all()
    _typable(page)


def test_an_end_says_how_and_offers_another(daemon: Daemon, client: Client, visitor: Visitor) -> None:
    page = visitor.opened(daemon, "#/terminal")
    terminal = _opened(page)
    page.keyboard.type("exit 3\n")
    page.get_by_text("The program ended with exit code 3.").wait_for()
    _button(page, "Open again").click()
    _until(page, "id => !location.hash.includes(id)", terminal)
    _typable(page)
    other = page.url.rpartition("/")[2]
    client.terminal.close(other)
    page.get_by_text("The terminal was closed.").wait_for()


def test_a_terminal_that_is_gone_says_so(daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(daemon, "#/terminal/8d5b0f0e-53a7-4c55-9a43-3e1fb8a0c8f2")
    page.get_by_text("The terminal is gone").wait_for()
    visitor.forgive("400")


def test_lines_are_pasted_after_a_question(daemon: Daemon, client: Client, visitor: Visitor) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.opened(daemon)
    terminal = client.terminal.open(LOCAL_MACHINE, command="exec cat -v")
    _attach(page, daemon, terminal)
    page.evaluate("navigator.clipboard.writeText('one word')")
    page.keyboard.press("Control+Shift+V")
    _shows(page, "one word")
    # ESC would end a bracket around the paste, and what follows would be keys.
    page.evaluate(r"navigator.clipboard.writeText('first\u001b[201~\nsecond')")
    page.keyboard.press("Control+Shift+V")
    question = page.get_by_role("dialog", name="Paste 17 characters in 2 lines?")
    question.get_by_text("first[201~").wait_for()
    question.get_by_role("button", name="Cancel").click()
    page.keyboard.press("Control+Shift+V")
    page.get_by_role("button", name="Paste", exact=True).last.click()
    _shows(page, "second")
    assert not any("^[" in line for line in client.terminal.screen(terminal)["lines"])


def test_panes_share_a_tab_and_its_address(daemon: Daemon, client: Client, visit: Visit) -> None:
    page = visit().opened(daemon, "#/terminal")
    first = _opened(page)
    page.keyboard.press("Control+Shift+Backslash")
    _until(page, "location.hash.includes(',')")
    _until(page, "document.querySelectorAll('.pane .xterm-rows').length === 2")
    second = page.url.rpartition(",")[2]
    _typable(page)
    page.keyboard.type("echo sec''ond\n")
    client.terminal.screen(second, contains="second", wait=25)
    assert not any("second" in line for line in client.terminal.screen(first)["lines"])
    other = visit().opened(daemon)
    other.goto(page.url)
    _until(other, "document.querySelectorAll('.pane .xterm-rows').length === 2")
    _shows(other, "second")


def test_a_phone_has_the_keys_that_its_keyboard_lacks(daemon: Daemon, client: Client, visit: Visit) -> None:
    page = visit(viewport={"width": 390, "height": 700}).opened(daemon)
    terminal = client.terminal.open(LOCAL_MACHINE, command="exec cat -v")
    _attach(page, daemon, terminal)
    _button(page, "Esc").click()
    _button(page, "↑").click()
    _button(page, "Ctrl").click()
    page.keyboard.type("x")
    _shows(page, "^[^[[A^X")


def test_a_search_finds_what_was_printed(daemon: Daemon, client: Client, visitor: Visitor) -> None:
    page = visitor.opened(daemon)
    terminal = client.terminal.open(LOCAL_MACHINE, command="seq 1 300; exec sleep 1000")
    _attach(page, daemon, terminal)
    _shows(page, "300")
    page.keyboard.press("Control+Shift+F")
    page.get_by_role("searchbox", name="Find in the output").fill("299")
    page.get_by_text("1 of 1").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("searchbox", name="Find in the output").wait_for(state="hidden")


LONG_RECORDING = r"""
const fetched = fetch;
window.fetch = async (path, options) => {
    if (path !== "/recording/read") return fetched(path, options);
    const header = JSON.stringify({ version: 3, term: { cols: 80, rows: 24 }, command: "long" });
    const printed = text => JSON.stringify([0.001, "o", text + "\r\n"]) + "\n";
    const encoded = text => new TextEncoder().encode(text);
    const piece = encoded(printed("x".repeat(78)).repeat(1000));
    const first = [encoded(header + "\n"), piece, piece, encoded(printed("the mark"))];
    let left = 100_000_000;
    return new Response(new ReadableStream({
        pull: async control => {
            if (!first.length) await others;
            const next = first.shift() ?? piece;
            control.enqueue(next);
            left -= next.length;
            if (left <= 0) control.close();
        },
    }));
};
const others = new Promise(done => { window.release = done; });
window.turns = 0;
const turn = () => { turns += 1; setTimeout(turn); };
turn();
"""
"""A recording of 100 MB, which is there as fast as it is read, but for its beginning only when it is released; and how
often anything else had its turn meanwhile."""


def test_a_page_that_reads_a_long_recording_does_other_things_meanwhile(daemon: Daemon, visit: Visit) -> None:
    visitor = visit(locale="en-GB")
    visitor.context.add_init_script(LONG_RECORDING)
    page = visitor.opened(daemon, "#/recordings/00000000-0000-4000-8000-000000000000")
    # It plays while the rest of it is still to come.
    page.get_by_role("button", name="Pause").click()
    page.get_by_text(re.compile(r"/ 0:02\+$")).wait_for()
    before = page.evaluate("release(), turns")
    page.get_by_text(re.compile(r"/ [\d:]+$")).wait_for()
    # However slow the machine is: about as often as 12 ms of reading are over.
    assert page.evaluate("turns") - before >= 20
    page.get_by_role("slider", name="Moment").evaluate(
        "field => { field.value = 2.001; field.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    _shows(page, "the mark")


def test_a_recording_is_replayed_searched_and_exported(daemon: Daemon, client: Client, visitor: Visitor) -> None:
    command = r"printf 'first\r\n'; sleep 0.3; printf '\033[31mSecond\033[0m <b>\r\n'"
    terminal = client.terminal.open(LOCAL_MACHINE, command=command, record=True)
    recorded = [terminal, False]
    eventually(
        lambda: recorded in [[one["recording"], one["active"]] for one in client.recording.query()],
        "the recording is complete",
    )
    page = visitor.opened(daemon, "#/recordings")
    page.get_by_role("searchbox").fill("second <B>")
    _button(page, "Find").click()
    page.get_by_role("list", name="Lines found").get_by_role("link").first.click()
    _shows(page, "first")
    page.get_by_role("searchbox", name="Find in this recording").fill("second")
    _button(page, "Next").click()
    page.get_by_text("1 of 1").wait_for()
    _shows(page, "Second <b>")
    with page.expect_download() as stored:
        _button(page, "Export").click()
    assert stored.value.suggested_filename == f"{terminal}.cast"
    header = json.loads(stored.value.path().read_text().splitlines()[0])
    assert (header["version"], header["command"]) == (3, command)
