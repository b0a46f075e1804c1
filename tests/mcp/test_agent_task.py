"""Whole tasks of agents by tools on twelve machines: one has a broken unit file, another a full disk."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client

from connmgr.client import Client as DaemonClient
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.server import BridgeServer
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.mcp.agent import content, refused
from tests.plugins.machine import Machine
from tests.plugins.places import Places, ssh_fields
from tests.rights import wire

pytestmark = [pytest.mark.needs("machine", "sshd", "sudo", "linux"), pytest.mark.slow]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "agent.py"
HOSTS = tuple(f"web{number:02}" for number in range(1, 13))
BROKEN = "web04"
FULL = "web07"
MOST_CALLS = 120
TASK_SECONDS = 240.0
LARGEST_ANSWER = 80_000
"""Of an answer with all its parts, in characters."""

UNIT = "/etc/systemd/system/web.service"
TEXT = "[Unit]\nDescription=The site\n\n[Service]\nExecStart=/bin/sleep 120\nRestart=always\n"
TYPO = TEXT.replace("/bin/sleep", "/bin/slep")

SYSTEMCTL = """\
#!/bin/sh
# systemd itself needs a machine that it has booted.
unit=$2 pid=/run/$2.pid log=/run/$2.log
words=$(sed -n 's/^ExecStart=//p' "/etc/systemd/system/$unit")
active() { [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
case $1 in
is-active) if active; then echo active; else echo failed; exit 3; fi ;;
restart)
  if active; then kill "$(cat "$pid")"; fi
  program=${words%% *}
  if ! [ -x "$program" ]; then echo "Unable to locate executable '$program'" | tee -a "$log" >&2; exit 1; fi
  setsid $words </dev/null >>"$log" 2>&1 &
  echo $! >"$pid"
  echo "Started $unit." >>"$log" ;;
esac
"""
JOURNALCTL = """\
#!/bin/sh
# Without a number of lines it prints 100 MB first, and ends when the machine lets it.
if [ "$3" ]; then exec tail -n "$4" "/run/$2.log"; fi
head -c 100000000 /dev/zero | tr '\\0' .
echo
touch /run/printed
until [ -e /run/journal-may-end ]; do sleep 0.05; done
cat "/run/$2.log"
"""
DISK_FREE = """\
#!/bin/sh
# Of the directory alone: the sizes of the tests' file systems are not the same everywhere.
if [ -e /srv/core ]; then echo '100% /srv'; else echo '3% /srv'; fi
"""
TIDY = """\
#!/bin/sh
printf 'Remove /srv/core (9 MB)? [y/N] '
read -r answer
[ "$answer" = y ] || { echo kept; exit 1; }
touch /run/answered
until [ -e /run/tidy-may-end ]; do sleep 0.05; done
rm /srv/core && echo removed
"""

RULES = [
    {"effect": "allow", "argv": ["systemctl", "is-active", "web.service"]},
    {"effect": "allow", "argv": ["journalctl", "-u", "web.service", "-n", {"integer": {"min": 1, "max": 1000}}]},
    {"effect": "ask", "name": "restart", "argv": ["systemctl", "restart", "web.service"]},
    {"effect": "allow", "path": "/etc/systemd/system/**", "action": "fs.read"},
    {"effect": "ask", "name": "units", "path": "/etc/systemd/system/**", "action": "fs.write"},
    {"effect": "allow", "argv": ["journalctl", "-u", "web.service"]},
    {"effect": "allow", "argv": ["disk-free", "/srv"]},
    {"effect": "allow", "argv": ["tidy"]},
    {"effect": "allow", "path": "/srv/**", "action": "fs.read"},
]


@pytest.fixture
def machines() -> Iterator[dict[str, Machine]]:
    """Test machines with one service each; one service is down, because its unit file names no program."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(closing(Machine())) for name in HOSTS}
        for name, machine in found.items():
            machine.run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/usr/local/bin")
            machine.write("/usr/local/bin/systemctl", SYSTEMCTL, 0o755)
            machine.write("/usr/local/bin/journalctl", JOURNALCTL, 0o755)
            machine.write("/usr/local/bin/disk-free", DISK_FREE, 0o755)
            machine.write("/usr/local/bin/tidy", TIDY, 0o755)
            machine.run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/srv")
            machine.write("/srv/site", "the site\n")
            if name == FULL:
                machine.write("/srv/core", "x" * 9_000_000)
            machine.write(UNIT, TYPO if name == BROKEN else TEXT)
            machine.run("sh", "-c", "/usr/local/bin/systemctl restart web.service || :")
            stack.callback(machine.run, "sh", "-c", "kill $(cat /run/web.service.pid) || :")
        yield found


