"""The view of runs: begun in the page, followed cell by cell, held, stopped, and run again where it failed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.daemon import Daemon
from tests.page.axe import hindrances

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.page.conftest import Visit

pytestmark = pytest.mark.needs("chromium", "libatomic")

SHELLS = ("/bin/bash", "/bin/sh", "/bin/dash", "/usr/bin/sh")


@pytest.fixture
def machines(clean_daemon: Daemon) -> list[str]:
    """Four connections to this machine; on a shared daemon they could be those of another test, by its names."""
    add = clean_daemon.client.connection.add
    return [add(f"cell{number}", {"type": "local", "shell": shell}) for number, shell in enumerate(SHELLS)]


def legend(page: Page) -> list[str]:
    return [item.inner_text() for item in page.locator(".legend li").all()]


def test_a_run_is_begun_in_the_page_and_its_next_wave_by_hand(
    clean_daemon: Daemon, machines: list[str], visit: Visit
) -> None:
    page = visit().opened(clean_daemon, f"#/run/{'/'.join(machines)}")
    page.get_by_role("textbox", name="Command").fill("echo '<b>same</b>'")
    page.get_by_label("Keep it as a run").check()
    page.get_by_label("Name").fill("<i>canary</i>")
    page.get_by_label("One machine before all others").check()
    page.get_by_label("Wait for me between waves").check()
    page.get_by_label("Stop after so many failures").fill("5%")
    page.get_by_role("button", name="Run on 4 machines").click()
    page.get_by_role("heading", name="<i>canary</i>").wait_for()
    details = page.get_by_role("complementary", name="Runs")
    details.get_by_role("button", name="Begin the next wave").wait_for()
    assert legend(page) == ["3 waiting", "1 done"]
    assert details.get_by_text("1 of 2", exact=True).count() == 1
    details.get_by_role("button", name="Show what they printed so far").click()
    details.get_by_role("region", name="done on 1 machine").wait_for()
    details.get_by_role("button", name="Begin the next wave").click()
    group = details.get_by_role("region", name="done on 4 machines")
    assert group.locator("pre").inner_text() == "<b>same</b>"
    assert legend(page) == ["4 done"]
    assert hindrances(page) == []


def test_a_program_without_a_shell_gets_its_arguments_as_they_stand(
    clean_daemon: Daemon, machines: list[str], visit: Visit
) -> None:
    page = visit().opened(clean_daemon, f"#/run/{'/'.join(machines)}")
    page.get_by_label("What").select_option("A program, without a shell")
    page.get_by_role("textbox", name="Program and arguments").fill("printf\n(%s)\n$HOME *\n\n<b>end</b>")
    page.get_by_text("How", exact=True).click()
    page.get_by_role("textbox", name="Input", exact=True).fill("read by nobody")
    page.get_by_role("button", name="Run on 4 machines").click()
    page.get_by_text("4 machines done, 0 failed").wait_for()
    assert page.locator(".group pre").inner_text() == "($HOME *)()(<b>end</b>)"
    assert hindrances(page) == []


def test_a_command_s_bytes_its_variables_and_whether_shells_are_opened_are_as_the_form_says(
    clean_daemon: Daemon, machines: list[str], visit: Visit
) -> None:
    page = visit().opened(clean_daemon, "#/run")
    page.get_by_role("grid", name="Machines").wait_for()
    page.get_by_role("combobox", name="Type").select_option("local")
    page.get_by_role("searchbox", name="Machines").fill("cell*")
    page.get_by_role("button", name="Choose all 4").click()
    page.get_by_role("textbox", name="Command").fill(r"cat; printf '\377'")
    page.get_by_text("How", exact=True).click()
    page.get_by_label("Open shells that are not open").uncheck()
    page.get_by_role("button", name="Run on 4 machines").click()
    page.get_by_role("region", name="no_shell on 4 machines").wait_for()
    page.get_by_label("Open shells that are not open").check()
    page.get_by_label("Variables of mine").fill("LC_PAPER=a4\nLC_NAME=b c")
    page.get_by_label("Input", exact=True).fill("AAEC")
    page.get_by_label("Input and output").select_option("in base64, byte by byte")
    with page.expect_request("**/shell/broadcast") as sent:
        page.get_by_role("button", name="Run on 4 machines").click()
    assert sent.value.post_data_json["sendEnv"] == {"LC_PAPER": "a4", "LC_NAME": "b c"}
    page.get_by_text("4 machines done, 0 failed").wait_for()
    assert page.locator(".group pre").inner_text() == "AAEC/w=="
    assert hindrances(page) == []


def test_a_script_is_tried_without_starting_and_then_kept_as_a_run_of_jobs(
    clean_daemon: Daemon, machines: list[str], visit: Visit
) -> None:
    before = {one.run for one in clean_daemon.client.runs.query()}
    page = visit().opened(clean_daemon, f"#/run/{'/'.join(machines)}")
    page.get_by_label("What").select_option("A script")
    assert page.get_by_label("Keep it as a run").is_checked()
    page.get_by_role("textbox", name="Script", exact=True).fill('#!/bin/bash\nprintf \'<%s>\' "$0" "$@"')
    page.get_by_role("textbox", name="Arguments", exact=True).fill("one two\n\nthree")
    page.get_by_label("One machine before all others").check()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Runs", exact=True).select_option("as jobs, which outlive the daemon")
    page.get_by_label("Keep it after its end, in days").fill("1.5")
    page.get_by_role("textbox", name="Key", exact=True).fill("nightly")
    page.get_by_label("Stop after so many failures").fill("10")
    page.get_by_role("button", name="Say what it would do").click()
    page.get_by_text("Nothing is started. It would run on 4 machines, in waves of 1, 3, as job").wait_for()
    page.get_by_text("10 targets cannot fail, because the run has 4").wait_for()
    assert {one.run for one in clean_daemon.client.runs.query()} == before
    with page.expect_request("**/run/start") as sent:
        page.get_by_role("button", name="Run on 4 machines").click()
    assert (sent.value.post_data_json["keep"], sent.value.post_data_json["key"]) == (129_600, "nightly")
    details = page.get_by_role("complementary", name="Runs")
    group = details.get_by_role("region", name="done on 4 machines")
    assert group.locator("pre").inner_text() == "<script><one two><><three>"
    [stored] = [one for one in clean_daemon.client.runs.query() if one.run not in before]
    assert (stored.as_, stored.waves) == ("job", [1, 3])


def test_facts_are_gathered_by_a_run(clean_daemon: Daemon, machines: list[str], visit: Visit) -> None:
    page = visit().opened(clean_daemon, f"#/run/{machines[0]}")
    page.get_by_role("textbox", name="Command").fill("echo left alone")
    page.get_by_text("How", exact=True).click()
    page.get_by_label("In the directory").fill("/nowhere")
    page.get_by_label("What").select_option("Gather facts")
    page.get_by_label("Parts of them").fill("system")
    page.get_by_role("button", name="Run on 1 machine").click()
    page.get_by_role("complementary", name="Runs").get_by_role("region", name="done on 1 machine").wait_for()
    [found] = clean_daemon.client.post("/fact/query", connectionFilter="**/cell0")["machines"]
    assert set(found["gathered"]) == {"system"}


def test_a_cell_tells_of_its_target_and_what_failed_is_run_again(
    clean_daemon: Daemon, machines: list[str], visit: Visit, tmp_path: Path
) -> None:
    command = f"mkdir {tmp_path}/lock 2>/dev/null || test -e {tmp_path}/free || {{ echo taken; exit 3; }}"
    run = clean_daemon.client.runs.start(connections=machines, command=command, parallel=1).run
    assert run is not None
    clean_daemon.client.runs.wait(run)
    page = visit().opened(clean_daemon, f"#/runs/{run}")
    page.get_by_role("region", name="exit 3 on 3 machines").wait_for()
    page.get_by_text("3 of 4 targets failed.").wait_for()
    cells = page.get_by_role("slider", name="Target")
    cells.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.get_by_role("region", name="exit 3 on 1 machine").wait_for()
    assert cells.get_attribute("aria-valuetext") == "2 of 4: failed"
    box = cells.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 48, box["y"] + box["height"] / 2)
    page.get_by_role("region", name="done on 1 machine").filter(has_text="cell0").last.wait_for()
    assert cells.get_attribute("aria-valuetext") == "1 of 4: done"
    (tmp_path / "free").touch()
    page.get_by_role("button", name="Retry the 3 without success").click()
    page.get_by_role("region", name="done on 3 machines").wait_for()
    page.get_by_role("link", name="an earlier run").click()
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("complementary").wait_for(state="detached")
    page.locator("#toasts").get_by_role("button", name="Dismiss").last.click()
    page.locator(".row.leaving").wait_for(state="detached")
    assert [one.retry_of for one in clean_daemon.client.runs.query() if run in (one.run, one.retry_of)] == [run]


def test_a_run_is_paused_goes_on_and_is_stopped(clean_daemon: Daemon, machines: list[str], visit: Visit) -> None:
    run = clean_daemon.client.runs.start(connections=machines[:2], command="exec sleep 1000", parallel=1).run
    page = visit().opened(clean_daemon, f"#/runs/{run}")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Stop and kill").click()
    page.get_by_role("button", name="Remove").wait_for()
    page.get_by_text("The run was stopped by page.", exact=True).wait_for()
    page.get_by_text("The run was stopped by page; the command was killed.").first.wait_for()
    assert "1 stopped" in legend(page)


def test_twenty_thousand_targets_are_few_lines_and_each_in_its_place(daemon: Daemon, visit: Visit) -> None:
    page = visit().opened(daemon)
    drawn: dict[str, Any] = page.evaluate(
        """async () => {
          const { drawn } = await import('/page/views/runs.js');
          return drawn('2'.repeat(15000) + '3' + '0'.repeat(4999), [1, 1999, 18000]);
        }"""
    )
    assert [place["first"] for place in drawn["places"]] == [0, 1, 2000]
    paths = {state: path for state, path in enumerate(drawn["paths"]) if path}
    assert set(paths) == {0, 2, 3}
    rows = -(-1999 // drawn["columns"]) + -(-18000 // drawn["columns"]) + 1
    assert sum(path.count("M") for path in paths.values()) <= rows + 2
    assert paths[2].startswith("M0 0.5h0.8M0 2.1h")
