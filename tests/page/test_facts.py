"""The view of facts: machines asked, put together by what they have in common, chosen by conditions, and labelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.page.axe import hindrances

if TYPE_CHECKING:
    from tests.page.conftest import Visit

pytestmark = pytest.mark.needs("chromium", "libatomic")


def test_machines_are_asked_and_chosen_by_what_they_have_in_common(clean_daemon: Daemon, visit: Visit) -> None:
    away = clean_daemon.client.connection.add("away", {"type": "ssh", "host": "nowhere.invalid", "user": "me"})
    clean_daemon.client.post("/connection/label", connections=[away], labels={"team": "it's <b>blue</b>"})
    visitor = visit()
    page = visitor.opened(clean_daemon, "#/facts")
    rows = page.get_by_role("grid", name="Facts").get_by_role("row")
    rows.get_by_text("not asked yet").nth(1).wait_for()
    page.get_by_role("row", name="local machine").click()
    details = page.get_by_role("complementary", name="Facts")
    details.get_by_role("button", name="Ask it now").click()
    details.get_by_text("os.type").wait_for()
    rows.get_by_text("not asked yet").nth(1).wait_for(state="detached")
    page.get_by_label("Together by").select_option("team")
    groups = page.get_by_role("list", name="Machines by team")
    groups.get_by_role("button", name="1 it's <b>blue</b>").click()
    said = r"team='it\'s <b>blue</b>'"
    eventually(lambda: page.get_by_label("Where").input_value() == said, "the condition")
    rows.get_by_text("local machine").wait_for(state="detached")
    assert rows.count() == 1
    page.get_by_label("Where").fill("team and")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Expected the name of a label or fact").wait_for()
    page.get_by_label("Where").fill("os.type=Linux and cpu.count>=1")
    page.keyboard.press("Enter")
    rows.get_by_text("local machine").wait_for()
    assert rows.count() == 1
    assert hindrances(page) == []
    visitor.forgive("400")


def test_labels_are_set_and_taken_away_in_the_hub(clean_daemon: Daemon, visit: Visit) -> None:
    def labels() -> dict[str, str]:
        found: dict[str, str] = clean_daemon.client.connection.info([LOCAL])[0].labels
        return dict(found)

    visitor = visit()
    page = visitor.opened(clean_daemon, f"#/hub/{LOCAL}")
    field = page.get_by_label("New label")
    field.fill("env=prod=1")
    page.keyboard.press("Enter")
    page.get_by_text("env=prod=1", exact=True).wait_for()
    assert labels() == {"env": "prod=1"}
    page.get_by_role("button", name="Remove the label env").click()
    page.get_by_text("env=prod=1", exact=True).wait_for(state="detached")
    assert labels() == {}
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("env=prod=1", exact=True).wait_for()
    field.fill("ENV=prod")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Not 1 to 63 of the letters").wait_for()
    assert labels() == {"env": "prod=1"}
    visitor.forgive("400")