@pytest.fixture
def systems(own_daemon: Daemon, machines: dict[str, Machine]) -> Iterator[dict[str, Places]]:
    """Each machine's ways in, by name, where the daemon has root shells over SSH by sudo with a password."""
    ways = {}
    with ExitStack() as stack:
        for name, machine in machines.items():
            user = machine.add_user()
            machine.allow(f"{user.name} ALL=(ALL) ALL")
            ways[name] = places = stack.enter_context(closing(Places(machine)))
            add = own_daemon.client.connection.add
            over = add(name, {"type": "ssh", **ssh_fields(places.sshd, user.name)})
            data = {"type": "shellEnvironment", "host": over, "elevated": True, "password": user.password}
            add("root", data)
        yield ways


def test_an_agent_finds_the_broken_unit_repairs_it_and_shows_that_it_runs(
    own_daemon: Daemon, machines: dict[str, Machine], systems: dict[str, Places], tmp_path: Path
) -> None:
    scopes = ("connection.read", "shell.argv", "job", "fs.read", "fs.write")
    agent = wire.create(own_daemon, *scopes, name="repairer", connections=["web*/root"], rules=RULES)
    approver = tmp_path / "approver.token"
    approver.write_text(wire.create(own_daemon, "approval.decide", name="ada").secret)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "web.service", "--approver-token-file", str(approver)],
        env={
            **own_daemon.environment,
            "PATH": f"{Path(sys.executable).parent}:{own_daemon.environment['PATH']}",
            "CONNMGR_TOKEN": agent.secret,
            "CONNMGR_PORT": own_daemon.url.rpartition(":")[2],
            "CONNMGR_AUTH_FILE": str(own_daemon.auth_file),
        },
        input="once\nonce\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"down: {BROKEN}/root\n" in done.stdout
    assert "-ExecStart=/bin/slep 120" in done.stdout
    assert "+ExecStart=/bin/sleep 120" in done.stdout
    assert done.stdout.endswith("Unable to locate executable '/bin/slep'\nStarted web.service.\n")
    assert {name: machine.path(UNIT).read_text() for name, machine in machines.items()} == dict.fromkeys(HOSTS, TEXT)

    entries = list(own_daemon.client.audit.query())[::-1]
    done_by_it = [one for one in entries if one.get("token") == agent.id and one["status"] == 200]
    steps = [(one["action"], one["connectionName"], one["rule"]) for one in done_by_it if "rule" in one]
    assert [step for step, _ in itertools.groupby(steps)] == [
        *(("job.start", f"{name}/root", 0) for name in HOSTS),
        ("fs.read", f"{BROKEN}/root", 3),
        ("fs.read", "web01/root", 3),
        ("fs.read", f"{BROKEN}/root", 3),
        ("fs.write", f"{BROKEN}/root", "units"),
        ("job.start", f"{BROKEN}/root", "restart"),
        ("job.start", f"{BROKEN}/root", 1),
    ]
    assert {one["tokenName"] for one in done_by_it} == {"repairer"}
    decided = [one for one in entries if one["action"] == "approval.decide"]
    assert [(one["tokenName"], one["ofToken"]) for one in decided] == [("ada", agent.id)] * 2
    assert [one["approval"] for one in done_by_it if "approval" in one] == [one["approval"] for one in decided]


