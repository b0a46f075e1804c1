"""docs/MANY_MACHINES.md, verbatim, against a real daemon."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connmgr.client import LOCAL_MACHINE, ROOT_CATEGORY, Client, ClientError
from connmgr.client.names import is_pattern
from connmgr.mcp.bridge import Bridge
from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.fleet import PROGRAMS, run_with
from tests.rights.wire import create
from tests.transcripts import DOCS, home_with_hosts, sit_down, transcripts, typed

PLACES = {"web1": "eu", "web2": "eu", "web3": "us", "db": "us"}

VARIABLE = {r" +[\d.]+ s  ": "  … s  ", r"in [\d.]+ s: ": "in … s: ", r"\S+:\d+ refused": "… refused"}
"""What differs from run to run."""

OUTCOME = re.compile(r"^(web\d|db) .* s  ")


@pytest.fixture
def home(tmp_path: Path, closed_port: int) -> Iterator[Path]:
    """A home directory with an SSH configuration for the page's machines: all are this one, but ``db`` is down."""
    with home_with_hosts(tmp_path / "home", f"Host db\n  Port {closed_port}\n") as home:
        yield home


def _store(client: Client) -> None:
    fleet = client.category.add("fleet", ROOT_CATEGORY)
    regions = {name: client.category.add(name, fleet) for name in set(PLACES.values())}
    for name, region in PLACES.items():
        client.connection.add(name, {"type": "ssh", "host": name}, category=regions[region])


def _comparable(text: str) -> list[str]:
    """Return the lines of a transcript without variable parts, the outcomes sorted by name."""
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    lines, outcomes = list[str](), list[str]()
    for line in text.splitlines():
        if OUTCOME.match(line):
            outcomes.append(line)
            continue
        lines += [*sorted(outcomes), line]
        outcomes = []
    return [*lines, *sorted(outcomes)]


@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    _store(daemon.client)
    sit_down(daemon, monkeypatch)
    for text in transcripts("MANY_MACHINES.md"):
        assert _comparable(typed(text, tmp_path)) == _comparable(text)


NAMES = (DOCS / "MANY_MACHINES.md").read_text().partition("## Names and patterns")[2].partition("\n## ")[0]
RULE = {
    written: set(re.findall("`([^`]+)`", means))
    for written, means in re.findall(r"^\| `([^`]+)` \| (.+) \|$", NAMES, re.MULTILINE)
}
"""What each text of the page's table means; the empty set is an error."""

SINGLE = {written: means for written, means in RULE.items() if not is_pattern(written)}

ODD = {"cache1": set[str](), "web1": set[str](), "grp-a": RULE["grp-a"], "local": RULE["local"]}
"""The names on which earlier rules disagreed."""


@pytest.fixture(scope="module")
def module_daemon() -> Iterator[Daemon]:
    """The daemon of the tests of the page's table."""
    # Not below tmp_path: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory:
        running = Daemon(Path(directory) / "daemon", environment={"SHELL": "/bin/bash"})
        yield running
        running.stop()


@pytest.fixture(scope="module")
def ruled(module_daemon: Daemon) -> dict[str, str]:
    """The uuids of the connections of the page's table, by category and path."""
    client = module_daemon.client
    ids = {"default/local machine": LOCAL_MACHINE}
    (listed,) = re.findall(r"^```\n(.*?)^```$", NAMES, re.DOTALL | re.MULTILINE)
    for number, name in enumerate(listed.splitlines()):
        if name in ids:
            continue
        above, _, last = name.rpartition("/")
        if above in ids:
            data = {"type": "shellEnvironment", "host": ids[above], "commands": [f"umask {number:03}"]}
        else:
            data = {"type": "local", "shell": f"/{'./' * number}bin/sh"}
        category = client.category.add(name.partition("/")[0], ROOT_CATEGORY)
        ids[name] = client.connection.add(last, data, category=category)
    return ids


def _meant(work: Callable[[], set[str]]) -> set[str]:
    """Return what ``work`` finds, nothing if that is refused because of the name."""
    try:
        return work()
    except ClientError as error:
        if error.code != "unknown_connection":
            raise
        return set()


def _with_shells(daemon: Daemon) -> set[str]:
    """Return the uuids of the connections that have shells."""
    return {shell.connection for shell in daemon.client.daemon.status().sessions}


def _stop_shells(daemon: Daemon) -> None:
    for id in _with_shells(daemon):
        daemon.client.shell.stop(id, all=True)


