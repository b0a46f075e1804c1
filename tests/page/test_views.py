"""Tokens, the audit log and the vault in a browser."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from connmgr.contract.token import SCOPES
from tests.api.wire import LOCAL, bearer, send
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import create
from tests.test_layering import ROOT

if TYPE_CHECKING:
    from tests.page.browser import Visitor

pytestmark = [pytest.mark.needs("chromium", "libatomic")]

PASSPHRASE = "alice's long passphrase"


def test_a_token_is_created_shown_once_and_revoked(clean_daemon: Daemon, visitor: Visitor) -> None:
    end = datetime.now().astimezone().replace(hour=6, minute=30, second=0, microsecond=0) + timedelta(days=3)
    page = visitor.opened(clean_daemon, "#/tokens")
    page.get_by_role("button", name="Create a token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("For", exact=True).fill("<b>ci</b>")
    dialog.get_by_label("Valid for").select_option("until a certain time")
    dialog.get_by_label("Until", exact=True).fill(f"{end:%Y-%m-%dT%H:%M}")
    dialog.get_by_role("button", name="Run programs").click()
    dialog.get_by_label("On the connections").fill("web*, db*")
    dialog.get_by_label("It only looks").check()
    dialog.get_by_text("More limits").click()
    dialog.get_by_label("Most requests a day").fill("50")
    dialog.get_by_label("Rules").fill("[not")
    dialog.get_by_role("button", name="Create").click()
    assert dialog.get_by_label("Rules").evaluate("field => field.validationMessage").startswith("Not json")
    dialog.get_by_label("Rules").fill('[{"effect": "ask", "text": "."}]')
    dialog.get_by_role("button", name="Create").click()
    shown = page.get_by_role("dialog", name=re.compile("The token for"))
    secret = shown.locator("code").first.inner_text()
    shown.get_by_role("button", name="I have it").click()
    authorization = {"Authorization": f"Bearer {secret}"}
    own = send(clean_daemon.url, "/token/info", {}, authorization).json
    assert (own["name"], own["connections"]) == ("<b>ci</b>", ["web*", "db*"])
    assert (own["readOnly"], own["quotaPerDay"], own["rules"]) == (True, 50, [{"effect": "ask", "text": "."}])
    assert datetime.fromisoformat(own["expires"].replace("Z", "+00:00")) == end
    assert set(own["scopes"]) == {"connection.read", "shell.argv", "job"}
    details = page.get_by_role("complementary", name="Tokens").filter(has_text="<b>ci</b>")
    details.get_by_text("valid", exact=True).wait_for()
    assert secret not in page.content()
    details.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    details.get_by_text("revoked", exact=True).wait_for()
    assert send(clean_daemon.url, "/token/info", {}, authorization).code == "token_revoked"


def test_the_page_knows_every_scope() -> None:
    source = (ROOT / "connmgr" / "page" / "views" / "rights.js").read_text()
    table = source[source.index("const SCOPES") : source.index("const PRESETS")]
    assert set(re.findall(r'^  "?([a-z.]+)"?: "', table, re.M)) == set(SCOPES)


def test_the_audit_log_is_filtered_and_verified(own_daemon: Daemon, visitor: Visitor) -> None:
    holder = create(own_daemon, "connection.read", name="watcher")
    assert holder.refused("/shell/exec", connection=LOCAL, command="true") == "scope_denied"
    for _ in range(250):
        send(own_daemon.url, "/vault/status", {}, bearer(own_daemon))
    page = visitor.opened(own_daemon, "#/audit")
    rows = page.get_by_role("grid", name="Audit")
    rows.wait_for()
    # The second page is read when the end of the first is seen.
    rows.focus()
    page.keyboard.press("End")
    eventually(lambda: int(rows.get_attribute("aria-rowcount") or 0) > 200, "the second page is read")
    assert rows.get_by_role("row").count() < 80
    page.get_by_label("Refused with").fill("scope_denied")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("watcher", exact=True).wait_for()
    assert rows.get_by_role("row").count() == 1
    assert page.url.endswith("#/audit?code=scope_denied")
    rows.get_by_role("row").click()
    page.get_by_role("complementary").get_by_text("/shell/exec", exact=True).wait_for()
    page.get_by_role("button", name="Verify").click()
    page.get_by_role("dialog", name="The log is complete and unchanged").wait_for()


KNOWS = """name => import("/page/core/store.js").then(({ store }) =>
    [...store.connections.values()].some(one => one.name.at(-1) === name))"""
"""Whether the page knows a connection, so that it has drawn its view again."""


def test_what_is_typed_stays_when_others_change_something(clean_daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(clean_daemon, "#/audit")
    for number, (view, label) in enumerate([("audit", "Refused with"), ("record", "Token")]):
        visitor.settle(page, f"#/{view}")
        page.get_by_label(label).fill("scope_denied")
        clean_daemon.client.connection.add(f"other{number}", {"type": "ssh", "host": f"other{number}.example"})
        eventually(partial(page.evaluate, KNOWS, f"other{number}"), "the page knows what others have added")
        visitor.settle(page)
        assert page.get_by_label(label).input_value() == "scope_denied"


def test_the_vault_is_unlocked_where_a_secret_is_needed(own_daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(own_daemon, "#/vault")
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("alice")
    dialog.get_by_label("Passphrase", exact=True).fill(PASSPHRASE)
    dialog.get_by_label("The same again").fill("something else")
    dialog.get_by_role("button", name="Add").click()
    dialog.get_by_text("The two passphrases differ.").wait_for()
    dialog.get_by_label("The same again").fill(PASSPHRASE)
    dialog.get_by_role("button", name="Add").click()
    dialog.wait_for(state="detached")
    page.get_by_role("button", name="Unlock").click()
    dialog.get_by_label("User").fill("alice")
    dialog.get_by_label("Passphrase").fill("wrong")
    dialog.get_by_role("button", name="Unlock").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Passphrase").fill(PASSPHRASE)
    dialog.get_by_role("button", name="Unlock").click()
    page.get_by_text("unlocked by alice").wait_for()
    page.get_by_role("button", name="Lock", exact=True).click()
    page.get_by_text("locked", exact=True).wait_for()
    visitor.forgive("400")


def test_a_forgotten_passphrase_is_set_anew_by_a_recovery_key(own_daemon: Daemon, visitor: Visitor) -> None:
    send(own_daemon.url, "/vault/user/add", {"user": "alice", "passphrase": PASSPHRASE}, bearer(own_daemon))
    page = visitor.opened(own_daemon, "#/vault")
    page.get_by_role("button", name="Unlock").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("User").fill("alice")
    dialog.get_by_label("Passphrase").fill(PASSPHRASE)
    dialog.get_by_role("button", name="Unlock").click()
    page.get_by_role("button", name="Make a recovery key").click()
    dialog.get_by_label("Passphrase").fill(PASSPHRASE)
    dialog.get_by_label("Papers").fill("3")
    dialog.get_by_label("Of these are needed").fill("2")
    dialog.get_by_role("button", name="Make it").click()
    words = page.get_by_role("dialog", name=re.compile("Recovery key .* of alice"))
    words.get_by_text("any 2 of 3 are the key").wait_for()
    shares = words.locator("code").all_inner_texts()
    assert len(shares) == 3
    words.get_by_role("button", name="I have written them down").click()
    page.get_by_text("any 2 of 3 papers").wait_for()
    assert shares[0] not in page.content()
    page.get_by_role("button", name="Lock", exact=True).click()
    page.get_by_role("button", name="Use a recovery key").click()
    dialog.get_by_label("Words").fill(shares[2])
    dialog.get_by_label("New passphrase").fill("another passphrase")
    dialog.get_by_label("The same again").fill("another passphrase")
    dialog.get_by_role("button", name="Set it").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Words").fill(f"{shares[2]}\n{shares[0]}")
    dialog.get_by_role("button", name="Set it").click()
    page.get_by_role("status").get_by_text("alice has a new passphrase.").wait_for()
    page.get_by_role("button", name="Unlock").click()
    dialog.get_by_label("User").fill("alice")
    dialog.get_by_label("Passphrase").fill("another passphrase")
    dialog.get_by_role("button", name="Unlock").click()
    page.get_by_text("unlocked by alice").wait_for()
    page.get_by_role("alert").get_by_text("set a new passphrase of alice").wait_for()
    visitor.forgive("400")
