"""The hub in a browser: machines are found, added, connected, changed and removed, however they are called."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from connmgr.client.names import is_pattern, matching, resolve_name
from connmgr.errors import InvalidRequest
from connmgr.vault.names import Matcher, compile_exact_pattern
from tests.api.wire import LOCAL, bearer, client_of, send
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.page.conftest import Visit
from tests.plugins.sshd import Sshd, privilege_separation
from tests.rights.wire import create

if TYPE_CHECKING:
    from tests.page.browser import Visitor

pytestmark = [pytest.mark.needs("chromium", "libatomic")]

MANY = 10_000
HOSTILE = ("<img src=x onerror=alert(1)>", "\x1b[31mred\x07\n", "\u202eevil", "a" * 250)


def apply(daemon: Daemon, *add: dict[str, object], **fields: object) -> list[str]:
    """Store connections, and return their ids."""
    answer = send(daemon.url, "/connection/apply", {"add": add, **fields}, bearer(daemon))
    assert answer.status == 200, answer.body
    return [one["connection"] for one in answer.json["added"]]


def machine(name: str, *category: str, **data: object) -> dict[str, object]:
    # Another host for each: two connections with the same data are one.
    host = f"h{zlib.crc32('/'.join((*category, name)).encode())}.example.com"
    return {"name": name, "data": {"type": "ssh", "host": host, **data}, **({"category": category} if category else {})}


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    with privilege_separation(), closing(Sshd()) as running:
        yield running


@pytest.mark.needs("sshd")
def test_a_machine_is_added_by_its_form_and_its_key_accepted(
    clean_daemon: Daemon, visitor: Visitor, sshd: Sshd
) -> None:
    page = visitor.opened(clean_daemon)
    page.get_by_role("button", name="Add a machine").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Host", exact=True).fill("127.0.0.1")
    dialog.get_by_label("Name", exact=True).fill("build <1>")
    dialog.get_by_label("Port", exact=True).fill(str(sshd.port))
    dialog.get_by_label("User", exact=True).fill(sshd.user)
    dialog.locator("summary", has_text="Identity").click()
    dialog.get_by_label("Key", exact=True).fill(sshd.client_key.read_text())
    dialog.get_by_role("button", name="Add", exact=True).click()
    details = page.get_by_role("complementary", name="build <1>")
    details.get_by_text("stored, sealed").wait_for()
    assert "PRIVATE KEY" not in page.content()
    details.get_by_role("button", name="Connect").click()
    question = page.get_by_role("dialog", name="Unknown host key")
    assert re.search(r"SHA256:\S{43}", question.inner_text())
    question.get_by_role("button", name="Trust this key").click()
    page.get_by_role("status").get_by_text("build <1> answers").wait_for()
    details.get_by_text("connected", exact=True).wait_for()
    details.get_by_role("button", name="Disconnect").click()
    details.get_by_text("not connected").wait_for()
    visitor.forgive("500")


def test_a_change_is_stored_and_undone(clean_daemon: Daemon, visitor: Visitor) -> None:
    identity = {"file": "/keys/web1", "certificate": "/keys/web1-cert.pub"}
    [id] = apply(clean_daemon, machine("web1", "prod", host="192.0.2.1", password="s3cret", identity=identity))
    before = send(clean_daemon.url, "/connection/info", {"connections": [id]}, bearer(clean_daemon)).json["infos"][0]
    page = visitor.opened(clean_daemon, "#/hub/prod/web1")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Password", exact=True).input_value() == ""
    dialog.get_by_label("Host", exact=True).fill("192.0.2.99")
    # A field that may be a text or an object.
    dialog.get_by_label("Certificate", exact=True).fill("/keys/another")
    dialog.get_by_label("Name", exact=True).fill("web2")
    dialog.get_by_role("button", name="Save").click()
    details = page.get_by_role("complementary", name="web2")
    details.get_by_text("192.0.2.99").wait_for()
    stored = send(clean_daemon.url, "/connection/info", {"connections": [id]}, bearer(clean_daemon)).json["infos"][0]
    identity["certificate"] = "/keys/another"
    assert stored["rawData"] == {**before["rawData"], "host": "192.0.2.99", "identity": identity}
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("complementary", name="web1").get_by_text("192.0.2.1", exact=True).wait_for()
    stored = send(clean_daemon.url, "/connection/info", {"connections": [id]}, bearer(clean_daemon)).json["infos"][0]
    assert stored["rawData"] == before["rawData"]


def test_what_somebody_else_has_saved_meanwhile_stays(clean_daemon: Daemon, visitor: Visitor) -> None:
    [id] = apply(clean_daemon, machine("web1", "prod", host="192.0.2.1"))
    page = visitor.opened(clean_daemon, "#/hub/prod/web1")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit web1")
    dialog.get_by_label("Host", exact=True).fill("192.0.2.99")
    clean_daemon.client.connection.update(id, data={"type": "ssh", "host": "192.0.2.1", "port": 2200})
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_text("Somebody else has saved this connection").wait_for()
    visitor.forgive("409")
    # The text of the person is there until they let it go.
    assert dialog.get_by_label("Host", exact=True).input_value() == "192.0.2.99"
    dialog.get_by_role("button", name="Open it anew").click()
    dialog.get_by_text("Somebody else has saved this connection").wait_for(state="detached")
    assert dialog.get_by_label("Host", exact=True).input_value() == "192.0.2.1"
    dialog.get_by_label("Host", exact=True).fill("192.0.2.98")
    dialog.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Undo").wait_for()
    [info] = clean_daemon.client.connection.info([id])
    assert (info.data["host"], info.data["port"]) == ("192.0.2.98", 2200)
    # Taking one's own change back does not take back another's after it.
    clean_daemon.client.connection.label([id], {"env": "prod"})
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("was changed at").wait_for()
    [info] = clean_daemon.client.connection.info([id])
    assert (info.data["host"], info.labels) == ("192.0.2.98", {"env": "prod"})
    visitor.forgive("409")


def test_a_secret_is_fetched_from_elsewhere(clean_daemon: Daemon, visitor: Visitor) -> None:
    def stored(id: str) -> Any:
        answer = send(clean_daemon.url, "/connection/info", {"connections": [id]}, bearer(clean_daemon))
        return answer.json["infos"][0]["rawData"]

    [id] = apply(clean_daemon, machine("web1", "prod", password="s3cret"))
    page = visitor.opened(clean_daemon, "#/hub/prod/web1")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Fetch it from elsewhere").first.click()
    dialog.get_by_label("Password from").select_option("vault")
    dialog.get_by_label("Url").fill("https://vault.example:8200")
    dialog.get_by_label("Path").fill("servers/web1")
    dialog.get_by_label("Kv").select_option("1")
    # The source's own secret, too.
    dialog.get_by_role("group").get_by_role("button", name="Fetch it from elsewhere").click()
    dialog.get_by_label("Token from").select_option("command")
    dialog.get_by_label("Argv").fill("get-token\n--for me")
    dialog.get_by_role("button", name="Save").click()
    page.get_by_role("complementary").get_by_text("fetched from vault").wait_for()
    token = {"from": {"source": "command", "argv": ["get-token", "--for me"]}}
    expected = {"source": "vault", "url": "https://vault.example:8200", "path": "servers/web1", "kv": 1, "token": token}
    assert stored(id)["password"]["from"].items() >= expected.items()
    page.get_by_role("button", name="Edit").click()
    assert dialog.get_by_label("Password from").input_value() == "vault"
    dialog.get_by_role("button", name="Type it instead").first.click()
    dialog.get_by_label("Password", exact=True).fill("typed")
    dialog.get_by_role("button", name="Save").click()
    page.get_by_role("complementary").get_by_text("stored, sealed").wait_for()
    assert "encryptedToken" in stored(id)["password"]


def test_a_removal_names_what_goes_with_it(clean_daemon: Daemon, visitor: Visitor) -> None:
    [id, _] = apply(
        clean_daemon,
        {**machine("gate"), "label": "gate"},
        {"name": "inner", "data": {"type": "shellEnvironment", "host": {"label": "gate"}}},
    )
    page = visitor.opened(clean_daemon, f"#/hub/{id}")
    page.get_by_role("button", name="Remove", exact=True).click()
    dialog = page.get_by_role("dialog")
    assert "default/gate/inner" in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    dialog.get_by_role("button", name="Remove 2").click()
    page.get_by_text("gate is removed.").wait_for()
    everything = {"connectionFilter": "*", "categoryFilter": "*", "typeFilter": "*"}
    assert send(clean_daemon.url, "/connection/query", everything, bearer(clean_daemon)).json["found"] == [LOCAL]


def test_a_list_is_previewed_imported_and_taken_back(clean_daemon: Daemon, visitor: Visitor) -> None:
    apply(clean_daemon, machine("old"))
    page = visitor.opened(clean_daemon)
    page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog")
    inner, gate = "Host inner\n HostName 10.0.0.7\n ProxyJump gate\n", "Host gate\n User jump\n Port 2222\n"
    rest = "Host old\nMatch user x\n Port 1\nHost * !gate\n User x\n HostName never\n Port 2022\n"
    config = f"{inner}{gate}{rest}"
    dialog.get_by_label("A list of machines").fill(config)
    assert "2 connections to add; 1 name is there already" in dialog.inner_text()
    dialog.get_by_text("Line 8: Match is not taken, nor what stands below it.").wait_for()
    dialog.get_by_role("button", name="Add 2 connections").click()
    page.get_by_text("2 connections are added.").wait_for()
    with client_of(clean_daemon) as client:
        found = client.post("/connection/query", connectionFilter="**/inner", categoryFilter="*", typeFilter="*")
        [info] = client.post("/connection/info", connections=found["found"])["infos"]
        assert (info["rawData"]["host"], info["rawData"]["user"]) == ("10.0.0.7", "x"), "the first that says it counts"
        assert info["rawData"]["gateway"] != ""
    # The page asks about the new ones, and could ask about removed ones.
    for place in ("x@10.0.0.7:2022", "jump@gate:2222"):
        page.get_by_text(place, exact=True).wait_for()
    visitor.settle(page)
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("2 connections", exact=True).wait_for()


def test_search_follows_the_rule_of_names(clean_daemon: Daemon, visitor: Visitor) -> None:
    names = ("web1", "web10", "web2", "db1")
    apply(clean_daemon, *(machine(name, "prod") for name in names), machine("web1", "lab"))
    page = visitor.opened(clean_daemon)
    page.get_by_text("6 connections", exact=True).wait_for()
    page.keyboard.press("/")
    for typed, told in (
        ("web1", "2 connections are meant, 1 more contain it"),
        ("prod/web1", "1 connection is meant, 1 more contain it"),
        ("web?", "3 connections are meant"),
        ("{web,db}1", "3 connections are meant"),
        ("prod/*", "4 connections are meant"),
        ("**/web*", "4 connections are meant"),
        ("web[2-9]", "1 connection is meant"),
        ("WEB1", "2 connections are meant, 1 more contain it"),
    ):
        page.get_by_label("Search connections").fill(typed)
        page.locator(".foot").get_by_text(told, exact=True).wait_for()
        with client_of(clean_daemon) as client:
            expected = (matching if is_pattern(typed) else resolve_name)(client.connection, typed)
        assert told.startswith(f"{len(expected)} connection"), typed
    page.get_by_label("Search connections").fill("web[")
    page.get_by_text("A bracket is not closed.").wait_for()
    page.get_by_label("Search connections").fill("prod/web2")
    page.keyboard.press("Enter")
    page.get_by_role("complementary", name="web2").wait_for()
    assert page.url.endswith("#/hub/prod/web2")
    page.go_back()
    page.get_by_role("complementary", name="web2").wait_for(state="detached")


def test_patterns_match_what_the_vault_matches(daemon: Daemon, visitor: Visitor) -> None:
    choice = random.Random(1)
    parts = [
        "a",
        "b",
        "-",
        "/",
        "*",
        "**",
        "?",
        "[ab]",
        "[!a]",
        "[a-c]",
        "[z-a]",
        "[/a]",
        "[-a]",
        "[]]",
        "{a,b}",
        "{a,b/c}",
        "{,x}",
        "{a,{b,c}}",
        ".",
        "\\",
        "^",
        "(",
        "|",
        "$",
        "[",
    ]
    patterns = ["".join(choice.choices(parts, k=choice.randint(1, 6))) for _ in range(600)]
    held = ["a", "a/b", "b/a/c/a", *("".join(choice.choices("ab-/.]\\^(|$", k=5)) for _ in range(80))]
    expected: list[list[bool] | None] = []
    for pattern in patterns:
        try:
            matches = Matcher(compile_exact_pattern(pattern))
        except InvalidRequest:
            expected.append(None)
        else:
            expected.append([matches(path) for path in held])
    page = visitor.opened(daemon)
    found = page.evaluate(
        """([patterns, paths]) => import("/page/core/names.js").then(({ compile }) => patterns.map((pattern) => {
            try {
                const tests = compile(pattern);
                return paths.map((path) => tests.some((test) => test.test(path)));
            } catch (error) {
                return null;
            }
        }))""",
        [patterns, held],
    )
    assert [one for one, mine, theirs in zip(patterns, found, expected, strict=True) if mine != theirs] == []


def test_hostile_names_are_text_in_a_large_category(own_daemon: Daemon, visitor: Visitor) -> None:
    apply(own_daemon, *(machine(name, "hostile") for name in HOSTILE), *(machine(f"n{n}", "many") for n in range(MANY)))
    page = visitor.opened(own_daemon)
    page.get_by_text(f"{MANY + 5:,} connections", exact=True).wait_for()
    for shown in ("<img src=x onerror=alert(1)>", r"\x1b[31mred\x07\n", r"\u202eevil"):
        page.get_by_text(shown, exact=True).wait_for()
    page.get_by_text(r"\u202eevil", exact=True).click()
    page.get_by_role("complementary", name=r"\u202eevil").wait_for()
    rows = page.locator("#hub-rows")
    assert int(rows.get_attribute("aria-rowcount") or 0) > MANY
    assert page.locator("#hub-rows .row").count() < 80
    rows.focus()
    page.keyboard.press("End")
    page.get_by_text(f"n{MANY - 1}", exact=True).wait_for()
    assert page.locator("#hub-rows .row").count() < 80


def test_the_palette_goes_to_machines_and_runs_commands(clean_daemon: Daemon, visitor: Visitor) -> None:
    apply(clean_daemon, machine("web1", "prod"))
    page = visitor.opened(clean_daemon)
    page.get_by_text("2 connections", exact=True).wait_for()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("web1")
    page.keyboard.press("Enter")
    page.get_by_role("combobox").fill("edit")
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Edit web1").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    # Both at once: they belong together only if they come within a second.
    page.evaluate(
        """for (const key of "ga") document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}))"""
    )
    page.get_by_role("heading", name="Audit").wait_for()


CLOSED_BEFORE_A_KEY = """
document.querySelector("dialog[open]").close();
document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "?", bubbles: true}));
"""
"""A field of a closed dialog keeps the focus until the next frame."""


def test_a_key_pressed_as_a_dialog_closes_is_the_pages(clean_daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(clean_daemon)
    page.get_by_text("local machine", exact=True).wait_for()
    page.keyboard.press("n")
    page.get_by_role("dialog", name="Add a connection").get_by_label("Host", exact=True).focus()
    page.evaluate(CLOSED_BEFORE_A_KEY)
    page.get_by_role("dialog", name="Keys").wait_for()


def test_what_others_change_is_shown(clean_daemon: Daemon, visitor: Visitor) -> None:
    [id] = apply(clean_daemon, machine("web1", "prod"))
    page = visitor.opened(clean_daemon, "#/hub/prod/web1")
    page.get_by_role("complementary", name="web1").wait_for()
    apply(clean_daemon, machine("web2", "prod"))
    page.get_by_text("web2", exact=True).wait_for()
    send(clean_daemon.url, "/connection/update", {"connection": id, "name": "renamed"}, bearer(clean_daemon))
    page.get_by_text("renamed", exact=True).first.wait_for()
    send(clean_daemon.url, "/connection/remove", {"connections": [id]}, bearer(clean_daemon))
    page.get_by_text("renamed", exact=True).first.wait_for(state="detached")


def test_what_runs_is_shown_until_it_ends(clean_daemon: Daemon, visitor: Visitor) -> None:
    def ask(path: str, **fields: object) -> Any:
        answer = send(clean_daemon.url, path, fields, bearer(clean_daemon))
        assert answer.status == 200, answer.body
        return answer.json if answer.body else None

    page = visitor.opened(clean_daemon)
    machine = page.get_by_role("row").filter(has_text="local machine")
    machine.wait_for()
    opened = ask("/terminal/open", connection=LOCAL, columns=80, rows=24, argv=["sleep", "600"])
    machine.get_by_text("1 terminal").wait_for()
    ask("/shell/start", connection=LOCAL)
    job = ask("/job/start", connection=LOCAL, argv=["sleep", "600"])["job"]
    machine.get_by_text("1 job, 1 terminal").wait_for()
    page.reload()
    machine.get_by_text("1 job, 1 terminal").wait_for()
    # What waits for input runs, too.
    asks = ask("/job/start", connection=LOCAL, command="printf 'Go on? '; read answer", stdin="open")["job"]
    machine.get_by_text("2 jobs, 1 terminal").wait_for()
    eventually(lambda: ask("/job/info", job=asks).get("waiting"), "the job waits for input")
    machine.get_by_text("2 jobs, 1 terminal").wait_for()
    ask("/terminal/close", terminal=opened["terminal"])
    for one in (job, asks):
        ask("/job/kill", job=one)
    machine.get_by_text("terminal").wait_for(state="detached")
    machine.get_by_text("job").wait_for(state="detached")


def test_the_last_hour_is_plotted(own_daemon: Daemon, visit: Visit) -> None:
    apply(own_daemon, machine("web1", "prod"))
    for path, fields in (("/shell/start", {}), ("/shell/exec", {"command": "true"})):
        assert send(own_daemon.url, path, {"connection": LOCAL, **fields}, bearer(own_daemon)).status == 200
    page = visit().opened(own_daemon)
    page.get_by_role("img", name="Commands in the last hour: 1, at most 1 a minute").wait_for()
    page.get_by_role("img", name="Links in the last hour: 1 up, 0 lost").wait_for()
    # The figures are those of the whole daemon.
    holder = create(own_daemon, "connection.read")
    page = visit().opened(own_daemon, authorization={"Authorization": f"Bearer {holder.secret}"})
    page.get_by_text("2 connections", exact=True).wait_for()
    assert page.locator(".plots").count() == 0


def test_a_page_says_that_the_daemon_is_away(own_daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(own_daemon)
    loaded = "performance.getEntriesByType('resource').some(one => one.name.endsWith('/connection.js'))"
    eventually(lambda: page.evaluate(loaded), "the page has all of its modules")
    visitor.settle(page, "#/hub")
    own_daemon.stop()
    page.get_by_role("main").get_by_text("Connecting …").wait_for()
    page.get_by_text("what is shown may be out of date").wait_for()
    page.evaluate("location.hash = '#/terminal'")
    page.get_by_role("button", name="Try again").wait_for()
    assert page.get_by_text("No terminal runs").count() == 0, "it is not known whether one runs"
    page.evaluate("location.hash = '#/hub'")
    page.get_by_text("local machine", exact=True).click()
    page.get_by_role("button", name="Connect", exact=True).click()
    fault = page.get_by_role("alert").get_by_text("The daemon does not answer.")
    fault.evaluate("one => { one.closest('#faults > div').id = 'first'; }")
    page.get_by_role("button", name="Connect", exact=True).click()
    page.locator("#faults > div:not(#first)").wait_for()
    assert page.locator("#first").count() == 0, "the same fault is told once"
    visitor.provokes = True


def test_a_token_with_fewer_rights_sees_less_and_no_errors(clean_daemon: Daemon, visit: Visit) -> None:
    apply(clean_daemon, machine("web1", "prod"), machine("db1", "prod"))
    for scopes, views in ((["connection.read"], {"API", "Facts", "Hub", "Tunnels", "Vault"}), ([], {"API", "Vault"})):
        holder = create(clean_daemon, *scopes, connections=["web*"])
        page = visit().opened(clean_daemon, authorization={"Authorization": f"Bearer {holder.secret}"})
        page.get_by_role("navigation").get_by_role("link", name="Vault").wait_for()
        shown = {link.inner_text() for link in page.get_by_role("navigation").get_by_role("link").all()}
        assert shown == views
        if scopes:
            page.get_by_text("web1", exact=True).click()
            assert page.get_by_role("button", name="Connect").count() == 0
            assert page.get_by_text("db1").count() == 0
