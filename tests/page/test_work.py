"""The views of work: what waits for a decision, commands on many machines, jobs and tunnels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import create

if TYPE_CHECKING:
    from tests.page.conftest import Visit

pytestmark = pytest.mark.needs("chromium")

ASKS = [{"effect": "ask", "text": "."}]


def test_an_approval_in_the_page_lets_the_waiting_command_run(daemon: Daemon, visit: Visit) -> None:
    holder = create(daemon, "shell.any", rules=ASKS)
    page = visit().opened(daemon, "#/approvals")
    page.get_by_text("Nothing waits for a decision").wait_for()
    with ThreadPoolExecutor() as threads:
        command = "echo '<b>approved</b>'"
        answer = threads.submit(
            holder.send, "/shell/exec", connection=LOCAL, command=command, start=True, fresh=True, wait=60
        )
        page.get_by_role("row").click()
        eventually(lambda: page.title().startswith("(1) "), "the title says that something waits")
        assert page.locator("pre.printed").first.inner_text() == command
        page.get_by_text("the machine of the daemon").wait_for()
        page.get_by_role("button", name="Approve once").click()
        assert answer.result().json["stdout"] == "<b>approved</b>"
    eventually(lambda: not page.title().startswith("("), "the title no longer says that something waits")


def test_a_denial_in_the_page_is_what_the_token_is_told(daemon: Daemon, visit: Visit) -> None:
    holder = create(daemon, "shell.any", rules=ASKS)
    asked = holder.send("/shell/exec", connection=LOCAL, command="true", start=True)
    page = visit().opened(daemon, f"#/approvals/{asked.json['approval']}")
    page.get_by_role("button", name="Deny").click()
    page.get_by_role("button", name="Take it back").wait_for(state="detached")
    page.locator(".details").get_by_text("denied").wait_for()
    assert holder.refused("/shell/exec", connection=LOCAL, command="true", start=True) == "approval_denied"