class ObedientAgent:
    """An agent that does what the results of its tools say, and nothing else; each wait has an end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.errors: list[str] = []
        self.largest = 0
        self.told: set[str] = set()
        """The approvals that the person has been told of."""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a tool; repeat the call where its error says so."""
        for _ in range(MOST_CALLS):
            result = await self._client.call_tool(tool, arguments)
            self.largest = max(self.largest, len(result.model_dump_json(by_alias=True)))
            if not result.is_error:
                return content(result)
            error = refused(result)
            self.errors.append(error["code"])
            if error["code"] == "approval_required":
                self.told.add(error["approval"])
            elif "repeat the call" not in error.get("next", "").lower():
                raise AssertionError(f"{tool}: {error}")
            await anyio.sleep(0.2)
        raise AssertionError(f"{tool} was refused {MOST_CALLS} times: {self.errors[-5:]}")

    async def run(self, system: str, *argv: str, answer: str = "") -> dict[str, Any]:
        """Run a command to its end: follow it where it runs on, and answer what it asks, if it may be answered."""
        ran = await self.call("run_command", system=system, argv=argv, openStdin=bool(answer), wait=5)
        for _ in range(MOST_CALLS):
            if ran["state"] not in ("starting", "running", "unknown"):
                return ran
            job, waits = ran["job"], ran["waiting"]
            if waits and not waits["secret"] and answer:
                ran = (await self.call("answer_prompt", job=job, question=waits["question"], text=answer))["ran"]
            else:
                ran = await self.call("read_job", job=job, wait=5)
        raise AssertionError(f"{argv} does not end: {ran}")

    async def odd_one_out(self, *argv: str) -> str:
        """Run a command on all systems, and return the one that answers otherwise."""
        ran = await self.call("run_on_many", systems=["web*/root"], argv=argv, stopAfter=0, canary=0)
        while ran["state"] in ("pending", "running", "waiting"):
            ran = await self.call("read_run", run=ran["run"], wait=10)
        assert sum(one["count"] for one in ran["groups"]) == len(HOSTS), ran
        [odd] = [one for one in ran["groups"] if one["count"] == 1]
        return str(odd["systems"][0])


