"""Programs that need a terminal run on one, on any connection, driven by requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.world import LOCAL, SSH, World, dialects
from tests.terminals.desk import ENTER, POLL_SECONDS, Desk, RefusedError

ESC = "\x1b"
NOWHERE = "00000000-0000-4000-8000-000000000000"
ASKS = 'stty -echo; printf "Password: "; read answer; stty echo; echo; echo "got <$answer>"'


@pytest.mark.needs("vim")
def test_vim_edits_and_saves(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "cd; rm -f note; vim -u NONE note; echo saved; cat note; sleep 60")
    assert terminal.screen("~")["alternate"]
    terminal.type("ione\rtwo")
    terminal.type(ESC)
    assert terminal.lines("two")[:2] == ["one", "two"]
    terminal.type("ggdd:wq" + ENTER)
    terminal.screen("saved")
    assert terminal.lines("two") == ["saved", "two"]
    assert not terminal.screen()["alternate"]


@pytest.mark.needs("less")
def test_less_pages(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "seq 1 500 | less", rows=10)
    assert terminal.lines("9")[:9] == [str(number) for number in range(1, 10)]
    terminal.type(" ")
    assert terminal.lines("18")[:9] == [str(number) for number in range(10, 19)]
    terminal.type("/333" + ENTER)
    assert terminal.lines("333")[0] == "333"
    terminal.type("q")
    assert terminal.until_ended()["exitCode"] == 0


@pytest.mark.needs("ps")
def test_top_refreshes(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "top -d 0.3", columns=100)
    first = terminal.screen("PID")
    again = terminal.screen(since=first["offset"], wait=POLL_SECONDS)
    assert again["offset"] > first["offset"]
    assert any("PID" in line for line in again["lines"])
    terminal.type("q")
    assert terminal.until_ended()["state"] == "exited"


def test_a_resize_arrives(place: str, desk: Desk) -> None:
    says = "trap 'stty size' WINCH; echo \"$TERM\"; stty size; while :; do sleep 0.1; done"
    terminal = desk.open(place, says, columns=91, rows=11, term="xterm")
    assert terminal.lines("11 91")[:2] == ["xterm", "11 91"]
    terminal.ask("resize", columns=132, rows=43)
    shown = terminal.screen("43 132")
    assert (shown["columns"], shown["rows"], len(shown["lines"])) == (132, 43, 43)


def test_a_program_asks_and_is_answered(place: str, desk: Desk) -> None:
    terminal = desk.open(place, ASKS)
    terminal.screen("Password:")
    terminal.type("secret" + ENTER)
    assert terminal.lines("got") == ["Password:", "got <secret>"]
    assert terminal.until_ended()["exitCode"] == 0


@pytest.mark.needs("machine", "sudo")
def test_sudo_asks_and_is_answered(desk: Desk, running_world: World) -> None:
    machine = running_world.machine
    assert machine
    user = machine.users[0]
    machine.allow(f"{user.name} ALL=(ALL) ALL")
    terminal = desk.open(running_world.connection(SSH, "bash"), "sudo -k; sudo id -un")
    try:
        terminal.screen("assword")
        terminal.type(user.password + ENTER)
        assert terminal.lines("root")[-1] == "root"
    finally:
        machine.allow(f"{user.name} ALL=(ALL) NOPASSWD: ALL")


def test_ctrl_c_and_exit_codes(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done")
    terminal.screen("ready")
    terminal.type("\x03")
    ended = terminal.until_ended()
    assert (ended["state"], ended["exitCode"]) == ("exited", 7)
    assert "caught" in "".join(terminal.lines())


def test_a_login_shell_is_interactive(place: str, desk: Desk) -> None:
    terminal = desk.open(place)
    terminal.type("case $- in *i*) echo inter''active;; esac; shopt login_shell; exit 4" + ENTER)
    assert terminal.until_ended()["exitCode"] == 4
    text = terminal.ask("output")["data"]
    assert "interactive" in text
    assert re.search(r"login_shell\s+on", text)


@pytest.mark.parametrize("dialect", dialects())
def test_a_terminal_begins_in_the_state_of_a_session(
    dialect: str, desk: Desk, running_world: World, tmp_path: Path
) -> None:
    connection = running_world.connection(LOCAL, dialect)
    directory = tmp_path / "a b"
    directory.mkdir()
    value = "one  two\n'three' \"four\" $HOME `five` \\ ü é\tsix"
    with running_world.client() as client:
        client.shell.start(connection, session="state")
        export = "set -x SET" if dialect == "fish" else "export SET"
        quoted = value.replace("\\", "\\\\").replace("'", "\\'") if dialect == "fish" else value.replace("'", "'\\''")
        client.shell.exec(connection, f"cd '{directory}'", session="state")
        joined = f"{export} '{quoted}'" if dialect == "fish" else f"{export}='{quoted}'"
        assert client.shell.exec(connection, joined, session="state").exit_code == 0
        try:
            program = "import os; print(os.getcwd()); print(ascii(os.environ['SET'])); print(os.environ['TERM'])"
            command = f'python3 -c "{program}"; exit 5'
            terminal = desk.open(connection, command, session="state", columns=200, term="vt100")
            ended = terminal.until_ended()
            assert terminal.lines() == [str(directory), ascii(value), "vt100"]
            assert ended["exitCode"] == 5
            shell = desk.open(connection, session="state", columns=200)
            shell.type("pwd; exit 6" + ENTER)
            assert shell.until_ended()["exitCode"] == 6
            assert str(directory) in shell.ask("output")["data"]
        finally:
            client.post("/shell/stop", connection=connection, session="state")


@pytest.mark.parametrize("dialect", dialects())
def test_an_argv_is_executed_in_the_state_of_a_session(
    dialect: str, desk: Desk, running_world: World, tmp_path: Path
) -> None:
    connection = running_world.connection(LOCAL, dialect)
    for name in ("echo", "-x", "program"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf \'<%s>\' {name} "$@" "$PWD"\necho\n')
        (tmp_path / name).chmod(0o755)
    words = ["a  b", "", "it's", "$HOME", "*", "-n"]
    shown = "".join(f"<{word}>" for word in [*words, str(tmp_path)])
    with running_world.client() as client:
        client.shell.start(connection, session="argv")
        path = f"set -gx PATH {tmp_path} $PATH" if dialect == "fish" else f"export PATH={tmp_path}:$PATH"
        client.shell.exec(connection, f"cd {tmp_path}; {path}", session="argv")
        try:
            for name in ("echo", "-x", "./program"):
                terminal = desk.open(connection, argv=[name, *words], session="argv", columns=200)
                assert terminal.until_ended()["exitCode"] == 0
                assert terminal.lines() == [f"<{name.removeprefix('./')}>{shown}"]
            missing = desk.open(connection, argv=["export"], session="argv")
            assert missing.until_ended()["exitCode"] == 127
        finally:
            client.post("/shell/stop", connection=connection, session="argv")


def test_an_argv_is_executed_after_a_login(place: str, desk: Desk) -> None:
    terminal = desk.open(place, argv=["printf", "<%s>", "a  b", "", "it's", "$HOME", "*", "-n"], columns=200)
    assert terminal.until_ended()["exitCode"] == 0
    assert terminal.lines() == ["<a  b><><it's><$HOME><*><-n>"]
    assert desk.open(place, argv=["export"]).until_ended()["exitCode"] == 127


def test_secrets_of_a_session_appear_in_no_argv(desk: Desk, running_world: World) -> None:
    connection = running_world.connection(LOCAL, "bash")
    with running_world.client() as client:
        client.shell.start(connection, session="secret")
        client.shell.exec(connection, "export HIDDEN=wh''ispered", session="secret")
        try:
            command = "tr '\\0' ' ' </proc/$PPID/cmdline; tr '\\0' ' ' </proc/$$/cmdline; echo; echo $HIDDEN"
            terminal = desk.open(connection, command, session="secret", columns=1000)
            terminal.until_ended()
            assert terminal.ask("output")["data"].count("whispered") == 1
        finally:
            client.post("/shell/stop", connection=connection, session="secret")


def test_output_by_offsets(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "printf 'äöü'; read x; printf 'more'; exit 3")
    first = terminal.ask("output", wait=POLL_SECONDS)
    while len(first["data"]) < 3:
        first = terminal.ask("output", wait=POLL_SECONDS)
    assert (first["data"], first["offset"], first["next"], first["eof"]) == ("äöü", 0, 6, False)
    assert terminal.ask("output", offset=2, encoding="base64")["data"] == "w7bDvA=="
    assert terminal.ask("output", offset=6, wait=0)["data"] == ""
    terminal.type(ENTER)
    assert terminal.until_ended()["exitCode"] == 3
    last = terminal.ask("output", offset=6, wait=POLL_SECONDS)
    assert (last["data"].strip(), last["eof"], last["state"], last["exitCode"]) == ("more", True, "exited", 3)


def test_the_end_and_the_screen_of_much_output_are_kept(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "printf '\\033]2;busy\\007'; seq 1 500000; echo the end; sleep 60")
    shown = terminal.screen("the end")
    assert shown["lines"][-3:] == ["500000", "the end", ""]
    assert shown["title"] == "busy"
    answer = terminal.ask("output", offset=0, maxBytes=16)
    assert answer["offset"] > 500_000
    assert shown["offset"] - answer["offset"] >= 2 << 20
    assert shown["offset"] - answer["offset"] <= 3 << 20


def test_a_program_that_asks_its_terminal_is_answered(desk: Desk, running_world: World) -> None:
    asks = "stty raw -echo; printf 'abc\\033[6n\\033[c'; dd bs=1 count=15 2>/dev/null | od -An -c"
    terminal = desk.open(running_world.connection(LOCAL, "bash"), asks)
    terminal.until_ended()
    told = "".join("".join(terminal.lines()).split())
    assert "[1;4R" in told
    assert "[?62;22c" in told


def test_closing_hangs_up(place: str, desk: Desk) -> None:
    terminal = desk.open(place, "echo ready; exec sleep 1000")
    terminal.screen("ready")
    terminal.ask("close")
    info = terminal.info
    assert (info["state"], info["exitCode"]) == ("closed", None)
    assert info["ended"] is not None
    assert terminal.lines() == ["ready"]
    for endpoint, request in (("input", {"data": "x"}), ("resize", {"columns": 9, "rows": 9})):
        with pytest.raises(RefusedError) as refused:
            terminal.ask(endpoint, **request)
        assert refused.value.code == "terminal_ended"


@pytest.mark.needs("sshd")
def test_a_lost_link_ends_it(desk: Desk, running_world: World) -> None:
    terminal = desk.open(running_world.connection(SSH, "bash"), "echo ready; sleep 1000")
    terminal.screen("ready")
    client = terminal.attach()
    running_world.faults["link"]()
    ended = terminal.until_ended()
    assert (ended["state"], ended["exitCode"]) == ("lost", None)
    told = client.finish()
    assert (told.error["code"], told.code) == ("shell_lost", 1011)


def test_a_changed_connection_closes_its_terminals(desk: Desk, running_world: World) -> None:
    with running_world.client() as client:
        id = client.connection.add("changing", {"type": "local", "shell": "bash --norc"})
        terminal = desk.open(id, "echo ready; sleep 1000")
        terminal.screen("ready")
        watcher = terminal.attach(watch=True)
        client.connection.update(id, data={"type": "local", "shell": "bash --noprofile"})
        with pytest.raises(RefusedError) as refused:
            terminal.ask("screen")
        assert refused.value.code == "unknown_terminal"
        assert watcher.finish().error["code"] == "terminal_ended"
        other = desk.open(id, "echo ready; sleep 1000")
        client.connection.remove([id])
        with pytest.raises(RefusedError):
            other.ask("screen")


def test_stopping_all_of_a_connection_closes_its_terminals(desk: Desk, running_world: World) -> None:
    connection = running_world.connection(LOCAL, "dash")
    terminal = desk.open(connection, "sleep 1000")
    desk.ask("/shell/stop", connection=connection, all=True)
    assert terminal.info["state"] == "closed"
    with pytest.raises(RefusedError) as refused:
        desk.ask("/shell/stop", connection=connection, all=True)
    assert refused.value.code == "no_shell"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"columns": 0}, "columns"),
        ({"rows": 5000}, "rows"),
        ({"columns": 4096, "rows": 4096}, "characters"),
        ({"term": "a b"}, "term"),
        ({"command": ""}, "command"),
        ({"session": "none"}, "start it first"),
        ({"connection": NOWHERE}, "Unknown connection"),
    ],
)
def test_bad_requests(request_: dict[str, object], said: str, desk: Desk, running_world: World) -> None:
    with pytest.raises(RefusedError) as refused:
        desk.ask("/terminal/open", **{"connection": running_world.connection(LOCAL, "bash"), **request_})
    assert refused.value.status == 400
    assert said in refused.value.message


@pytest.mark.parametrize("endpoint", ["screen", "output", "close", "ticket", "input", "resize"])
def test_an_unknown_terminal(endpoint: str, desk: Desk) -> None:
    more = {"input": {"data": ""}, "resize": {"columns": 1, "rows": 1}}.get(endpoint, {})
    with pytest.raises(RefusedError) as refused:
        desk.ask(f"/terminal/{endpoint}", terminal=NOWHERE, **more)
    assert refused.value.code == "unknown_terminal"


def test_the_query_chooses_by_connection(desk: Desk, running_world: World) -> None:
    terminal = desk.open(running_world.connection(LOCAL, "dash"), "sleep 60")
    for name, there in (("local dash", True), ("local bash", False)):
        found = desk.ask("/terminal/query", connectionFilter=name)["terminals"]
        assert (terminal.id in {one["terminal"] for one in found}) == there
