"""What tokens have done, in a browser: the files that they changed, put back, and their record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.api.wire import LOCAL, send
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import create

if TYPE_CHECKING:
    from tests.page.browser import Visitor

pytestmark = [pytest.mark.needs("chromium", "libatomic")]


def test_a_changed_file_is_put_back(clean_daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    agent = create(clean_daemon, "fs.write", name="<b>agent</b>")
    agent.ok("/shell/start", connection=LOCAL)
    file = tmp_path / "<i>settings"
    file.write_text("before")
    headers = {"Authorization": f"Bearer {agent.secret}", "Content-Type": "application/octet-stream"}
    blob = send(agent.url, "/fs/blob", b"after", headers).json["blob"]
    agent.ok("/fs/write", connection=LOCAL, blob=blob, path=str(file))
    page = visitor.opened(clean_daemon, "#/changes")
    page.get_by_text(str(file)).click()
    details = page.get_by_role("complementary")
    details.get_by_text("<b>agent</b>").wait_for()
    details.get_by_role("button", name="Put back").click()
    details.get_by_text("undone", exact=True).wait_for()
    assert file.read_text() == "before"
    page.get_by_role("button", name="Undo").click()
    eventually(lambda: file.read_text() == "after", "what was put back is undone")


def test_a_record_shows_what_was_run_and_printed(clean_daemon: Daemon, visitor: Visitor) -> None:
    agent = create(clean_daemon, "shell.any", "job", name="recorded")
    agent.ok("/shell/start", connection=LOCAL)
    job = agent.ok("/job/start", connection=LOCAL, command="echo '<b>printed</b>'; exit 3")["job"]
    eventually(lambda: agent.ok("/job/info", job=job), "the job ends", holds=lambda one: one["state"] == "exited")
    page = visitor.opened(clean_daemon, "#/record/recorded")
    page.get_by_text("echo '<b>printed</b>'; exit 3").wait_for()
    page.get_by_text("<b>printed</b>", exact=True).wait_for()
    page.get_by_text("exit 3", exact=True).wait_for()
