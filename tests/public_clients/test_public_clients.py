"""Every method of the public clients of the XPipe API, unmodified, against a real daemon, sync and async."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connmgr import __version__
from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.public_clients import installed
from tests.public_clients.installed import VERSIONS, Version

# They are installed if `make` could not.
pytestmark = pytest.mark.timeout(900)

HERE = Path(__file__).parent
KINDS = ("Client", "AsyncClient")
DESKTOP = ("action",)
"""Methods of the clients that connmgr does not have, because they need a desktop program."""


@dataclass
class Outcome:
    """The outcome of a client's session: ``results`` by method, with a label if it is called twice."""

    version: Version
    methods: set[str]
    results: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.results[key]

    def of_noun(self, key: str) -> Any:
        return self.results[f"{self.noun}_{key}"]

    @property
    def noun(self) -> str:
        return "store" if self.version.store else "connection"


@pytest.fixture(scope="module", params=VERSIONS, ids=str)
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    version = request.param
    try:
        places = installed.search_path(version)
    except installed.InstallationError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.getbasetemp()
    # Once in a run, whose workers have directories beside each other.
    shared = directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory
    with (shared / f"{version}.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        told = file.read()
        if not told:
            told = _session(version, places, tmp_path_factory)
            file.write(told)
    answers = json.loads(told)
    return {kind: Outcome(version, set(one["methods"]), one["results"]) for kind, one in answers.items()}


@pytest.fixture(params=KINDS)
def outcome(request: pytest.FixtureRequest, outcomes: dict[str, Outcome]) -> Outcome:
    return outcomes[request.param]


def _session(version: Version, places: list[Path], directories: pytest.TempPathFactory) -> str:
    """Return what a session of each kind has come to, as JSON."""
    home, temporary = directories.mktemp("home"), directories.mktemp("temporary")
    auth_file = temporary / version.auth_file.format(user="somebody")
    auth_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    daemon = Daemon(home, "--auth-file", str(auth_file))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(daemon.home),
        "USER": "somebody",
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "CONNMGR_TEST_URL": daemon.url,
    }
    command = [sys.executable, str(HERE / "session.py"), version.module, *KINDS]
    try:
        done = subprocess.run(
            command, env=environment, cwd=temporary, capture_output=True, text=True, timeout=200, check=False
        )
    finally:
        daemon.stop()
    assert done.returncode == 0, f"{done.stderr}\ndaemon: {daemon.stderr()}"
    return done.stdout


def test_every_method_of_the_client_is_called(outcome: Outcome) -> None:
    called = {key.split(" ")[0] for key in outcome.results}
    assert outcome.methods - called == set()


def test_it_authenticates_with_the_auth_file(outcome: Outcome) -> None:
    assert outcome["renew_session"] is None
    assert outcome["daemon_version"]["buildVersion"] == __version__
    assert json.loads(outcome["get"]) == json.loads(outcome["post"]) == outcome["daemon_version"]
    if "from_sync_client" in outcome.methods:
        assert outcome["from_sync_client"] == outcome["daemon_version"]["version"]


def test_it_works_on_connections(outcome: Outcome) -> None:
    added = outcome.of_noun("add")
    assert outcome.of_noun("add again") == added
    assert sorted(outcome.of_noun("query")) == sorted([LOCAL, added])
    assert outcome.of_noun("query filtered") == [LOCAL]
    assert [info[outcome.noun] for info in outcome.of_noun("info two")] == [LOCAL, added]
    assert outcome.of_noun("refresh") is outcome.of_noun("remove") is None
    assert outcome.of_noun("query removed") == []


def test_a_description_has_every_field_that_the_client_reads(outcome: Outcome) -> None:
    (info,) = outcome.of_noun("info")
    assert set(info) == {
        outcome.noun,
        "category",
        "name",
        "type",
        "rawData",
        "usageCategory",
        "lastUsed",
        "labels",
        "lastModified",
        "state",
        "cache",
    }
    assert info["name"] == ["local machine"]
    assert info["rawData"] == {"type": "local"}
    assert [one[outcome.noun] for one in outcome[f"get_{outcome.noun}s"]] == [LOCAL]


