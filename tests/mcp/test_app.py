"""The app that shows an approval, in Chromium, with the host of the official SDK of MCP Apps."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.mcp import official
from tests.mcp.agent import LOCAL, refused
from tests.mcp.bridge import HttpBridge
from tests.rights import wire
from tests.rights.wire import Holder

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.usefixtures("official_clients"),
    pytest.mark.timeout(official.INSTALL_SECONDS + official.RUN_SECONDS),
]

SCOPES = ("connection.read", "shell.any", "job", "fs.read", "fs.write")
MARKUP = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"

POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; media-src 'self' data:; connect-src 'none'"
)
"""What a host sets for a document that declares no address."""

HOST = "https://host.test/"
APP = "https://app.test/"
PAGE = f"""<!doctype html><title>host</title><iframe sandbox="allow-scripts" src="{APP}"></iframe>
<script>
const frame = document.querySelector("iframe");
const sent = [];
addEventListener("message", (event) => {{ if (event.source === frame.contentWindow) sent.push(event.data); }});
</script>"""


class Host:
    """The page that has the app in a frame, and the SDK's host beside it; :meth:`pump` passes messages on."""

    def __init__(self, page: Page, process: subprocess.Popen[str]) -> None:
        self.page, self._process = page, process
        self.opened: list[str] = []
        self.methods: list[str] = []
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.first = self._lines.get(timeout=official.RUN_SECONDS)
        self._show()

    @property
    def app(self) -> Frame:
        return next(one for one in self.page.frames if one.url == APP)

    def text(self, id: str) -> str:
        return str(self.app.locator(f"#{id}").inner_text())

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Pass messages on until something holds."""

        def look() -> object:
            self.pump()
            return holds()

        eventually(look, what)

    def pump(self) -> None:
        assert self._process.stdin is not None
        for message in self.page.evaluate("sent.splice(0)"):
            self.methods.append(message.get("method", ""))
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        while not self._lines.empty():
            line = self._lines.get()
            if "opened" in line:
                self.opened.append(line["opened"])
            else:
                self.page.evaluate("message => frame.contentWindow.postMessage(message, '*')", line["message"])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))

    def _show(self) -> None:
        policy = {"Content-Security-Policy": POLICY}
        document = self.first["document"]["text"]
        self.page.route(APP, lambda route: route.fulfill(body=document, content_type="text/html", headers=policy))
        self.page.route(HOST, lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        self.page.goto(HOST)


@contextmanager
def hosted(bridge: HttpBridge, holder: Holder, approval: str, home: Path) -> Iterator[Host]:
    """Show an approval by the app, in a browser that reports any fault of it."""
    from tests.page.browser import DESKTOP, Visitor, chromium

    process = official.started("app_host.mjs", bridge.url, holder.secret, approval, home=home)
    try:
        with chromium() as browser:
            visitor = Visitor(browser.new_context(viewport=DESKTOP))
            yield Host(visitor.context.new_page(), process)
            assert visitor.leave() == []
    finally:
        process.kill()
        process.communicate()


def asked_for(bridge: HttpBridge, holder: Holder, tool: str, **arguments: Any) -> str:
    """Call a tool that needs an approval, without anybody who could be asked, and return the approval."""
    found: list[str] = []

    async def work() -> None:
        async with bridge.agent(holder) as client:
            found.append(refused(await client.call_tool(tool, {**LOCAL, **arguments}))["approval"])

    anyio.run(work)
    return found[0]


def test_an_edit_is_shown_with_its_change_and_decided_elsewhere(
    daemon: Daemon, bridge: HttpBridge, tmp_path: Path
) -> None:
    file = tmp_path / "unit"
    file.write_text("first\nExecStart=/bin/slep\n")
    rules = [
        {"effect": "allow", "path": "/**", "action": "fs.read"},
        {"effect": "ask", "path": "/**", "action": "fs.write"},
    ]
    holder = wire.create(daemon, *SCOPES, name="repairer", rules=rules)
    approval = asked_for(bridge, holder, "edit_file", path=str(file), old="slep", new=f"sleep {MARKUP}")
    with hosted(bridge, holder, approval, tmp_path) as host:
        assert host.first["uri"] == "ui://connmgr/approval"
        assert host.first["document"]["mimeType"] == "text/html;profile=mcp-app"
        assert not any(host.first["document"]["_meta"]["ui"]["csp"].values())
        assert "io.modelcontextprotocol/ui" in host.first["extensions"]
        host.until(lambda: host.text("change"), "the change is shown")
        assert host.text("state") == "Waited for your approval when it was asked"
        changed = host.text("change").splitlines()
        assert "-ExecStart=/bin/slep" in changed
        assert f"+ExecStart=/bin/sleep {MARKUP}" in changed
        assert host.app.title() == "Approval"
        assert host.app.locator("#change img, #lines img").count() == 0
        shown = host.text("lines")
        assert '"repairer" asks' in shown
        assert "the machine of the daemon" in shown
        assert str(file) in shown
        assert approval[:8] in host.text("how")
        # It leads to the page, and decides nothing.
        host.app.locator("#open").click()
        host.until(lambda: host.opened, "the page is opened")
        assert host.opened == [f"{daemon.url}/#/approvals/{approval}"]
        host.app.locator("#again").click()
        host.until(lambda: "tools/call" in host.methods, "the tool is asked again")
        assert {one.rpartition("/")[2] for one in host.methods} <= {
            *("", "initialize", "initialized", "size-changed", "open-link", "call")
        }
    [waits] = [one for one in daemon.client.approval.query() if one["token"] == holder.id]
    assert (waits["approval"], waits["state"]) == (approval, "pending")
    assert "slep\n" in file.read_text()


def test_characters_that_look_like_others_are_named(daemon: Daemon, bridge: HttpBridge, tmp_path: Path) -> None:
    rules = [{"effect": "ask", "path": "/**", "action": "fs.write"}]
    holder = wire.create(daemon, *SCOPES, rules=rules)
    # A Cyrillic letter that looks like an a.
    approval = asked_for(bridge, holder, "write_file", path=str(tmp_path / "file"), content="p\u0430ypal.test\n")

    async def work() -> None:
        async with bridge.agent(holder) as client:
            shown = (await client.call_tool("show_approval", {"approval": approval})).structured_content
            assert shown is not None
            assert "    U+0430 CYRILLIC SMALL LETTER A" in shown["change"]

    anyio.run(work)


def test_with_a_token_that_decides_the_daemon_s_own_words_are_shown(daemon: Daemon, tmp_path: Path) -> None:
    holder = wire.create(daemon, *SCOPES, name="agent", rules=[{"effect": "ask", "text": "."}])
    approver = tmp_path / "approver"
    approver.write_text(wire.create(daemon, "approval.decide").secret)
    with HttpBridge(daemon, "--approver-token-file", str(approver)) as bridge:
        approval = asked_for(bridge, holder, "run_command", command=f"echo '{MARKUP}'")
        with hosted(bridge, holder, approval, tmp_path) as host:
            host.until(lambda: host.text("lines"), "the request is shown")
            assert host.text("state") == "Waits for your approval"
            assert "In the daemon's own words:" in host.text("source")
            assert "job.start on" in host.text("lines")
            assert MARKUP in host.text("lines").replace("\\", "")
            daemon.client.approval.decide(approval, "deny")
            host.app.locator("#again").click()
            host.until(lambda: host.text("state") == "Decided, or over", "the decision is seen")


def test_another_agent_s_approval_is_not_shown(daemon: Daemon, bridge: HttpBridge) -> None:
    holder = wire.create(daemon, *SCOPES, rules=[{"effect": "ask", "text": "."}])
    approval = asked_for(bridge, holder, "run_command", command="true")
    other = wire.create(daemon, *SCOPES)

    async def work() -> None:
        async with bridge.agent(other) as client:
            result = await client.call_tool("show_approval", {"approval": approval})
            assert refused(result)["code"] == "unknown_approval"

    anyio.run(work)
