"""Every view, for everybody: nothing on the console, nothing that axe finds, and no more than a token's rights."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.api.wire import LOCAL, add, client_of
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.page.axe import hindrances
from tests.page.conftest import Visit
from tests.page.wire import VIEWS
from tests.rights.wire import create

pytestmark = pytest.mark.needs("chromium", "libatomic")

HOSTILE = "<img src=x onerror=alert(1)>\u202e&amp;"
NAMES = [HOSTILE, "'; DROP TABLE", "web1", "ünïcode 名前"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with connections and a token of strange names."""
    daemon = Daemon(tmp_path_factory.mktemp("page"))
    with client_of(daemon) as client:
        for number, name in enumerate(NAMES):
            add(client, name, type="ssh", host=f"nowhere{number}.invalid", user="me")
    create(daemon, "connection.read", name="nightly <b>backup</b>")
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def things(filled: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of one thing of each kind, whose name, command or output is hostile."""
    client, files = filled.client, tmp_path_factory.mktemp("files")
    command = f"echo {shlex.quote(HOSTILE)}"
    [gate] = client.post("/connection/query", connectionFilter="web1", categoryFilter="*", typeFilter="*")["found"]
    client.post("/connection/label", connections=[gate], labels={"note": HOSTILE})
    forward = {"type": "sshLocalTunnel", "host": gate, "remoteHost": "127.0.0.1", "remotePort": 80}
    tunnel = client.connection.add(f"{HOSTILE} tunnel", forward)
    client.post("/shell/start", connection=LOCAL)
    job = client.post("/job/start", connection=LOCAL, command=command, name=HOSTILE)["job"]
    run = client.runs.start(connections=[LOCAL], command=command, name=HOSTILE).run
    assert run is not None
    client.runs.wait(run, 60)
    weekly = {"name": HOSTILE, "cron": "0 6 * * mon", "run": {"connections": [LOCAL], "command": command}}
    schedule = client.post("/schedule/add", **weekly)["schedule"]
    asking = create(filled, "shell.any", name=HOSTILE, rules=[{"effect": "ask", "text": "."}])
    assert asking.refused("/shell/exec", connection=LOCAL, command=command) == "approval_required"
    [approval] = client.post("/approval/query")["approvals"]
    (files / "notes").write_text(HOSTILE)
    writing = create(filled, "connection.read", "fs.write", name="writing")
    writing.ok("/fs/mkdir", connection=LOCAL, path=f"{files}/{HOSTILE}")
    [change] = client.post("/undo/query")["changes"]
    terminal = client.terminal.open(LOCAL, command=command, record=True)
    eventually(lambda: not client.post("/recording/query")["recordings"][0]["active"], "the recording is complete")
    eventually(lambda: client.post("/job/info", job=job)["state"] == "exited", "the job has ended")
    entry = client.post("/audit/query", action="job.start", limit=1)["entries"][0]
    return {
        "category": "#/hub/default",
        "machine": f"#/hub/{gate}",
        "tunnel": f"#/tunnels/{tunnel}",
        "terminals": "#/terminal",
        "job": f"#/jobs/{job}",
        "run": f"#/runs/{run}",
        "command": f"#/run/{LOCAL}",
        "schedule": f"#/schedules/{schedule}",
        "approval": f"#/approvals/{approval['approval']}",
        "token": f"#/tokens/{asking.id}",
        "record": f"#/record/{writing.id}",
        "change": f"#/changes/{change['change']}",
        "recording": f"#/recordings/{terminal}",
        "entry": f"#/audit/{entry['seq']}",
        "files": f"#/files/{LOCAL}{quote(str(files))}",
        "editor": f"#/files/{LOCAL}{quote(str(files))}/notes?edit",
        "terminal": f"#/terminal/{terminal}",
    }


SAID = HOSTILE.replace("\u202e", r"\u202e")
"""The hostile text as the page shows it."""

WITHOUT_TEXT = {"editor"}
"""Where the text is in a field."""


# Two of the four: colours depend on the scheme alone, places and sizes on the window alone.
@pytest.mark.parametrize("look", ["desktop, light", "phone, dark"])
def test_every_view_is_for_everybody_and_shows_names_as_text(
    filled: Daemon, things: dict[str, str], visit: Visit, look: str
) -> None:
    from tests.page.browser import DESKTOP, PHONE

    size, scheme = (PHONE, "dark") if "phone" in look else (DESKTOP, "light")
    visitor = visit(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = visitor.opened(filled)
    page.on("dialog", lambda dialog: visitor.faults.append(f"a name has run: {dialog.message}"))
    found: dict[str, list[str]] = {}

    def look_at(what: str) -> None:
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        found[what] = hindrances(page) + ([f"{wide} pixels too wide"] if wide > 0 else [])
        assert page.locator("img[src=x], #content b:has-text('backup')").count() == 0, what

    for view in VIEWS:
        visitor.settle(page, f"#/{view}")
        look_at(view)
    visitor.settle(page, "#/hub")
    box = page.locator("#hub-rows").bounding_box()
    assert box is not None
    assert box["height"] > size["height"] / 2, "the machines have the room"
    assert page.get_by_role("button", name="Views").is_visible() == (size is PHONE), "a phone has a bar above"
    for what, address in things.items():
        visitor.settle(page, address)
        if what == "run":
            page.get_by_role("region", name="done on 1 machine").get_by_text(SAID).wait_for()
        if what not in WITHOUT_TEXT:
            page.locator("#content").get_by_text(SAID).first.wait_for(state="attached")
        look_at(what)
    visitor.settle(page, "#/hub/default/local%20machine")
    page.get_by_role("complementary", name="local machine").wait_for()
    look_at("details")
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog", name="Edit local machine").wait_for()
    look_at("form")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").wait_for()
    look_at("palette")
    assert {view: some for view, some in found.items() if some} == {}


def test_a_view_without_anything_to_show_has_no_number_in_its_place(clean_daemon: Daemon, visit: Visit) -> None:
    visitor = visit()
    page = visitor.opened(clean_daemon)
    numbers = {}
    for view in VIEWS:
        visitor.settle(page, f"#/{view}")
        numbers[view] = page.evaluate(
            """() => [...document.querySelectorAll('#content :is(.view, .view > header, .split, .split > *)')]
              .flatMap(each => [...each.childNodes])
              .filter(node => node.nodeType === Node.TEXT_NODE && /\\d/.test(node.data)).map(node => node.data)"""
        )
    assert {view: some for view, some in numbers.items() if some} == {}


@pytest.mark.parametrize(
    "scopes", [(), ("connection.read",), ("terminal", "shell.any"), ("audit.read", "connection.read")]
)
def test_a_token_of_fewer_rights_sees_a_smaller_page_without_errors(
    filled: Daemon, visit: Visit, scopes: tuple[str, ...]
) -> None:
    holder = create(filled, *scopes)
    visitor = visit()
    page = visitor.opened(filled, authorization={"Authorization": f"Bearer {holder.secret}"})
    visitor.settle(page)
    shown = [link.get_attribute("href") for link in page.locator("nav.side ul a").all()]
    assert len(shown) < len(VIEWS)
    for address in shown:
        visitor.settle(page, address)
    assert page.locator("#faults").inner_text() == ""


def test_the_first_view_is_there_at_once(filled: Daemon, visit: Visit) -> None:
    visitor = visit()
    page = visitor.opened(filled)
    page.reload()
    visitor.settle(page)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint').length")
    assert painted == 1
    # How fast is measured by hand: a test that asserts it would fail on a loaded machine.
    fetched = page.evaluate("performance.getEntriesByType('resource').map(one => new URL(one.name).host)")
    assert set(fetched) == {filled.url.removeprefix("http://")}
