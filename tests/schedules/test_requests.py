"""Schedules at a daemon: requests about them, whose rights they have, and who is told."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.schedules import notices
from connmgr.schedules.notices import Notice, Notices
from tests.api.wire import LOCAL, client_of
from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.strangers import install
from tests.rights.wire import create

SECRET = "a secret of the webhook"
PLUGIN = """
import json, os
from connmgr.plugin import hookimpl

@hookimpl
def connmgr_run_ended(run):
    with open(os.environ["HOME"] + "/ended", "a") as file:
        print(json.dumps(run), file=file)
    raise OSError("the pager is away")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a plugin that records the ends of runs and then fails."""
    site, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("kept")
    install(site, PLUGIN, "connmgr-pager")
    (home / "ended").touch()
    running = Daemon(home, environment={"PYTHONPATH": str(site)})
    yield running
    running.stop()


@pytest.fixture
def client(kept: Daemon) -> Iterator[Client]:
    yield kept.client
    for one in kept.client.schedules.query():
        kept.client.schedules.remove(one.schedule)


class Receiver:
    """A web server that keeps what it is told."""

    def __init__(self, status: int = 200, location: str = "") -> None:
        told = self.told = list[tuple[dict[str, str], bytes]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append((dict(self.headers), self.rfile.read(int(self.headers.get("Content-Length", 0)))))
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.end_headers()

            # A redirection may turn a POST into a GET.
            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def on_local(command: str) -> dict[str, Any]:
    return {"connections": [LOCAL], "command": command}


def test_a_schedule_fires_and_tells(kept: Daemon, client: Client, tmp_path: Path) -> None:
    receiver = Receiver()
    with closing(receiver):
        notify = {
            "on": ["failed"],
            "command": ["/bin/sh", "-c", f"cat >> {tmp_path}/told; echo >> {tmp_path}/told"],
            "webhook": {"url": receiver.url, "secret": SECRET},
        }
        run = on_local(f"echo >> {tmp_path}/fired; exit 3")
        client.schedules.add("often", every=1, run=run, notify=notify)
        eventually(lambda: receiver.told, "the webhook was not told")
        eventually(lambda: (tmp_path / "told").exists(), "the command was not told")
        client.schedules.pause("often", "enough")
    headers, body = receiver.told[0]
    told = json.loads(body)
    assert (told["event"], told["schedule"], told["run"]["state"]) == ("failed", "often", "failed")
    code = hmac.new(SECRET.encode(), headers["X-Connmgr-Timestamp"].encode() + b"." + body, hashlib.sha256)
    assert headers["X-Connmgr-Signature"] == f"sha256={code.hexdigest()}"
    assert json.loads((tmp_path / "told").read_text().splitlines()[0])["event"] == "failed"
    [ended] = [
        one
        for one in map(json.loads, (kept.home / "ended").read_text().splitlines())
        if one["run"] == told["run"]["run"]
    ]
    assert (ended["state"], ended["schedule"], ended["counts"]["failed"]) == ("failed", "often", 1)
    # It may have fired once more just before it was paused.
    one = eventually(
        lambda: client.schedules.query("often")[0], "its last run goes on", holds=lambda one: one.last_state == "failed"
    )
    assert (one.paused, one.next) == ("enough", None)
    assert one.notify == {**notify, "webhook": {"url": receiver.url}}
    entries = client.post("/audit/query", limit=1000)["entries"]
    assert any(entry.get("client") == "schedule often" for entry in entries)


def test_machines_that_are_away_are_told_until_nobody_is(client: Client) -> None:
    receiver = Receiver()
    with closing(receiver):
        away = client.connection.add("away", {"type": "ssh", "host": "127.0.0.1", "port": 1, "user": "nobody"})
        notify = {"webhook": {"url": receiver.url, "secret": SECRET}}
        run = {"connections": [away], "command": "true"}
        client.schedules.add("backup", cron="0 0 1 1 *", run=run, notify=notify)
        client.schedules.trigger("backup")
        eventually(lambda: receiver.told, "the webhook was not told")
        told = json.loads(receiver.told[0][1])
        assert (told["event"], told["run"]["state"], told["run"]["counts"]["unreachable"]) == ("unreachable", "done", 1)
        assert client.schedules.update("backup", notify=None).notify is None


def test_a_trigger_is_beside_the_times(client: Client, tmp_path: Path) -> None:
    added = client.schedules.add("rare", cron="0 0 1 1 *", run=on_local(f"echo >> {tmp_path}/fired"))
    client.schedules.pause("rare")
    info = client.runs.wait(client.schedules.trigger("rare"), timeout=60)
    assert (info.state, info.name) == ("done", "rare")
    client.schedules.resume("rare")
    [one] = client.schedules.query("rare")
    assert (one.next, one.last_run, one.last_state) == (added.next, info.run, "done")
    client.schedules.update("rare", name="renamed", cron="0 0 2 1 *")
    assert client.schedules.next("renamed", count=2)[0].day == 2
    assert client.schedules.query("rare") == []


def test_a_name_has_no_control_characters(client: Client) -> None:
    with pytest.raises(ClientError, match="name: Has control characters"):
        client.schedules.add("night\nly", every=60, run=on_local("true"))
    client.schedules.add("nightly", every=60, run=on_local("true"))
    with pytest.raises(ClientError, match="name: Has control characters"):
        client.schedules.update("nightly", name="night\x1b[2Jly")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cron": "0 0 31 2 *"}, "it never fires"),
        ({"cron": "0 0 1 1 *", "timezone": "Mars/Base"}, "There is no time zone 'Mars/Base'; write Europe/Vienna"),
        ({"cron": "0 0 1 1 *", "timezone": "europe/berlin"}, "no time zone 'europe/berlin'; is Europe/Berlin meant?"),
        ({"cron": "0 0 1 1 *", "timezone": "Berlin"}, "no time zone 'Berlin'; is Europe/Berlin meant?"),
        (
            {"cron": "0 0 1 1 *", "until": "2020-01-01T00:00:00Z"},
            "until: The schedule would never fire; all its times are later.",
        ),
        ({"cron": "0 0 1 1 *", "until": "2099-01-01T00:00:00"}, "until: Not a time since 1970 with its zone"),
        ({"cron": "0 0 1 1 *", "until": "tomorrow"}, "until: Not a time since 1970 with its zone"),
        ({"cron": "0 0 1 1 *", "every": 60}, "Give either cron or every."),
        ({}, "Give either cron or every."),
        ({"every": 0}, "every"),
        ({"every": 60, "overlap": "both"}, "overlap"),
        ({"every": 60, "timezone": "Europe/Vienna"}, "timezone: It would have no effect beside every"),
        (
            {"every": 60, "run": {"connectionFilter": "nothing", "command": "true"}},
            "run.connectionFilter: The selection is empty",
        ),
        ({"every": 60, "run": {"connections": [], "command": "true"}}, "run.connections: The selection is empty"),
        ({"every": 60, "run": {**on_local("true"), "waves": [1, "200%"]}}, "run.waves.1: A share"),
        ({"every": 60, "run": {"connections": [LOCAL], "facts": ["nonsense"]}}, "run.facts: "),
        ({"cron": "*/90 * * * *"}, "cron: '*/90 * * * *': */90 is 0 alone"),
        ({"every": 60, "run": {**on_local("true"), "key": "k"}}, "run.key: Not for the runs of a schedule."),
        # The thread of all schedules would wait.
        ({"every": 60, "run": {**on_local("true"), "wait": 60}}, "run.wait: Not for the runs of a schedule."),
        ({"every": 60, "notify": {"webhook": {"url": "file:///etc/passwd", "secret": "x" * 20}}}, "http or https"),
        ({"every": 60, "notify": {"webhook": {"url": "http://h/", "secret": "short"}}}, "secret"),
        ({"every": 60, "notify": {"webhook": {"url": "http://h:99999/", "secret": "x" * 20}}}, "http or https"),
        ({"every": 60, "notify": {"webhook": {"url": "http://[h/", "secret": "x" * 20}}}, "http or https"),
        ({"every": 60, "notify": {"webhook": {"url": "http://h/a b", "secret": "x" * 20}}}, "%XX"),
        ({"every": 60, "notify": {"webhook": {"url": "http://h/?a=b\nc", "secret": "x" * 20}}}, "%XX"),
        ({"every": 60, "notify": {"webhook": {"url": "http://h/\u00e9", "secret": "x" * 20}}}, "%XX"),
        ({"every": 60, "notify": {"on": ["done"]}}, "Nobody would be told"),
        ({"every": 60, "notify": {"on": [], "command": ["id"]}}, "notify.on"),
        ({"every": 60, "notify": {"command": ["/usr/bin/no-such"]}}, "has no program '/usr/bin/no-such'"),
        ({"every": 60, "jitter": 61}, "jitter: 61 s are more than the 60 s between its times."),
        ({"every": 60, "run": {"where": "", "command": "true"}}, "run.where: It is blank."),
    ],
)
def test_bad_input_is_told(client: Client, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.schedules.add("bad", **{"run": on_local("true"), **fields})
    assert reason in refused.value.message
    assert refused.value.status == 400
    assert client.schedules.query() == []


def test_what_of_a_run_has_no_effect_is_told(client: Client) -> None:
    run: dict[str, Any] = {**on_local("true"), "retryDelay": 3}
    said = "run.retryDelay: Nothing is tried again without retries."
    assert client.schedules.add("one", every=3600, run=run).warning == said
    assert client.schedules.add("two", every=3600, run={**run, "retries": 1}).warning is None
    assert client.schedules.update("two", jitter=1).warning is None
    assert client.schedules.update("two", run={**run, "stopAfter": 5}).warning == (
        f"run.stopAfter: 5 targets cannot fail, because the run has 1: it does not stop. {said}"
    )
    with pytest.raises(ClientError, match=r"^run\.connectionFilter: The selection is empty"):
        client.schedules.update("two", run={"connectionFilter": "nothing", "command": "true"})
    with pytest.raises(ClientError, match=r"^cron: '5-3 "):
        client.schedules.update("two", cron="5-3 * * * *")
    with pytest.raises(ClientError, match=r"^cron: '5-3 "):
        client.schedules.next(cron="5-3 * * * *")


def test_a_secret_argument_of_a_saved_command_is_not_shown(client: Client) -> None:
    parameters = {"password": {"re": ".*", "secret": True}, "user": {"re": "[a-z]+"}}
    argv = ["echo", {"parameter": "user"}, {"parameter": "password"}]
    client.post("/command/save", name="set", argv=argv, parameters=parameters, replace=True)
    saved = {"name": "set", "arguments": {"user": "me", "password": "hunter2"}}
    client.schedules.add("secret", every=3600, run={"connections": [LOCAL], "saved": saved})
    [one] = client.schedules.query()
    assert one.run["saved"]["arguments"] == {"user": "me", "password": "[secret]"}
    info = client.runs.wait(client.schedules.trigger("secret"), timeout=60)
    assert (info.state, info.command) == ("done", ["echo", "me", "[secret]"])
    assert [one.stdout for one in client.runs.targets(info.run)] == ["me hunter2"]
    assert "hunter2" not in json.dumps(client.post("/audit/query", limit=1000))


def test_a_saved_command_without_parameters_needs_no_arguments(client: Client) -> None:
    client.post("/command/save", name="greet", argv=["echo", "hello"], replace=True)
    run: dict[str, Any] = {"connections": [LOCAL], "saved": {"name": "greet"}}
    assert client.post("/run/start", **run, dryRun=True)["targets"] == 1
    client.schedules.add("greeting", every=3600, run=run)
    info = client.runs.wait(client.schedules.trigger("greeting"), timeout=60)
    assert [one.stdout for one in client.runs.targets(info.run)] == ["hello"]


def test_two_schedules_of_one_name_are_refused(client: Client) -> None:
    client.schedules.add("one", every=3600, run=on_local("true"))
    with pytest.raises(ClientError, match="A schedule is called 'one' already") as refused:
        client.schedules.add("one", every=3600, run=on_local("true"))
    assert refused.value.code == "schedule_exists"
    with pytest.raises(ClientError, match="Unknown schedule: two"):
        client.schedules.pause("two")


def test_a_hidden_schedule_is_not_found_out_by_its_name(kept: Daemon, client: Client) -> None:
    holder, other = (create(kept, "shell.any", "token.create", name=name) for name in ("holder", "other"))
    run = on_local("true")
    ids = [client.schedules.add("nightly", every=3600, run=run).schedule]
    ids += [one.ok("/schedule/add", name="nightly", every=3600, run=run)["schedule"] for one in (holder, other)]
    assert len(set(ids)) == 3
    whose = {one.schedule: (one.token, one.token_name) for one in client.schedules.query()}
    assert [whose[id] for id in ids] == [(None, None), (holder.id, "holder"), (other.id, "other")]
    # Among those that one sees, names are unique.
    assert holder.refused("/schedule/add", name="nightly", every=60, run=run) == "schedule_exists"
    assert holder.create("shell.any").ok("/schedule/add", name="nightly", every=60, run=run)["schedule"] not in ids
    second = holder.ok("/schedule/add", name="second", every=3600, run=run)["schedule"]
    assert holder.refused("/schedule/update", schedule="second", name="nightly") == "schedule_exists"
    assert other.ok("/schedule/update", schedule="nightly", jitter=1)["schedule"] == ids[2]
    # A name means one's own; the owner, who sees all, finds the others by their uuids.
    client.schedules.pause("nightly")
    assert [one.schedule for one in client.schedules.query() if one.paused] == [ids[0]]
    client.schedules.remove(ids[0])
    with pytest.raises(ClientError, match="schedule: 3 schedules are called 'nightly'; name one by its uuid: ") as told:
        client.schedules.pause("nightly")
    assert told.value.code == "invalid_request"
    assert ids[1] in told.value.message
    client.schedules.pause(ids[1])
    assert holder.refused("/schedule/pause", schedule=ids[2]) == "unknown_schedule"
    assert holder.ok("/schedule/query", name="second")["schedules"][0]["schedule"] == second


def test_changes_at_the_same_time_are_all_kept(kept: Daemon, client: Client) -> None:
    """Each changes another field, so none may write what the others have read before."""
    client.schedules.add("busy", every=3600, run=on_local("true"))
    fields = [{"jitter": 7}, {"overlap": "queue"}, {"catchUp": "all"}, {"until": "2099-01-01T00:00:00Z"}]
    for number in range(5):
        client.schedules.update("busy", jitter=0, overlap="skip", catchUp="none", until=None)
        together = threading.Barrier(len(fields))

        def change(given: dict[str, Any], together: threading.Barrier = together) -> None:
            with client_of(kept) as own:
                together.wait(DEADLINE_SECONDS)
                own.schedules.update("busy", **given)

        with ThreadPoolExecutor(len(fields)) as pool:
            list(pool.map(change, fields))
        [one] = client.schedules.query("busy")
        found = (one.jitter, one.overlap, one.catch_up, one.until and one.until.year)
        assert found == (7, "queue", "all", 2099), f"turn {number}"


def test_a_schedule_that_would_wait_for_a_person_is_refused(kept: Daemon, client: Client, tmp_path: Path) -> None:
    """It would be refused at each of its times, and nobody would know."""
    mark = f"{tmp_path}/mark"
    rules = [{"effect": "ask", "argv": ["touch", mark]}, {"effect": "allow", "argv": ["true"]}]
    holder = create(kept, "shell.argv", rules=rules)
    run = {"connections": [LOCAL], "argv": ["touch", mark]}
    answer = holder.send("/schedule/add", name="asks", every=3600, run=run)
    assert (answer.status, answer.code) == (403, "policy_denied")
    assert "nobody can give one when a schedule fires" in answer.json["message"]
    holder.ok("/schedule/add", name="asks", every=3600, run={**run, "argv": ["true"]})
    assert holder.refused("/schedule/update", schedule="asks", run=run) == "policy_denied"
    assert client.schedules.query("asks")[0].run["argv"] == ["true"]
    # Nor is anybody asked for what would never run.
    assert client.post("/approval/query")["approvals"] == []


def test_a_time_zone_has_an_effect(client: Client) -> None:
    client.schedules.add("often", every=3600, run=on_local("true"))
    for call in (
        lambda: client.schedules.update("often", timezone="Europe/Vienna"),
        lambda: client.schedules.next("often", timezone="Europe/Vienna"),
        lambda: client.post("/schedule/next", every=60, timezone="Europe/Vienna"),
    ):
        with pytest.raises(ClientError, match="timezone: It would have no effect"):
            call()
    assert client.schedules.update("often", cron="0 12 * * *", timezone="Europe/Vienna").timezone == "Europe/Vienna"


def test_a_schedule_has_the_rights_of_its_token_and_ends_with_it(kept: Daemon, client: Client, tmp_path: Path) -> None:
    rules = [{"effect": "allow", "argv": ["touch", f"{tmp_path}/mark"]}]
    holder = create(kept, "shell.argv", rules=rules)
    run = {"connections": [LOCAL], "argv": ["touch", f"{tmp_path}/mark"]}
    assert holder.refused("/schedule/add", name="mine", every=1, run={**run, "argv": ["id"]}) == "policy_denied"
    assert holder.refused("/schedule/add", name="mine", every=1, run=on_local("id")) == "policy_denied"
    notify = {"command": ["id"]}
    assert holder.refused("/schedule/add", name="mine", every=1, run=run, notify=notify) == "scope_denied"
    client.schedules.add("the owner's", every=3600, run=on_local("true"))
    holder.ok("/schedule/add", name="mine", every=1, run=run)
    assert [one["name"] for one in holder.ok("/schedule/query")["schedules"]] == ["mine"]
    assert holder.refused("/schedule/remove", schedule="the owner's") == "unknown_schedule"
    eventually((tmp_path / "mark").exists, "the schedule did not fire")
    kept.client.post("/token/revoke", id=holder.id)
    [one] = eventually(
        lambda: client.schedules.query("mine"),
        "the schedule is not paused",
        holds=lambda found: found[0].paused is not None,
    )
    assert "no rights any more" in str(one.paused)
    client.schedules.resume("mine")
    # It is paused again at its next time; the owner takes it over.
    client.schedules.update("mine", run=run, every=3600)
    assert client.runs.wait(client.schedules.trigger("mine"), timeout=60).state == "done"


def test_runs_of_a_tokens_schedules_use_its_share_of_shells(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    holder = create(daemon, "shell.any")
    runs = []
    for number in range(12):
        run = {**on_local("true"), "session": f"s{number}"}
        holder.ok("/schedule/add", name=f"one{number}", every=3600, run=run)
        runs.append(holder.ok("/schedule/trigger", schedule=f"one{number}")["run"])
    for id in runs[:10]:
        assert daemon.client.runs.wait(id, timeout=60).state == "done"
    # Further ones wait for room, and leave the owner's.
    for number in range(6):
        daemon.client.shell.start(LOCAL, session=f"own{number}")
    assert all(daemon.client.runs.info(id).state == "running" for id in runs[10:])
    for id in runs[10:]:
        holder.ok("/run/stop", run=id, kill=True)
        assert daemon.client.runs.wait(id, timeout=60).state == "stopped"


def test_whoever_changes_only_the_times_lends_no_rights(kept: Daemon, client: Client) -> None:
    """The owner sees when it fires, and the token has chosen what: nobody has seen both together."""
    holder = create(kept, "shell.any", connections=["local machine"])
    run = {"connectionFilter": "*", "command": "true"}
    holder.ok("/schedule/add", name="theirs", every=3600, run=run)
    client.connection.add("out of their sight", {"type": "local", "shell": "/bin/./bash"})
    changed = client.schedules.update("theirs", every=7200, name="renamed", jitter=1)
    assert changed.token == holder.id
    info = client.runs.wait(client.schedules.trigger("renamed"), timeout=60)
    assert (info.token, info.targets) == (holder.id, 1)
    assert client.schedules.update("renamed", run=run).token is None
    assert holder.ok("/schedule/query")["schedules"] == []


def test_a_daemon_that_starts_catches_up(start_daemon: StartDaemon, tmp_path: Path) -> None:
    first = start_daemon(home=tmp_path / "home")
    first.client.schedules.add("often", every=1, run=on_local(f"echo >> {tmp_path}/fired"), catchUp="latest")
    eventually((tmp_path / "fired").exists, "the schedule did not fire")
    first.leave_client()
    first.stop()
    before = len((tmp_path / "fired").read_text())
    second = start_daemon(home=tmp_path / "home")
    eventually(lambda: len((tmp_path / "fired").read_text()) > before, "the schedule did not go on")
    second.client.schedules.remove("often")


def test_a_webhook_that_never_answers_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "WEBHOOK_SECONDS", 0.5)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        hooked = threading.Event()
        telling = Notices(lambda **_: hooked.set())
        telling.tell(Notice({"event": "failed"}, url=f"http://127.0.0.1:{silent.getsockname()[1]}/", secret=SECRET))
        telling.tell(Notice({"event": "failed"}, run={}))
        assert hooked.wait(60)
        telling.close(60)


def test_a_notice_s_command_has_none_of_the_daemon_s_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them may be the address of its database, with a password."""
    monkeypatch.setenv("CONNMGR_DATABASE", "postgresql://user:hunter2@db/vault")
    monkeypatch.setenv("COLOUR", "blue")
    monkeypatch.chdir(tmp_path)
    command = ["/bin/sh", "-c", "cat > told; env > part; mv part env"]
    telling = Notices(lambda **_: None)
    telling.tell(Notice({"event": "failed"}, command=command))
    eventually((tmp_path / "env").exists, "the command was not told")
    telling.close(DEADLINE_SECONDS)
    variables = (tmp_path / "env").read_text().splitlines()
    assert "COLOUR=blue" in variables
    assert not [variable for variable in variables if "CONNMGR" in variable or "hunter2" in variable]
    assert json.loads((tmp_path / "told").read_text()) == {"event": "failed"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_webhook_is_not_followed_elsewhere(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """The owner has named one server; another would get what it may not, or the daemon's network be asked for it."""
    with closing(Receiver()) as elsewhere, closing(Receiver(status, elsewhere.url)) as asked:
        done = threading.Event()
        telling = Notices(lambda **_: done.set())
        telling.tell(Notice({"event": "failed", "schedule": "nightly"}, url=asked.url, secret=SECRET))
        telling.tell(Notice({"event": "done"}, run={}))
        assert done.wait(DEADLINE_SECONDS)
        telling.close(DEADLINE_SECONDS)
        assert (len(asked.told), elsewhere.told) == (1, [])
    said = f"The notice 'failed' of the schedule 'nightly': the webhook at 127.0.0.1 answered with status {status}."
    assert said in caplog.messages


def test_a_notice_that_does_not_arrive_says_whose_it_was(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    telling = Notices(lambda **_: done.set())
    body = {"event": "failed", "schedule": "nightly"}
    telling.tell(Notice(body, command=["/nowhere/program"]))
    telling.tell(Notice(body, url="http://127.0.0.1:1/hook", secret=SECRET))
    telling.tell(Notice({"run": "3"}, run={}))
    assert done.wait(DEADLINE_SECONDS)
    telling.close(DEADLINE_SECONDS)
    assert caplog.messages == [
        "The notice 'failed' of the schedule 'nightly' did not arrive: No such file or directory",
        "The notice 'failed' of the schedule 'nightly' did not arrive: Connection refused",
    ]


def test_a_webhook_at_an_ipv6_address_needs_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Receiver()) as receiver:
        address = ("127.0.0.1", int(receiver.url.split(":")[2].split("/")[0]))
        asked: list[tuple[Any, ...]] = []

        def resolve(*what: Any, **_: Any) -> list[Any]:
            asked.append(what)
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        telling = Notices(lambda **_: None)
        telling.tell(Notice({"event": "failed"}, url="http://[2001:db8::5]/hook", secret=SECRET))
        eventually(lambda: receiver.told, "the webhook was not told")
        telling.close(DEADLINE_SECONDS)
    assert asked == [("2001:db8::5", 80)]
    assert receiver.told[0][0]["Host"] == "[2001:db8::5]"


def test_a_webhook_of_many_silent_addresses_has_one_time_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one answers, letter by letter and without an end."""
    monkeypatch.setattr(notices, "WEBHOOK_SECONDS", 1.0)
    over = threading.Event()
    with (
        closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as full,
        closing(socket.create_server(("127.0.0.1", 0))) as trickling,
        ThreadPoolExecutor(1) as pool,
        ExitStack() as waiting,
    ):
        # Who connects to a full queue waits.
        for _ in range(3):
            other = waiting.enter_context(closing(socket.socket()))
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        addresses = [server.getsockname() for server in (full, full, full, trickling)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

        def trickle() -> None:
            trickling.settimeout(DEADLINE_SECONDS)
            with suppress(OSError), closing(trickling.accept()[0]) as accepted:
                while not over.wait(0.05):
                    accepted.sendall(b"H")

        pool.submit(trickle)
        hooked = threading.Event()
        telling = Notices(lambda **_: hooked.set())
        telling.tell(Notice({"event": "failed"}, url="http://many/", secret=SECRET))
        telling.tell(Notice({"event": "failed"}, run={}))
        assert hooked.wait(DEADLINE_SECONDS), "the thread of notices still waits"
        telling.close(DEADLINE_SECONDS)
        over.set()
        waiting.enter_context(closing(socket.socket())).connect(trickling.getsockname())


def test_the_command_line_has_them(kept: Daemon, client: Client) -> None:
    connmgr = CommandLine(kept)
    connmgr("label", "local", "env=prod")
    added = connmgr("schedule", "add", "nightly", "--where", "env=prod", "--cron", "30 2 * * *", "--", "true")
    assert "next in " in added.output
    [one] = client.schedules.query()
    assert (one.run["where"], one.run["command"], one.timezone) == ("env=prod", "true", "UTC")
    assert connmgr("schedule", "ls").output.startswith("nightly  30 2 * * * UTC  next in ")
    assert connmgr("schedule", "next", "nightly", "--count", "1").output.endswith("T02:30:00Z\n")
    connmgr("schedule", "pause", "nightly", "--reason", "freeze")
    assert "paused: freeze" in connmgr("schedule", "ls").output
    connmgr("schedule", "resume", "nightly")
    assert len(connmgr("schedule", "trigger", "nightly").output.strip()) == 36
    shown = connmgr("schedule", "show", "nightly").output
    assert "runs      true\non        '*' --where env=prod, chosen anew each time\n" in shown
    connmgr("schedule", "rm", "nightly")
    assert "No schedule is called 'nightly'" in connmgr("schedule", "show", "nightly", code=5).errors
    # Words are joined as by `connmgr run`, or are an argv.
    connmgr("schedule", "add", "text", "*", "--every", "1h", "--", "exit", "3")
    connmgr("schedule", "add", "words", "*", "--every", "1h", "--argv", "--", "echo", "a b")
    assert [(one.run.get("command"), one.run.get("argv")) for one in client.schedules.query()] == [
        ("exit 3", None),
        (None, ["echo", "a b"]),
    ]
    connmgr("schedule", "add", "facts", "*", "--every", "1d", "--facts", "system")
    assert "gather facts: system" in connmgr("schedule", "ls").output
    assert connmgr("schedule", "next", "--cron", "0 0 31 2 *", code=None).code != 0


def test_notices_of_tokens_runs_leave_the_owners_room_and_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_WAITING", 8)
    told: list[str] = []
    begun, goes_on = threading.Event(), threading.Event()

    def hook(*, run: dict[str, str]) -> None:
        begun.set()
        goes_on.wait(DEADLINE_SECONDS)
        told.append(run["name"])

    telling = Notices(hook)
    telling.tell(Notice({}, {"name": "first"}))
    assert begun.wait(DEADLINE_SECONDS)
    for number in range(20):
        telling.tell(Notice({}, {"name": f"theirs{number}"}, of_token=True))
    for name in ("own", "own too"):
        telling.tell(Notice({}, {"name": name}))
    goes_on.set()
    eventually(lambda: len(told), "not all are told", holds=lambda count: count == 9)
    assert told == ["first", "own", "own too", *(f"theirs{number}" for number in range(6))]
    telling.close(DEADLINE_SECONDS)