def _used(daemon: Daemon, *arguments: str) -> set[str]:
    """Return the uuids of the connections on which a command line starts shells."""
    _stop_shells(daemon)
    done = CommandLine(daemon)(*arguments, code=None)
    found = _with_shells(daemon)
    assert found or "No connection" in done.errors or "is the name of" in done.errors, done
    return found


@pytest.mark.needs("bash")
@pytest.mark.parametrize("written", RULE)
def test_selectors_of_every_command_follow_the_table(
    module_daemon: Daemon, ruled: dict[str, str], written: str, tmp_path: Path
) -> None:
    wanted = {ruled[name] for name in RULE[written]}
    listed = CommandLine(module_daemon)("ls", "--json", written, code=None)
    assert {one["connection"] for one in (listed.json if listed.code == 0 else [])} == wanted
    (tmp_path / "file").touch()
    assert _used(module_daemon, "exec", "--all", written, "--", "true") == wanted
    assert _used(module_daemon, "cp", "--all", written, str(tmp_path / "file"), f":{tmp_path}/copy") == wanted
    choose = module_daemon.client.connection.choose
    assert _meant(lambda: {one.id for one in choose(written)}) == wanted


@pytest.mark.needs("bash")
@pytest.mark.parametrize("written", SINGLE)
def test_names_of_every_command_follow_the_table(module_daemon: Daemon, ruled: dict[str, str], written: str) -> None:
    client, connmgr = module_daemon.client, CommandLine(module_daemon)
    wanted = {ruled[name] for name in SINGLE[written]}
    shown = connmgr("info", "--json", written, code=None)
    assert ({shown.json["connection"]} if shown.code == 0 else set()) == wanted
    assert _used(module_daemon, "exec", written, "--", "true") == wanted
    assert _used(module_daemon, "cp", f"{written}:/etc/passwd", "-") == wanted
    assert _used(module_daemon, "shell", written) == wanted
    piped = connmgr("ssh", written, "true", code=None)
    [last] = connmgr("audit", "--json", "--action", "shell.pipe", "-n", "1").json if piped.code == 0 else [None]
    assert ({last["connection"]} if last else set()) == wanted
    assert _meant(lambda: {client.connection.find(written)}) == wanted
    holder = create(module_daemon, "connection.read", "shell.any")
    bridge = Bridge(Client(holder.url, api_key=holder.secret))
    try:
        with bridge.client() as lent:
            assert _meant(lambda: {bridge.place(lent, written, None).connection}) == wanted
    finally:
        bridge.close()


@pytest.mark.needs("bash")
def test_pyinfra_follows_the_table(module_daemon: Daemon, ruled: dict[str, str]) -> None:
    program = (
        "import json, sys\n"
        "from connmgr_pyinfra import ConnmgrConnector, InventoryError\n"
        "for name in sys.argv[1:]:\n"
        "    try: found = [data['connmgr_connection'] for _, data, _ in ConnmgrConnector.make_names_data(name)]\n"
        "    except InventoryError as error: found = str(error)\n"
        "    print(json.dumps(found))\n"
    )
    python = Path(sys.prefix) / "pyinfra" / "bin" / "python"
    done = run_with(module_daemon, python, "-c", program, *RULE)
    for (written, means), line in zip(RULE.items(), done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert (set() if isinstance(found, str) else set(found)) == {ruled[name] for name in means}, (written, found)


@pytest.mark.needs("bash")
@pytest.mark.parametrize("written", ODD)
def test_ansible_follows_the_table(module_daemon: Daemon, ruled: dict[str, str], written: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yml"
    file.write_text(json.dumps({"plugin": "connmgr.connmgr.connmgr", "names": [written]}))
    environment = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"}
    words = [PROGRAMS / "ansible-inventory", "-i", file, "--list"]
    done = run_with(module_daemon, *words, code=None, environment=environment)
    hosts = json.loads(done.stdout)["_meta"]["hostvars"].values() if done.returncode == 0 else []
    # Ansible marks values from outside as not to be evaluated.
    ids = {one["connmgr_connection"]["__ansible_unsafe"] for one in hosts}
    assert ids == {ruled[name] for name in ODD[written]}
    _stop_shells(module_daemon)
    ran = [PROGRAMS / "ansible", "-i", f"{written},", "-c", "connmgr.connmgr.connmgr", "all", "-m", "raw", "-a", "true"]
    run_with(module_daemon, *ran, code=None)
    assert _with_shells(module_daemon) == {ruled[name] for name in ODD[written]}
