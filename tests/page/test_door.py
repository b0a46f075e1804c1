"""The page's door in a browser: who gets in, who does not, and what stays outside."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.api.wire import bearer, client_of, send
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.page.conftest import Visit
from tests.page.wire import ticket_of
from tests.rights.wire import create

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.page.browser import Visitor

pytestmark = pytest.mark.needs("chromium", "libatomic")

ASK = """path => fetch(path, {method: "POST", body: "{}", headers: {"Content-Type": "application/json",
    "Authorization": "Bearer " + Object.values(sessionStorage).find(value => value.length === 43)}}
).then(answer => answer.status)"""
"""Asks the API as the page does."""


def test_a_ticket_opens_the_page_and_leaves_no_trace(daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(daemon)
    assert page.evaluate(ASK, "/daemon/status") == 200
    assert "login" not in page.url
    assert page.evaluate("document.cookie + Object.keys(localStorage).filter(key => /token/i.test(key))") == ""
    page.reload()
    assert page.evaluate(ASK, "/daemon/status") == 200
    page.go_back()
    assert "login" not in page.url
    # What was before the page belongs to nobody, and who comes next could not tidy up from there.
    page.go_forward()


def test_without_a_session_the_page_says_how_to_log_in(daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.new_page()
    page.goto(daemon.url)
    page.get_by_text("connmgr web").first.wait_for()


def test_a_ticket_that_was_used_says_so_and_opens_nothing(daemon: Daemon, visitor: Visitor) -> None:
    ticket = ticket_of(daemon)
    send(daemon.url, "/web/login", {"ticket": ticket})
    page = visitor.new_page()
    page.goto(f"{daemon.url}/#login={ticket}")
    page.get_by_text("connmgr web").first.wait_for()
    assert page.get_by_text("ticket").first.is_visible()
    assert ticket not in page.url
    # Chromium reports any answer that is an error.
    visitor.forgive("403")


def test_another_visitor_and_another_tab_are_not_logged_in(daemon: Daemon, visit: Visit) -> None:
    mine, other = visit(), visit()
    mine.opened(daemon)
    for one in (mine, other):
        page = one.new_page()
        page.goto(daemon.url)
        page.get_by_text("connmgr web").first.wait_for()


def test_a_page_that_only_watches_says_that_its_token_was_revoked(own_daemon: Daemon, visitor: Visitor) -> None:
    holder = create(own_daemon, "connection.read", "terminal", "shell.any")
    page = visitor.opened(own_daemon, "#/hub", {"Authorization": f"Bearer {holder.secret}"})
    row = page.get_by_role("treegrid", name="Connections").get_by_role("row").filter(has_text="local machine")
    # The last of what the page asks for: what is asked for meanwhile is refused, which Chromium reports.
    row.locator(".time > *").wait_for()
    visitor.settle(page)
    with client_of(own_daemon) as client:
        client.token.revoke(holder.id)
    page.get_by_role("alert").get_by_text("revoked").wait_for()
    page.get_by_text("connmgr web").first.wait_for()
    assert page.get_by_text("local machine").count() == 0
    assert page.evaluate("sessionStorage.getItem('connmgr.token')") is None


def test_a_page_whose_daemon_was_started_again_says_so(own_daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(own_daemon)
    page.get_by_text("local machine", exact=True).wait_for()
    own_daemon.kill()
    again = Daemon(own_daemon.home, "--port", own_daemon.url.rpartition(":")[2])
    try:
        page.get_by_text("the daemon was started again").wait_for()
        page.get_by_text("To log in, run this").wait_for()
    finally:
        again.stop()
    visitor.provokes = True


def test_the_policy_stops_scripts_and_styles_that_are_not_the_pages_own(daemon: Daemon, visitor: Visitor) -> None:
    visitor.provokes = True
    page = visitor.opened(daemon)
    page.add_init_script("window.broken = 0;")
    found = page.evaluate(
        """async () => {
            const attempts = {
                markup: () => { document.body.innerHTML = "<img src=x onerror='window.broken = 1'>"; },
                fragment: () => document.body.append(document.createRange().createContextualFragment("<b>b</b>")),
                written: () => document.write("<script>window.broken = 1</script>"),
                inline: () => {
                    const script = document.createElement("script");
                    script.append("window.broken = 1");
                    document.head.append(script);
                },
                address: () => { document.createElement("script").src = "data:text/javascript,window.broken=1"; },
                handler: () => document.body.setAttribute("onclick", "window.broken = 1"),
                frame: () => { document.createElement("iframe").srcdoc = "<script>top.broken = 1</script>"; },
                worker: () => new Worker("data:text/javascript,1"),
                policy: () => trustedTypes.createPolicy("default", {createHTML: text => text}),
                // Later: the protocol of playwright allows it while it evaluates this function.
                evaluated: () => new Promise((done, fail) => setTimeout(() => {
                    try { done(Function("window.broken = 1")()); } catch (error) { fail(error); }
                })),
                elsewhere: () => fetch("http://127.0.0.1:9/"),
                style: () => {
                    const style = document.createElement("style");
                    style.append("body { outline: 3px solid red }");
                    document.head.append(style);
                },
            };
            const outcome = {};
            for (const [name, attempt] of Object.entries(attempts)) {
                try {
                    await attempt();
                    outcome[name] = "allowed";
                } catch (error) {
                    outcome[name] = error.name;
                }
            }
            document.body.click();
            return [outcome, window.broken, getComputedStyle(document.body).outlineStyle];
        }"""
    )
    outcome, broken, outline = found
    # An inline script and a style are taken into the tree, and do nothing there.
    assert {name for name, what in outcome.items() if what == "allowed"} <= {"inline", "style"}, outcome
    assert (broken, outline) in ((None, "none"), (0, "none"))
    eventually(
        lambda: page.evaluate("1") and any("Content Security Policy" in fault for fault in visitor.faults),
        "Chromium reports the violations",
    )


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    """The address of a page of somebody else's, on another port of this machine."""

    class Hostile(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>hostile</title><p>hostile</p>")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever, name="hostile-page")
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def stranger(hostile: str, visitor: Visitor) -> Page:
    """A page of somebody else's, in the browser of somebody who is logged in."""
    page = visitor.new_page()
    page.goto(hostile)
    return page


def test_a_hostile_page_reads_and_sends_nothing(daemon: Daemon, visitor: Visitor, stranger: Page) -> None:
    visitor.provokes = True
    visitor.opened(daemon)
    ticket = ticket_of(daemon)
    # With the right token, too: it would still not be the page's own request.
    found = stranger.evaluate(
        """([url, authorization, ticket]) => {
            const seen = promise => promise.then(answer => answer.type + answer.status, error => error.name);
            const json = {"Content-Type": "application/json"};
            return Promise.all([
                seen(fetch(url + "/")),
                seen(fetch(url + "/page/main.js")),
                seen(fetch(url + "/daemon/status", {method: "POST", headers: authorization, body: "{}"})),
                seen(fetch(url + "/web/login", {method: "POST", headers: json, body: JSON.stringify({ticket})})),
                seen(fetch(url + "/web/login", {method: "POST", mode: "no-cors", body: JSON.stringify({ticket})})),
                import(url + "/page/main.js").then(() => "ran", error => error.name),
            ]);
        }""",
        [daemon.url, bearer(daemon), ticket],
    )
    # An opaque answer to the last fetch but one would tell nothing either; the ticket shows whether it was taken.
    assert [one for one in found if one not in ("TypeError", "opaque0")] == []
    assert send(daemon.url, "/web/login", {"ticket": ticket}).status == 200, "the hostile page has used the ticket"


def test_a_hostile_page_posts_no_form_opens_no_stream_and_frames_nothing(
    daemon: Daemon, visitor: Visitor, stranger: Page
) -> None:
    visitor.provokes = True
    socket = stranger.evaluate(
        """url => new Promise(done => {
            const socket = new WebSocket(url.replace("http", "ws") + "/shell/pipe", ["connmgr.v1"]);
            socket.onopen = () => done("open");
            socket.onerror = () => done("refused");
        })""",
        daemon.url,
    )
    assert socket == "refused"
    framed = stranger.evaluate(
        """url => new Promise(done => {
            const frame = document.createElement("iframe");
            frame.src = url + "/";
            frame.onload = () => done(frame.contentDocument === null ? "opaque" : "open");
            document.body.append(frame);
        })""",
        daemon.url,
    )
    assert framed == "opaque"
    assert all("connmgr web" not in frame.content() for frame in stranger.frames[1:])
    with stranger.expect_navigation() as posted:
        stranger.evaluate(
            """url => {
                const form = document.createElement("form");
                form.method = "POST";
                form.action = url + "/daemon/stop";
                document.body.append(form);
                form.submit();
            }""",
            daemon.url,
        )
    assert posted.value.status == 403
    assert daemon.running


def test_a_name_that_was_made_to_resolve_to_this_machine_gets_nothing(daemon: Daemon, visitor: Visitor) -> None:
    visitor.provokes = True
    page = visitor.new_page()
    # Chromium resolves each name below localhost to this machine, as a rebound name would be.
    answer = page.goto(daemon.url.replace("127.0.0.1", "rebound.localhost"))
    assert answer is not None
    assert answer.status == 421
    assert page.evaluate("fetch('/web/login', {method: 'POST', body: '{}'}).then(answer => answer.status)") == 421


def test_the_reference_tries_an_endpoint_with_the_pages_token(daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.new_page()
    page.goto(f"{daemon.url}/docs#daemon-version")
    assert page.get_by_role("button", name="Try it").count() == 0
    page = visitor.opened(daemon)
    page.goto(f"{daemon.url}/docs#daemon-version")
    page.locator("#daemon-version").get_by_role("button", name="Try it").click()
    page.locator("#daemon-version").get_by_role("button", name="Send").click()
    page.locator("#daemon-version pre[role=status]", has_text="buildVersion").wait_for()