def test_ten_steps_on_twelve_machines_end_whatever_fails_between(
    start_daemon: StartDaemon, own_daemon: Daemon, machines: dict[str, Machine], systems: dict[str, Places]
) -> None:
    """The daemon is killed, a link is cut, an approval comes late, a prompt unexpectedly, and 100 MB are printed."""
    scopes = ("connection.read", "shell.argv", "job", "fs.read", "fs.write")
    holder = wire.create(own_daemon, *scopes, name="repairer", connections=["web*/root"], rules=RULES)
    daemons = [own_daemon]
    port = own_daemon.url.rpartition(":")[2]
    broken, full = machines[BROKEN], machines[FULL]

    def killed_and_started_again() -> None:
        eventually(broken.path("/run/printed").exists, "100 MB are printed")
        own_daemon.kill()
        daemons.append(start_daemon("--port", port, home=own_daemon.home))
        broken.write("/run/journal-may-end", "")

    def link_cut() -> None:
        eventually(full.path("/run/answered").exists, "the prompt is answered")
        systems[FULL].sshd.kill_sessions()
        full.write("/run/tidy-may-end", "")

    def approved_late(agent: ObedientAgent) -> None:
        """Approve each request that the agent was refused at least three times, until the task is over."""
        client = daemons[-1].client
        while not over.is_set():
            for one in client.approval.query(["pending"]):
                if one["approval"] in agent.told and agent.errors.count("approval_required") % 3 == 0:
                    client.approval.decide(one["approval"], "once")
            over.wait(0.1)

    over = threading.Event()
    changes: list[str] = []

    async def task(agent: ObedientAgent) -> None:
        # 1. which systems there are, 2. which disk is full, 3. with what
        assert {one["name"] for one in (await agent.call("list_systems"))["systems"]} == {
            f"{one}/root" for one in HOSTS
        }
        assert await agent.odd_one_out("disk-free", "/srv") == f"{FULL}/root"
        files = (await agent.call("list_files", system=f"{FULL}/root", path="/srv"))["entries"]
        assert max(files, key=lambda one: one["size"])["name"] == "core"
        # 4. make room: it asks, and its link is cut after the answer
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, link_cut)
            ran = await agent.run(f"{FULL}/root", "tidy", answer="y")
        assert (ran["exitCode"], ran["stdout"].rpartition(" ")[2]) == (0, "removed\n")
        # 5. which unit has failed, 6. why: the daemon is killed meanwhile
        down = await agent.odd_one_out("systemctl", "is-active", "web.service")
        assert down == f"{BROKEN}/root"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, killed_and_started_again)
            ran = await agent.run(down, "journalctl", "-u", "web.service")
        assert ran["omitted"]["stdout"] > 90_000_000 or ran["truncated"]
        # 7. what the unit says here and elsewhere, 8. mend it, 9. restart it
        [line] = (await agent.call("search_files", systems=[down], path=UNIT, text="ExecStart="))["lines"]
        [right] = (await agent.call("search_files", systems=["web01/root"], path=UNIT, text="ExecStart="))["lines"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, approved_late, agent)
            edited = await agent.call("edit_file", system=down, path=UNIT, old=line["text"], new=right["text"])
            changes.extend(edited["changes"])
            assert (await agent.run(down, "systemctl", "restart", "web.service"))["exitCode"] == 0
            over.set()
        assert (await agent.run(down, "systemctl", "is-active", "web.service"))["stdout"] == "active\n"
        # 10. undo: the rule asks about this file, so that only the person can
        undone = await agent._client.call_tool("undo_changes", {"system": down, "changes": changes})
        assert refused(undone)["code"] == "approval_required"
        assert broken.path(UNIT).read_text() == TEXT
        # Nothing beyond its token.
        outside = await agent._client.call_tool("run_command", {"system": down, "argv": ["rm", "-rf", "/srv"]})
        assert refused(outside)["code"] == "policy_denied"

    async def work() -> None:
        bridge = Bridge(DaemonClient(own_daemon.url, own_daemon.auth_file, holder.secret))
        with closing(bridge), anyio.fail_after(TASK_SECONDS):
            async with Client(await anyio.to_thread.run_sync(BridgeServer, bridge)) as client:
                agent = ObedientAgent(client)
                try:
                    await task(agent)
                finally:
                    over.set()
                assert agent.largest < LARGEST_ANSWER
                assert agent.errors.count("approval_required") >= 6

    anyio.run(work)
    client = daemons[-1].client
    [change] = client.undo.query(token="repairer")
    assert change["change"] == changes[0]
    assert [one["state"] for one in client.undo.restore(change["connection"], changes)] == ["restored"]
    assert broken.path(UNIT).read_text() == TYPO
    assert not full.path("/srv/core").exists()
    entries = [one for one in list(client.audit.query())[::-1] if one.get("token") == holder.id and "rule" in one]
    steps = [(one["action"], one.get("connectionName"), one["rule"]) for one in entries if one["status"] == 200]
    told = [step for step, _ in itertools.groupby(steps)]
    for step in (
        ("fs.list", f"{FULL}/root", 8),
        ("job.start", f"{FULL}/root", 7),
        ("job.start", f"{BROKEN}/root", 5),
        ("fs.read", f"{BROKEN}/root", 3),
        ("fs.write", f"{BROKEN}/root", "units"),
        ("job.start", f"{BROKEN}/root", "restart"),
    ):
        assert step in told, (step, told)
    starts = [one for one in entries if one["action"] == "job.start" and one["status"] == 200]
    assert len({one.get("job") for one in starts}) == len(starts), "something began twice"
