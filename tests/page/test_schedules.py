"""The view of schedules: added by a form, seen in the coming week, held, begun at once and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connmgr.client import LOCAL_MACHINE
from tests.api.wire import send
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.page.axe import hindrances
from tests.page.browser import PHONE
from tests.rights.wire import create

if TYPE_CHECKING:
    from tests.page.conftest import Visit

pytestmark = pytest.mark.needs("chromium", "libatomic")


def test_a_schedule_is_added_by_a_form_stands_in_the_week_and_is_begun_at_once(
    clean_daemon: Daemon, visit: Visit
) -> None:
    visitor = visit(timezone_id="UTC")
    page = visitor.opened(clean_daemon, "#/schedules")
    page.get_by_role("button", name="Add a schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("<b>nightly</b>")
    dialog.get_by_label("Command").fill("echo '<i>backup</i>'")
    dialog.get_by_label("On the machines").fill("local machine")
    dialog.get_by_label("When").fill("30 2 31 2 *")
    dialog.get_by_label("Time zone").fill("Europe/Vienna")
    dialog.get_by_role("button", name="Add").click()
    dialog.get_by_role("alert").wait_for()
    visitor.forgive("400")
    dialog.get_by_label("When").fill("30 2 * * *")
    dialog.get_by_text("More", exact=True).click()
    dialog.get_by_label("While one is under way").select_option("the next one waits")
    dialog.get_by_label("Times that were missed").select_option("are all made up for")
    dialog.get_by_label("Shift each time").fill("60")
    dialog.get_by_label("Until").fill("2099-12-31T06:00")
    dialog.get_by_role("group", name="Tell of").get_by_label("the run before was under way").uncheck()
    dialog.get_by_role("group", name="Tell of").get_by_label("all went well").check()
    dialog.get_by_label("Tell a program").fill("/bin/echo\n-s\na backup failed")
    dialog.get_by_text("Tell a server").click()
    dialog.get_by_label("Address").fill("https://hooks.example/failed")
    dialog.get_by_label("Secret").fill("0123456789abcdef")
    dialog.get_by_role("button", name="Add").click()
    details = page.get_by_role("complementary", name="Schedules")
    details.get_by_role("heading", name="<b>nightly</b>").wait_for()
    details.get_by_text("local machine", exact=True).wait_for()
    [stored] = clean_daemon.client.post("/schedule/query")["schedules"]
    assert (stored["overlap"], stored["catchUp"], stored["jitter"]) == ("queue", "all", 60)
    assert stored["until"].startswith("2099-12-31T06:00")
    assert stored["notify"]["on"] == ["missed", "refused", "failed", "unreachable", "done"]
    assert stored["notify"]["command"] == ["/bin/echo", "-s", "a backup failed"]
    assert stored["notify"]["webhook"]["url"] == "https://hooks.example/failed"
    assert "0123456789abcdef" not in page.content()
    week = page.get_by_role("list", name="The coming week")
    # Tonight's time may have been, or tomorrow's began while the page was read.
    assert week.get_by_role("link", name="<b>nightly</b>").count() in (6, 7)
    details.get_by_role("button", name="Pause").click()
    details.get_by_role("button", name="Resume").wait_for()
    assert page.get_by_role("row").get_by_text("paused").count() == 1
    week.get_by_role("link").first.wait_for(state="detached")
    page.get_by_role("button", name="Undo").click()
    details.get_by_role("button", name="Run it now").click()
    page.get_by_role("complementary", name="Runs").get_by_text("<i>backup</i>", exact=True).last.wait_for()
    visitor.settle(page, "#/schedules")
    page.get_by_role("row").click()
    details.get_by_role("button", name="Remove").click()
    page.get_by_text("<b>nightly</b> will be removed; its runs stay.").wait_for()
    page.locator("#toasts").get_by_role("button", name="Dismiss").last.click()
    page.get_by_text("No schedules yet").wait_for()


def test_a_schedule_is_removed_when_its_notice_goes_and_an_undo_keeps_its_secrets(
    clean_daemon: Daemon, visit: Visit
) -> None:
    client = clean_daemon.client
    webhook = {"url": "https://hooks.example/failed", "secret": "0123456789abcdef"}
    run = {"connectionFilter": "*", "command": "true"}
    for name in ("first", "second"):
        client.post("/schedule/add", name=name, every=3600, run=run, notify={"webhook": webhook})
    before = client.post("/schedule/query")["schedules"]
    visitor = visit()
    page = visitor.opened(clean_daemon, "#/schedules")
    leaving = page.locator(".row.leaving")
    details = page.get_by_role("complementary", name="Schedules")
    page.get_by_role("row").get_by_text("first").click()
    details.get_by_role("button", name="Remove").click()
    leaving.get_by_text("first").wait_for()
    assert details.count() == 0
    # Neither the row nor its address offers to remove it once more.
    leaving.click()
    first = next(one["schedule"] for one in before if one["name"] == "first")
    visitor.settle(page, f"#/schedules/{first}")
    assert details.count() == 0
    assert client.post("/schedule/query")["schedules"] == before
    page.get_by_role("button", name="Undo").click()
    details.get_by_role("heading", name="first").wait_for()
    assert leaving.count() == 0
    assert client.post("/schedule/query")["schedules"] == before
    # Whoever leaves the page has not undone it.
    for name in ("first", "second"):
        visitor.settle(page, "#/schedules")
        page.get_by_role("row").get_by_text(name).click()
        details.get_by_role("button", name="Remove").click()
        leaving.get_by_text(name).wait_for()
    assert leaving.count() == 2
    page.goto(f"{clean_daemon.url}/docs")
    eventually(lambda: client.post("/schedule/query")["schedules"] == [], "both are removed")


def test_what_is_to_be_removed_is_removed_before_the_session_ends(clean_daemon: Daemon, visit: Visit) -> None:
    client = clean_daemon.client
    for name in ("removed", "kept"):
        client.post("/schedule/add", name=name, every=3600, run={"connectionFilter": "*", "command": "true"})
    visitor = visit()
    # What the page still reads while it logs out is refused.
    visitor.provokes = True
    page = visitor.opened(clean_daemon, "#/schedules")
    page.get_by_role("row").get_by_text("removed").click()
    page.get_by_role("button", name="Remove").click()
    page.locator(".row.leaving").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_text("You are logged out.").wait_for()
    assert [one["name"] for one in client.post("/schedule/query")["schedules"]] == ["kept"]
    # A session that somebody else ends cannot remove anything, and says so.
    page = visitor.opened(clean_daemon, "#/schedules")
    page.get_by_role("row").get_by_text("kept").click()
    page.get_by_role("button", name="Remove").click()
    page.locator(".row.leaving").wait_for()
    session = page.evaluate("sessionStorage.getItem('connmgr.token')")
    assert send(clean_daemon.url, "/web/logout", {}, {"Authorization": f"Bearer {session}"}).status == 200
    page.get_by_role("alert").get_by_text("kept is not removed.").wait_for()
    [kept] = client.post("/schedule/query")["schedules"]
    client.post("/schedule/remove", schedule=kept["schedule"])


def test_a_schedule_s_machines_are_chosen_by_category_and_type_too(clean_daemon: Daemon, visit: Visit) -> None:
    page = visit().opened(clean_daemon, "#/schedules")
    page.get_by_role("button", name="Add a schedule").click()
    dialog = page.get_by_role("dialog")
    for label, given in (("Name", "shells"), ("Command", "true"), ("On the machines", "local*"), ("When", "12h")):
        dialog.get_by_label(label).fill(given)
    dialog.get_by_text("More", exact=True).click()
    dialog.get_by_label("Only in the categories").fill("default")
    dialog.get_by_label("Only of the types").fill("local")
    dialog.get_by_role("button", name="Add").click()
    details = page.get_by_role("complementary", name="Schedules")
    details.get_by_text("**/local* in default of the type local", exact=True).wait_for()
    [stored] = clean_daemon.client.post("/schedule/query")["schedules"]
    assert stored["every"] == 43_200
    assert (stored["run"]["categoryFilter"], stored["run"]["typeFilter"]) == ("default", "local")
    clean_daemon.client.post("/schedule/remove", schedule=stored["schedule"])


def test_what_fires_often_is_told_once_a_day(clean_daemon: Daemon, visit: Visit) -> None:
    run = {"connectionFilter": "*", "command": "true"}
    for name, seconds in (("hourly", 3600), ("always", 60)):
        clean_daemon.client.post("/schedule/add", name=name, every=seconds, run=run)
    page = visit(viewport=PHONE, timezone_id="UTC", color_scheme="dark").opened(clean_daemon, "#/schedules")
    week = page.get_by_role("list", name="The coming week")
    week.wait_for()
    days = [day.inner_text() for day in week.locator(":scope > li").all()]
    assert len(days) == 7
    assert all(day.count("always") == day.count("hourly") == 1 for day in days[1:])
    assert "24 \N{MULTIPLICATION SIGN}" in days[1]
    assert "often" in days[-1]
    assert hindrances(page) == []
    for one in clean_daemon.client.post("/schedule/query")["schedules"]:
        clean_daemon.client.post("/schedule/remove", schedule=one["schedule"])


def test_who_added_a_schedule_has_a_name(clean_daemon: Daemon, visit: Visit) -> None:
    holder = create(clean_daemon, "shell.any", name="nightly <backup>")
    run = {"connections": [LOCAL_MACHINE], "command": "true"}
    schedule = holder.ok("/schedule/add", name="theirs", every=3600, run=run)["schedule"]
    page = visit().opened(clean_daemon, f"#/schedules/{schedule}")
    link = page.get_by_role("complementary", name="Schedules").get_by_role("link", name="nightly <backup>", exact=True)
    link.wait_for()
    assert (link.get_attribute("href") or "").endswith(holder.id)


def test_what_of_a_schedule_has_no_effect_is_told(clean_daemon: Daemon, visit: Visit) -> None:
    page = visit().opened(clean_daemon, "#/schedules")
    page.get_by_role("button", name="Add a schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("backup")
    dialog.get_by_label("Command").fill("true")
    dialog.get_by_label("On the machines").fill("local machine")
    dialog.get_by_label("When").fill("12h")
    dialog.get_by_label("Stop after so many failures").fill("5")
    dialog.get_by_role("button", name="Add").click()
    page.get_by_text("run.stopAfter: 5 targets cannot fail").wait_for()
