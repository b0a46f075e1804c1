"""The views of work: what waits for a decision, commands on many machines, jobs and tunnels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_data
from tests.rights.wire import create
from tests.tunnels.services import Service, client, exactly, first_word

if TYPE_CHECKING:
    from tests.page.conftest import Visit

pytestmark = pytest.mark.needs("chromium", "libatomic")

ASKS = [{"effect": "ask", "text": "."}]


def test_an_approval_in_the_page_lets_the_waiting_command_run(own_daemon: Daemon, visit: Visit) -> None:
    holder = create(own_daemon, "shell.any", rules=ASKS)
    page = visit().opened(own_daemon, "#/approvals")
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


def test_what_waits_for_a_decision_is_seen_by_a_browser_whose_clock_is_wrong(own_daemon: Daemon, visit: Visit) -> None:
    holder = create(own_daemon, "shell.any", rules=ASKS)
    asked = holder.send("/shell/exec", connection=LOCAL, command="true", start=True).json["approval"]
    visitor = visit(locale="en-GB")
    visitor.context.add_init_script("const now = Date.now; Date.now = () => now() + 5 * 86_400_000")
    page = visitor.opened(own_daemon, "#/approvals")
    page.get_by_role("row").click()
    page.get_by_role("button", name="Approve once").wait_for()
    said = page.get_by_role("complementary", name="Approvals").locator("header time").inner_text()
    assert said in {"just now", "1 min ago"}
    page.get_by_role("button", name="Deny").click()
    denied = partial(own_daemon.client.post, "/approval/query", states=["denied"])
    eventually(lambda: [one["approval"] for one in denied()["approvals"]] == [asked], "the request is denied")


@pytest.fixture
def machines(clean_daemon: Daemon) -> list[str]:
    """Five connections to this machine; on a shared daemon they could be those of another test, by its names."""
    shells = ("/bin/bash", "/bin/sh", "/bin/dash", "/usr/bin/sh", "/usr/bin/dash")
    return [
        clean_daemon.client.post("/connection/add", name=f"node{number}", data={"type": "local", "shell": shell})[
            "connection"
        ]
        for number, shell in enumerate(shells)
    ]


def test_a_command_on_five_machines_has_equal_results_together_and_its_failures_retried(
    clean_daemon: Daemon, machines: list[str], visit: Visit, tmp_path: Path
) -> None:
    page = visit().opened(clean_daemon, "#/run")
    page.get_by_label("Machines", exact=True).get_by_role("searchbox").fill("node*")
    page.get_by_role("button", name=f"Choose all {len(machines)}").click()
    page.get_by_text("On node0, node1, node2, node3, node4").wait_for()
    page.get_by_role("textbox", name="Command").fill(
        f"mkdir {tmp_path}/lock 2>/dev/null || test -e {tmp_path}/free || {{ echo '<b>taken</b>'; exit 3; }}"
    )
    page.keyboard.press("Control+Enter")
    page.get_by_role("button", name="Retry the 4 failures").wait_for()
    groups = page.locator(".group")
    assert [group.get_attribute("aria-label") for group in groups.all()] == [
        "exit 3 on 4 machines",
        "done on 1 machine",
    ]
    assert groups.first.locator("pre").inner_text() == "<b>taken</b>"
    (tmp_path / "free").touch()
    page.get_by_role("button", name="Retry the 4 failures").click()
    page.get_by_text("5 machines done, 0 failed").wait_for()
    assert groups.count() == 1


def test_output_that_no_browser_could_draw_is_stored_as_a_file(daemon: Daemon, visit: Visit) -> None:
    size = 2_000_000
    page = visit().opened(daemon, f"#/run/{LOCAL}")
    page.get_by_role("textbox", name="Command").fill(f"head -c {size} /dev/zero | tr '\\0' x")
    page.get_by_role("button", name="Run on 1 machine").click()
    page.get_by_role("button", name="Show more of it").click()
    eventually(lambda: page.locator(".group pre").evaluate("one => one.textContent.length") == 200_000, "its beginning")
    with page.expect_download() as stored:
        page.get_by_role("button", name="Save all of it").click()
    assert stored.value.path().stat().st_size == size


def test_a_command_in_the_page_is_stopped(daemon: Daemon, visit: Visit, tmp_path: Path) -> None:
    page = visit().opened(daemon, f"#/run/{LOCAL}")
    page.get_by_role("textbox", name="Command").fill(f"touch {tmp_path}/begun; exec sleep 1000")
    page.get_by_role("button", name="Run on 1 machine").click()
    eventually((tmp_path / "begun").exists, "the command runs")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Stop").wait_for(state="detached")
    assert page.locator(".group").count() == 0


def test_a_saved_command_is_run_by_a_form_of_its_parameters(clean_daemon: Daemon, visit: Visit) -> None:
    clean_daemon.client.command.save(
        "greet",
        ["echo", {"parameter": "whom"}, {"parameter": "times"}],
        parameters={"whom": {"in": ["<world>", "you"]}, "times": {"integer": {"min": 1, "max": 9}}},
    )
    page = visit().opened(clean_daemon, f"#/run/{LOCAL}")
    page.get_by_label("What").select_option("greet")
    page.get_by_label("whom").select_option("<world>")
    page.get_by_label("times").fill("5")
    page.get_by_role("button", name="Run on 1 machine").click()
    assert page.locator(".group pre").inner_text() == "<world> 5"


def test_a_job_is_started_followed_given_input_and_removed(clean_daemon: Daemon, visit: Visit) -> None:
    page = visit().opened(clean_daemon, "#/jobs")
    page.get_by_role("button", name="Start a job").click()
    page.get_by_label("On the machine").fill("local machine")
    page.get_by_role("textbox", name="Command").fill('echo begun; read line; echo "<i>$line</i>" >&2; exit 4')
    page.get_by_label("Send it lines of input later").check()
    page.get_by_role("button", name="Start", exact=True).click()
    output = page.get_by_role("region", name="Output")
    output.get_by_text("begun").wait_for()
    page.get_by_label("Input", exact=True).fill("hello")
    page.get_by_role("button", name="Send").click()
    output.get_by_text("<i>hello</i>").wait_for()
    page.get_by_role("row").get_by_text("exit 4", exact=True).wait_for()
    page.get_by_role("button", name="Remove").click()
    page.get_by_text("will be removed; so will its output on its machine.").wait_for()
    page.locator("#toasts").get_by_role("button", name="Dismiss").last.click()
    page.get_by_text("No jobs yet").wait_for()


def test_a_job_that_prints_a_line_without_end_is_cut(daemon: Daemon, visit: Visit) -> None:
    client = daemon.client
    client.post("/shell/start", connection=LOCAL)
    command = "read line; head -c 100000000 /dev/zero | tr '\\0' x; echo '<i>over' >&2"
    job = client.post("/job/start", connection=LOCAL, command=command, stdin="open")["job"]
    page = visit().opened(daemon, f"#/jobs/{job}")
    page.get_by_label("Input").fill("go")
    page.get_by_role("button", name="Send").click()
    output = page.get_by_role("region", name="Output")
    output.get_by_text("<i>over").wait_for()
    page.get_by_text("Only the end of the output is shown.").wait_for()
    page.get_by_text("The rest was dropped by the daemon's limit.").wait_for()
    shown = len(output.text_content() or "")
    assert 0 < shown <= 250_000
    client.post("/job/remove", job=job)


def test_a_job_in_the_page_is_killed(daemon: Daemon, visit: Visit) -> None:
    daemon.client.post("/shell/start", connection=LOCAL)
    job = daemon.client.post("/job/start", connection=LOCAL, command="exec sleep 1000")["job"]
    page = visit().opened(daemon, f"#/jobs/{job}")
    page.get_by_role("button", name="Kill it").click()
    # Not in the list, where the jobs of other tests may be.
    page.get_by_role("complementary", name="Jobs").get_by_text("killed 137").wait_for()


@pytest.mark.needs("sshd")
def test_a_tunnel_is_opened_leads_to_a_page_and_is_closed(clean_daemon: Daemon, visit: Visit, tmp_path: Path) -> None:
    with ssh_server(tmp_path) as server, closing(Service(first_word)) as service:
        far = clean_daemon.client.post(
            "/connection/add", name="far", data={"type": "ssh", **ssh_data(server, server.user)}
        )["connection"]
        data = {"type": "sshLocalTunnel", "host": far, "remoteHost": "127.0.0.1", "remotePort": service.port}
        tunnel = clean_daemon.client.post("/connection/add", name="<b>database", data=data)["connection"]
        page = visit().opened(clean_daemon, "#/tunnels")
        page.get_by_role("row").get_by_text("<b>database").click()
        page.get_by_role("button", name="Open", exact=True).click()
        link = page.get_by_role("link", name="Open in a new tab")
        page.get_by_text("Not known as a web server").wait_for()
        assert link.count() == 0
        clean_daemon.client.post("/connection/label", connections=[tunnel], labels={"web": "http"})
        address = urlsplit(str(link.get_attribute("href")))
        assert (address.scheme, address.hostname, link.get_attribute("rel")) == (
            "http",
            "127.0.0.1",
            "noopener noreferrer",
        )
        with client(int(address.port or 0)) as connected:
            assert exactly(connected, 7) == b"welcome"
        page.get_by_role("button", name="Close", exact=True).click()
        page.get_by_role("row").get_by_text("stopped").wait_for()
        assert link.count() == 0
        page.get_by_role("link", name="in the hub").click()
        details = page.get_by_role("complementary", name="far/<b>database")
        details.get_by_text("web=http").wait_for()
        details.get_by_role("button", name="Remove", exact=True).click()
        details.wait_for(state="detached")
        page.get_by_role("button", name="Undo").click()
        details.get_by_text("web=http").wait_for()
        tunnels = {"connectionFilter": "*", "categoryFilter": "*", "typeFilter": "sshLocalTunnel"}
        [again] = clean_daemon.client.post("/connection/query", **tunnels)["found"]
        assert again != tunnel
        [info] = clean_daemon.client.post("/connection/info", connections=[again])["infos"]
        assert info["rawData"].items() >= data.items()


def test_a_token_sees_the_views_that_its_rights_reach(daemon: Daemon, visit: Visit) -> None:
    holder = create(daemon, "connection.read", "job")
    page = visit().opened(daemon, authorization={"Authorization": f"Bearer {holder.secret}"})
    page.get_by_role("link", name="Jobs").click()
    page.get_by_text("No jobs yet").wait_for()
    for name in ("Run", "Tunnels", "Approvals"):
        assert page.get_by_role("link", name=name, exact=True).count() == (name == "Tunnels"), name
