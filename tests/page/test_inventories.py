"""The view of inventories: added by a form, renewed by hand, and what has left their lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.daemon import Daemon
from tests.page.axe import hindrances
from tests.page.browser import PHONE

if TYPE_CHECKING:
    from tests.page.conftest import Visit

pytestmark = pytest.mark.needs("chromium", "libatomic")


def test_an_inventory_is_added_renewed_and_shows_what_has_left_its_list(
    own_daemon: Daemon, visit: Visit, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("web1\nweb2\nwin1 ansible_connection=winrm\n")
    visitor = visit()
    page = visitor.opened(own_daemon, "#/inventories")
    page.get_by_text("No inventories yet").wait_for()
    assert hindrances(page) == []
    page.get_by_role("button", name="Add an inventory").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("racks")
    dialog.get_by_label("Path").fill(str(hosts))
    dialog.get_by_label("Renewed every").fill("soon")
    dialog.get_by_label("Log in as").fill("ops")
    dialog.get_by_role("button", name="Add", exact=True).click()
    dialog.get_by_role("alert").get_by_text("write it as 15m").wait_for()
    dialog.get_by_label("Renewed every").fill("12h")
    dialog.get_by_role("button", name="Add", exact=True).click()
    details = page.get_by_role("complementary", name="Inventories")
    details.get_by_text("renewed", exact=True).wait_for()
    [stored] = own_daemon.client.post("/inventory/query")["inventories"]
    assert (stored["file"], stored["every"], stored["defaults"]) == (str(hosts), 43_200, {"user": "ops"})
    hosts.write_text("web1\nweb3\n")
    details.get_by_role("button", name="Say what that would change").click()
    would = details.get_by_role("status")
    would.get_by_text("It would change").wait_for()
    assert "web3" in would.inner_text()
    assert own_daemon.client.post("/inventory/query")["inventories"][0]["vanished"] == 0
    details.get_by_role("button", name="Renew now").click()
    would.get_by_text("It changed").wait_for()
    details.get_by_role("heading", name="1 host no longer listed").wait_for()
    assert page.get_by_role("row").get_by_text("2, 1 vanished").count() == 1
    assert hindrances(page) == []
    hosts.unlink()
    visitor.forgive("/inventory/renew")
    details.get_by_role("button", name="Renew now").click()
    details.get_by_text("The last renewal changed nothing").wait_for()
    details.get_by_role("link", name="web2").click()
    page.get_by_role("complementary", name="web2").wait_for()
    visitor.settle(page, "#/inventories/racks")
    details.get_by_role("button", name="Remove").click()
    before = own_daemon.client.post("/inventory/query")
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("row").click()
    assert own_daemon.client.post("/inventory/query") == before
    details.get_by_role("button", name="Remove").click()
    page.get_by_text("racks will be removed; its connections stay").wait_for()
    page.locator("#toasts").get_by_role("button", name="Dismiss").last.click()
    page.get_by_text("No inventories yet").wait_for()


def test_an_inventory_of_a_program_fits_a_phone(own_daemon: Daemon, visit: Visit) -> None:
    own_daemon.client.post("/inventory/add", name="fleet", command=["echo", "node[1:30]"])
    visitor = visit(viewport=PHONE, color_scheme="dark")
    page = visitor.opened(own_daemon, "#/inventories/fleet")
    details = page.get_by_role("complementary", name="Inventories")
    details.get_by_text("30 hosts", exact=True).wait_for()
    details.get_by_text("echo node[1:30]", exact=True).wait_for()
    details.get_by_role("button", name="Renew now").click()
    details.get_by_text("30 hosts as before").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert hindrances(page) == []