def test_errors_reach_the_client_with_their_message(outcome: Outcome) -> None:
    unknown = outcome.of_noun("info unknown")
    assert "Unknown connection: 00000000-0000-4000-8000-000000000000" in unknown["message"]
    assert "not found on the machine" in outcome.of_noun("add refused")["message"]
    assert "No shell session is running" in outcome["shell_exec stopped"]["message"]
    assert "File does not exist" in outcome["fs_read missing"]["message"]


def test_it_works_on_categories(outcome: Outcome) -> None:
    if "category_add" not in outcome.methods:
        assert str(outcome.version) == "xpipe-client-0.1.26", "every later client works on categories"
        return
    added = outcome["category_add"]
    assert outcome["category_query"] == [added]
    (info,) = outcome["category_info"]
    assert (info["category"], info["name"]) == (added, ["all connections", "public clients"])
    assert outcome["category_remove"] is None
    assert outcome["category_query removed"] == []


def test_it_runs_commands(outcome: Outcome) -> None:
    started = outcome["shell_start"]
    assert set(started) == {"shellDialect", "osType", "osName", "ttyState", "temp"}
    assert outcome["shell_exec"] == {"exitCode": 3, "stdout": "out", "stderr": "err"}
    assert outcome["shell_stop"] is None


def test_it_moves_files(outcome: Outcome) -> None:
    assert outcome["fs_write"] is None
    read = [outcome[key] for key in ("fs_read", "fs_read of a file") if key in outcome.results]
    assert set(read) == {"größer\n"}
    assert outcome["fs_script"]
    assert outcome["shell_exec script"] == {"exitCode": 0, "stdout": "ran", "stderr": ""}


def test_it_keeps_secrets(outcome: Outcome) -> None:
    opened = {key: value for key, value in outcome.results.items() if key.startswith("secret_decrypt")}
    assert bool(opened) == ("secret_decrypt" in outcome.methods)
    assert set(opened.values()) <= {"correct horse"}


def test_it_adds_a_service_of_this_machine_by_its_host(outcome: Outcome) -> None:
    assert outcome.of_noun("query service") == [outcome.of_noun("add service")]
    assert outcome.of_noun("remove service") is None
    assert outcome.of_noun("query removed service") == []


def test_it_toggles_what_can_be_toggled(outcome: Outcome) -> None:
    toggles = f"{outcome.noun}_toggle" in outcome.methods
    for state in (True, False) if toggles else ():
        assert outcome.of_noun(f"toggle to {state}") is None
        (info,) = outcome.of_noun(f"info toggled to {state}")
        assert info["cache"] == {"sessionEnabled": state}
    assert not toggles or "cannot be toggled" in outcome.of_noun("toggle of a machine")["message"]


def test_browse_and_terminal_do_nothing_for_known_connections_and_fail_for_unknown_ones(outcome: Outcome) -> None:
    for name in ("browse", "terminal"):
        if f"{outcome.noun}_{name}" in outcome.methods:
            assert outcome.of_noun(name) is None
            unknown = "Unknown connection: ffffffff-ffff-ffff-ffff-ffffffffffff"
            assert unknown in outcome.of_noun(f"{name} unknown")["message"]


def test_endpoints_of_a_desktop_program_are_not_found(outcome: Outcome) -> None:
    for name in DESKTOP:
        if name in outcome.methods:
            result = outcome[name]
            assert result["error"] in {"HTTPError", "ClientResponseError"}, (name, result)
            assert "404" in result["message"], (name, result)


def test_not_found_is_json_with_a_code(daemon: Daemon) -> None:
    for path in ("/action", "/connection/open", "/store/open"):
        request = urllib.request.Request(daemon.url + path, b"{}", {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 404
        assert json.load(refused.value)["code"] == "not_found"
