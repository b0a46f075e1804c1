"""``argv`` in place of ``command``, at every endpoint that runs commands, with one limit."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.client import Client, ClientError
from connmgr.client.jobs import Job
from connmgr.secrets.vault_key import VaultKey
from tests.api.wire import LOCAL, bearer, client_of, send
from tests.components import program
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.recorder import Recorded, recorded, write_recorder

WORDS = ["", "a b", "it's", '"$HOME"', "new\nline", "*", "~", "-n", "A=b", "!x", "\\0101", "ä😀"]
SENT = tuple(word.encode() for word in WORDS)

CHARACTER = st.characters(exclude_characters="\0", exclude_categories=["Cs"])

ENDPOINTS = {
    "/shell/exec": ({"connection": LOCAL}, 1 << 20),
    "/shell/broadcast": ({"connections": [LOCAL]}, 1 << 20),
    "/job/start": ({"connection": LOCAL}, 1 << 20),
    "/terminal/open": ({"connection": LOCAL}, 64 << 10),
}
"""The HTTP endpoints that run commands: their other fields, and their limits in bytes."""


@pytest.fixture
def recorder(tmp_path: Path) -> str:
    return str(write_recorder(tmp_path / "recorder"))


@contextmanager
def session_in(client: Client, directory: Path) -> Iterator[str]:
    """Start a shell in ``directory`` with KEPT exported, and yield its name."""
    client.shell.start(LOCAL, session="argv")
    client.shell.exec(LOCAL, f"cd {shlex.quote(str(directory))}; KEPT=1; export KEPT", session="argv")
    yield "argv"
    client.shell.stop(LOCAL, session="argv")


def refused(client: Client, path: str, **fields: Any) -> str:
    with pytest.raises(ClientError) as caught:
        client.post(path, **fields)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    return str(caught.value)


def of_job(job: Job) -> Recorded:
    printed = b"".join(piece.stdout for piece in job.stream())
    assert job.info().exit_code == 0
    return recorded(printed)


def test_exec_runs_exactly_the_argv(client: Client, recorder: str, tmp_path: Path) -> None:
    with session_in(client, tmp_path) as session:
        result = client.shell.exec_bytes(LOCAL, argv=[recorder, *WORDS], session=session)
        found = recorded(result.stdout)
        assert (result.exit_code, found.words, found.directory) == (0, SENT, bytes(tmp_path))
        assert found.environment[b"KEPT"] == b"1"
        result = client.shell.exec_bytes(
            LOCAL, argv=["./recorder", "x"], cwd=".", env={"KEPT": "2"}, stdin=b"in", timeout=60, session=session
        )
        assert recorded(result.stdout).environment[b"KEPT"] == b"2"
        assert client.shell.exec(LOCAL, argv=["cat"], stdin="in", session=session).stdout == "in"


@pytest.fixture(scope="module", params=["bash", "dash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[tuple[Client, str]]:
    """A client, and a connection with a running shell."""
    if program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with client_of(daemon) as client:
        data = {"type": "local", "shell": request.param}
        connection = client.connection.add(f"argv in {request.param}", data)
        client.shell.start(connection)
        yield client, connection


@settings(max_examples=40, deadline=None)
@given(
    words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9), max_size=5)
)
def test_whatever_argv_is_sent_is_executed(
    shell: tuple[Client, str], tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    client, connection = shell
    path = tmp_path_factory.getbasetemp() / "recorder"
    path = path if path.exists() else write_recorder(path)
    found = recorded(client.shell.exec_bytes(connection, argv=[str(path), *words]).stdout)
    assert found.words == tuple(word.encode() for word in words)


def test_output_comes_as_lines_too(client: Client, recorder: str) -> None:
    with client.shell.stream(LOCAL, argv=[recorder, *WORDS]) as stream:
        printed = b"".join(stdout for stdout, _ in stream)
    assert (recorded(printed).words, stream.exit_code) == (SENT, 0)


def test_a_fresh_shell_and_one_that_is_started_run_it(client: Client, recorder: str) -> None:
    for options in ({"fresh": True}, {"start": True, "session": "argv"}):
        assert recorded(client.shell.exec_bytes(LOCAL, argv=[recorder, *WORDS], **options).stdout).words == SENT
    client.shell.stop(LOCAL, session="argv")


def test_a_detached_command_runs_the_same_argv(client: Client, recorder: str, tmp_path: Path) -> None:
    with session_in(client, tmp_path) as session:
        fields = {"connection": LOCAL, "session": session, "encoding": "base64"}
        answer = client.post("/shell/exec", argv=[recorder, *WORDS], detachAfter=30, **fields)
        found = recorded(base64.b64decode(answer["stdout"]))
        assert (answer["exitCode"], found.words, found.directory) == (0, SENT, bytes(tmp_path))
        assert found.environment[b"KEPT"] == b"1"
        answer = client.post("/shell/exec", argv=["sleep", "100"], detachAfter=0, **fields)
    client.jobs.get(answer["job"]).kill("KILL")


def test_all_connections_of_a_broadcast_run_it(client: Client, recorder: str) -> None:
    with client.shell.broadcast_bytes(argv=[recorder, *WORDS], connections=[LOCAL]) as outcomes:
        [outcome] = outcomes
    assert recorded(outcome.result.stdout).words == SENT


def test_a_job_runs_it(client: Client, recorder: str, tmp_path: Path) -> None:
    with session_in(client, tmp_path) as session:
        job = client.jobs.start(LOCAL, argv=[recorder, *WORDS], session=session, env={"ONE": "1"})
        found = of_job(job)
    assert (found.words, found.directory) == (SENT, bytes(tmp_path))
    assert (found.environment[b"KEPT"], found.environment[b"ONE"]) == (b"1", b"1")
    assert job.info().command == (recorder, *WORDS)


def test_a_pipe_runs_it(client: Client, recorder: str) -> None:
    with client.shell.pipe(LOCAL, argv=[recorder, *WORDS]) as pipe:
        printed = b"".join(stdout for stdout, _ in pipe)
    assert (recorded(printed).words, pipe.exit_status) == (SENT, 0)


@pytest.mark.parametrize("in_session", [False, True])
def test_a_terminal_runs_it(client: Client, recorder: str, tmp_path: Path, in_session: bool) -> None:
    writes = write_recorder(tmp_path / "writer")
    writes.write_text(f'#!/bin/sh\n{recorder} "$@" >{tmp_path}/written\necho "done" $KEPT\n')
    with session_in(client, tmp_path) as session:
        terminal = client.terminal.open(
            LOCAL, argv=[str(writes), *WORDS], session=session if in_session else None, columns=80
        )
        shown = client.terminal.screen(terminal, wait=20, contains="done 1" if in_session else "done")
    assert "done" in "".join(shown["lines"])
    found = recorded((tmp_path / "written").read_bytes())
    assert found.words == SENT
    assert not in_session or found.directory == bytes(tmp_path)
    [one] = [one for one in client.terminal.query() if one["terminal"] == terminal]
    assert one["command"] == [str(writes), *WORDS]


def test_no_builtin_is_taken_for_the_program(client: Client) -> None:
    result = client.shell.exec(LOCAL, argv=["export", "A=b"])
    assert (result.exit_code, "export" in result.stderr) == (127, True)
    job = client.jobs.start(LOCAL, argv=["export", "A=b"])
    assert sum(len(piece.stdout) for piece in job.stream()) == 0
    assert job.info().exit_code == 127
    with client.shell.pipe(LOCAL, argv=["export", "A=b"]) as pipe:
        assert b"export" in b"".join(stderr for _, stderr in pipe)
    assert pipe.exit_status == 127


@pytest.mark.parametrize("path", ENDPOINTS)
def test_exactly_one_of_command_and_argv_within_bounds_is_required(client: Client, path: str) -> None:
    fields, most = ENDPOINTS[path]
    assert "argv: Not together with command." in refused(client, path, **fields, command="id", argv=["id"])
    assert "argv" in refused(client, path, **fields, argv=[])
    assert "argv" in refused(client, path, **fields, argv=["x"] * 4097)
    assert "NUL" in refused(client, path, **fields, argv=["id", "a\0b"])
    assert "argv" in refused(client, path, **fields, argv=["id", 1])
    assert "argv" in refused(client, path, **fields, argv="id")
    assert f"argv: Longer than {most} bytes." in refused(client, path, **fields, argv=["id", "ä" * (most // 2)])
    assert f"command: Longer than {most} bytes." in refused(client, path, **fields, command="ä" * (most // 2 + 1))
    if path != "/terminal/open":
        assert "command: Give one of command, argv, saved." in refused(client, path, **fields)


@pytest.mark.parametrize("group", ["shell", "jobs", "terminal"])
def test_a_text_in_place_of_an_argv_is_refused(client: Client, group: str) -> None:
    run = {"shell": client.shell.exec, "jobs": client.jobs.start, "terminal": client.terminal.open}[group]
    with pytest.raises(ClientError) as caught:
        run(LOCAL, argv="id")
    assert "argv: Not a valid list." in str(caught.value)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_word_that_has_no_bytes_is_refused(daemon: Daemon, path: str) -> None:
    fields, _ = ENDPOINTS[path]
    answer = send(daemon.url, path, {**fields, "argv": ["id", "\ud800"]}, bearer(daemon))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "surrogate" in answer.message


def test_the_audit_log_has_its_words(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--audit-commands")
    client = daemon.client
    client.shell.start(LOCAL)
    client.shell.exec(LOCAL, argv=["echo", "it's"])
    with client.shell.broadcast(argv=["echo", "it's"], connections=[LOCAL]) as outcomes:
        assert [outcome.result.stdout for outcome in outcomes] == ["it's"]
    client.terminal.open(LOCAL, argv=["echo", "it's"])
    daemon.stop()
    entries = [json.loads(line) for line in (daemon.data_dir / "audit.log").read_text().splitlines()]
    commands = {entry["path"]: entry["command"] for entry in entries if "command" in entry}
    text = shlex.join(["echo", "it's"])
    assert commands == dict.fromkeys(("/shell/exec", "/shell/broadcast", "/terminal/open"), text)
    key = VaultKey((daemon.data_dir / "vault.key").read_bytes())
    assert {entry["commandMac"] for entry in entries if "command" in entry} == {key.audit_mac(text.encode()).hex()}
