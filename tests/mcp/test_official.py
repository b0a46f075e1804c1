"""The official clients with this server: the inspector on both transports, and the conformance suite."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.mcp import official
from tests.mcp.agent import server_spawner
from tests.mcp.bearing import BearingProxy
from tests.mcp.bridge import HttpBridge
from tests.rights import wire
from tests.rights.wire import Holder

pytestmark = [
    pytest.mark.usefixtures("official_clients"),
    pytest.mark.timeout(official.INSTALL_SECONDS + official.RUN_SECONDS),
]

SCOPES = ("connection.read", "shell.any", "job", "fs.read", "fs.write", "terminal")
CONNECT_MS = "60000"
ERAS = ("legacy", "modern")
_CONTENTS = {
    # Completion of arguments, pictures, sounds and embedded resources are not served, nor a tool whose schema has all
    # of JSON Schema's words.
    *("completion-complete", "tools-call-image", "tools-call-audio", "tools-call-embedded-resource"),
    *("tools-call-mixed-content", "resources-read-binary", "prompts-get-embedded-resource", "prompts-get-with-image"),
    "json-schema-2020-12",
}
WANTING = {
    "2025-11-25": {
        *_CONTENTS,
        # No log messages, no subscriptions, and no stream that a server ends so that the client polls.
        *("logging-set-level", "tools-call-with-logging", "resources-subscribe", "resources-unsubscribe"),
        "server-sse-polling",
        # The form of an approval has one choice without a default.
        *("elicitation-sep1034-defaults", "elicitation-sep1330-enums"),
    },
    "2026-07-28": {
        *_CONTENTS,
        # No parameter is a header.
        "http-custom-header-server-validation",
        # A call asks one question at a time, about an approval, and only clients that answer forms; no prompt asks.
        *("input-required-result-multiple-input-requests", "input-required-result-multi-round"),
        *("input-required-result-non-tool-request", "input-required-result-capability-check"),
    },
}
"""By version the scenarios for whose tools, prompts and resources :mod:`tests.mcp.everything` has none, and why."""

TASKS = {
    "tasks-lifecycle": "No command ends as an error of its tool, or of the protocol: its exit code is its result.",
    "tasks-capability-negotiation": "",
    "tasks-wire-fields": "",
    "tasks-request-state-removal": "",
    "tasks-mrtr-input": "A command asks for one line, the member `answer`, and not for several at once.",
    "tasks-request-headers": "",
    "tasks-dispatch-and-envelope": "",
    "tasks-status-notifications": "",
    "tasks-required-task-error": "No tool needs clients that have tasks.",
    "tasks-mrtr-composition": "No tool gathers anything but a person's decision before its command begins.",
}
"""The scenarios of the extension for tasks, and why the server fails in some of them, which have tools for more."""


@pytest.fixture(scope="module")
def holder(daemon: Daemon) -> Holder:
    return wire.create(daemon, *SCOPES)


def inspect(home: Path, era: str, target: list[str], *options: str) -> dict[str, Any]:
    """Send a request to the server at ``target`` by the inspector, and return the result."""
    words = ["--cli", "--protocol-era", era, "--format", "json", "--quiet", "--connect-timeout", CONNECT_MS]
    code, output, errors = official.run(official.INSPECTOR, *words, *options, *target, home=home)
    assert code == 0, (output, errors)
    result: dict[str, Any] = json.loads(output)["result"]
    return result


@pytest.fixture
def stdio(daemon: Daemon, holder: Holder) -> list[str]:
    program = server_spawner().command
    return ["-e", f"CONNMGR_TOKEN={holder.secret}", "--", *program, "--url", daemon.url, "mcp"]


@pytest.fixture
def http(bridge: HttpBridge, holder: Holder) -> list[str]:
    return ["--server-url", bridge.url, "--transport", "http", "--header", f"Authorization: Bearer {holder.secret}"]


@pytest.mark.parametrize("era", ERAS)
def test_the_inspector_finds_no_fault_with_the_tools(tmp_path: Path, http: list[str], era: str) -> None:
    listed = inspect(tmp_path, era, http, "--method", "tools/list", "--strict")["tools"]
    assert {"list_systems", "run_command"} <= {one["name"] for one in listed}
    assert all(one["outputSchema"] and one["annotations"] for one in listed)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_inspector_runs_a_command(tmp_path: Path, request: pytest.FixtureRequest, transport: str, era: str) -> None:
    """It lists the tools first."""
    target = request.getfixturevalue(transport)
    arguments = json.dumps({"system": "local", "command": "echo out; exit 3"})
    call = ("--method", "tools/call", "--tool-name", "run_command", "--tool-args-json", arguments)
    told = inspect(tmp_path, era, target, *call)["structuredContent"]
    assert (told["state"], told["exitCode"], told["stdout"]) == ("exited", 3, "out\n")


def failures(home: Path, url: str, version: str) -> set[str]:
    """Return the scenarios of a version in which the server at ``url`` fails."""
    words = ["server", "--url", url, "--suite", "all", "--spec-version", version]
    _, output, errors = official.run(official.CONFORMANCE, *words, home=home)
    print(output, errors)
    summary = re.findall(r"^([✓✗]) ([\w-]+): \d+ passed", output, re.MULTILINE)
    assert summary
    return {name for mark, name in summary if mark == "✗"}


@pytest.mark.slow
def test_the_server_conforms(tmp_path: Path, daemon: Daemon, holder: Holder) -> None:
    everything = [sys.executable, "-m", "tests.mcp.everything"]
    with HttpBridge(daemon, program=everything) as bridge, BearingProxy(bridge.url, holder.secret) as proxy:
        assert {version: failures(tmp_path, proxy.url, version) for version in WANTING} == WANTING


@pytest.mark.slow
def test_tasks_conform(tmp_path: Path, daemon: Daemon, holder: Holder) -> None:
    everything = [sys.executable, "-m", "tests.mcp.everything"]
    failed: set[str] = set()
    with HttpBridge(daemon, program=everything) as bridge, BearingProxy(bridge.url, holder.secret) as proxy:
        for scenario in TASKS:
            words = ["server", "--url", proxy.url, "--scenario", scenario]
            code, output, errors = official.run(official.CONFORMANCE, *words, home=tmp_path)
            print(output, errors)
            assert re.search(r"^Passed: \d+/\d+", output, re.MULTILINE), scenario
            if code:
                failed.add(scenario)
    assert failed == {scenario for scenario, why in TASKS.items() if why}
