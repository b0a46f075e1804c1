"""The front: it runs the plainest command itself, at once, and nobody can tell it from the whole command line."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pexpect
import pytest

from connmgr.cli.front import plain, plain_copy
from connmgr.client import LOCAL_MACHINE
from tests.cli.conftest import StartSshd, lose_links
from tests.cli.program import DIRECTORY, CommandLine, finish
from tests.daemon import spawner
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.processes import await_ends
from tests.spawner import forkable

pytestmark = pytest.mark.needs("bash")

FRONT = (str(DIRECTORY / "connmgr"),)
WHOLE = (
    sys.executable,
    "-c",
    "import sys; from connmgr.cli import front; front._plainest = lambda _: None; sys.argv[0] = 'connmgr'; "
    "from connmgr.__main__ import main; main()",
)
"""The command line without its front; tests.cli.without_front makes it of a forked one."""


def _done(program: tuple[str, ...], environment: Mapping[str, str], words: tuple[str, ...], stdin: bytes) -> object:
    forks = spawner() if program is FRONT else spawner("tests.cli.without_front")
    assert forkable(environment)
    done = forks.run(words, environment, Path.cwd(), stdin, DEADLINE_SECONDS)
    # bash counts the lines of all commands of its life.
    return done.returncode, done.stdout, re.sub(rb"line \d+:", b"line N:", done.stderr)


def _same(connmgr: CommandLine, *words: str, stdin: bytes = b"", **variables: str | None) -> tuple[int, bytes, bytes]:
    """Return exit code and output of ``connmgr exec words``, which must be the same without the front."""
    environment = {name: one for name, one in (connmgr.environment | variables).items() if one is not None}
    before, after = (_done(program, environment, ("exec", *words), stdin) for program in (WHOLE, FRONT))
    assert before == after
    return after  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["exec", "web", "--", "ls", "-l"], ("web", "ls -l")),
        (["exec", "web", "ls", "-l", "a  b"], ("web", "ls -l a  b")),
        (["exec", "web", "--", "--", "x"], ("web", "-- x")),
        (["exec", "web", "--", "git", "log", "--", "x"], ("web", "git log -- x")),
        (["exec", "web", ""], ("web", "")),
        (["exec", "a/b", "-", "x"], None),
        (["exec", "web", "git", "--", "x"], None),
        (["exec", "web", "-n", "--", "ls"], None),
        (["exec", "--json", "web", "--", "ls"], None),
        (["exec", "web", "--"], None),
        (["exec", "web"], None),
        (["exec", "me@web", "--", "ls"], None),
        (["exec", "ssh://web", "--", "ls"], None),
        (["--json", "exec", "web", "ls"], None),
        (["job", "list", "web"], None),
        ([], None),
    ],
)
def test_only_a_connection_and_a_command_are_plain(arguments: list[str], found: tuple[str, str] | None) -> None:
    assert plain(arguments) == found


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["cp", "file", "web:"], ("file", "web:")),
        (["cp", "-q", "web:/etc/*", "./a:b"], None),
        (["cp", "-q", "web:/etc/motd", "./a:b"], ("web:/etc/motd", "./a:b")),
        (["cp", "file*", "web:a*", "--quiet"], ("file*", "web:a*")),
        (["cp", "-r", "file", "web:"], None),
        (["cp", "--", "file", "web:"], None),
        (["cp", "-", "web:"], None),
        (["cp", "file", "other"], None),
        (["cp", "web:a", "db:b"], None),
        (["cp", "file", "me@web:a"], None),
        (["cp", "ssh://web:a", "file"], None),
        (["cp", "a", "b", "web:"], None),
        (["cp", "web:a"], None),
        (["--json", "cp", "a", "web:"], None),
    ],
)
def test_only_a_single_file_is_copied_plainly(
    arguments: list[str], found: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.isatty", lambda _: False)
    assert plain_copy(arguments) == found
    monkeypatch.setattr("os.isatty", lambda _: True)
    assert plain_copy(arguments) == (found if {"-q", "--quiet"} & {*arguments} else None)


def test_a_word_asks_for_completions_not_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CONNMGR_COMPLETE", "bash_complete")
    assert plain(["exec", "web", "ls"]) is None


def test_a_plain_command_loads_no_command_line(connmgr: CommandLine) -> None:
    argv = [sys.executable, "-X", "importtime", *FRONT, "exec", "local", "--", "echo", "here"]
    done = subprocess.run(argv, env=connmgr.environment, capture_output=True, timeout=DEADLINE_SECONDS, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert done.stdout == b"here\n"
    assert "connmgr.client.http" in loaded, "the option shows what is imported"
    assert not loaded & {"click", "connmgr.cli.root", "connmgr.errors", "connmgr.contract", "datetime", "difflib"}
    assert not loaded & {"encodings.idna", "hashlib", "subprocess", "connmgr.settings"}


def test_a_plain_copy_loads_no_command_line(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("content")
    argv = [sys.executable, "-X", "importtime", *FRONT, "cp", str(tmp_path / "source"), f"local:{tmp_path}/there"]
    done = subprocess.run(argv, env=connmgr.environment, capture_output=True, timeout=DEADLINE_SECONDS, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert (tmp_path / "there").read_text() == "content"
    assert "connmgr.contract.fs" in loaded, "the option shows what is imported"
    assert not loaded & {"click", "connmgr.cli.root", "dataclasses", "hashlib", "subprocess", "connmgr.settings"}


def test_copies_and_their_errors_are_the_same(connmgr: CommandLine, tmp_path: Path) -> None:
    def same(source: str, target: str) -> tuple[int, bytes, bytes]:
        before, after = (_done(one, connmgr.environment, ("cp", source, target), b"") for one in (WHOLE, FRONT))
        assert before == after
        return after  # type: ignore[return-value]

    (tmp_path / "source").write_bytes(os.urandom(300_000))
    (tmp_path / "source").chmod(0o640)
    (tmp_path / "directory").mkdir()
    for source, target in (
        (f"{tmp_path}/source", f"local:{tmp_path}/there"),
        (f"{tmp_path}/source", f"local:{tmp_path}/directory"),
        (f"local:{tmp_path}/source", f"{tmp_path}/back"),
        (f"local:{tmp_path}/source", f"{tmp_path}/directory/"),
    ):
        assert same(source, target) == (0, b"", b"")
    for copy in ("there", "back", "directory/source"):
        assert (tmp_path / copy).read_bytes() == (tmp_path / "source").read_bytes(), copy
        assert (tmp_path / copy).stat().st_mode & 0o777 == 0o640
    for source, target, code, said in (
        (f"{tmp_path}/nowhere", f"local:{tmp_path}/x", 1, b"nowhere: No such file or directory"),
        (f"{tmp_path}/directory", f"local:{tmp_path}/x", 1, b"-r copies directories"),
        (f"local:{tmp_path}/nowhere", f"{tmp_path}/x", 1, b"local:"),
        (f"{tmp_path}/source", f"local:{tmp_path}/no/where", 1, b"directory does not exist"),
        (f"local:{tmp_path}/source", f"{tmp_path}/no/where", 1, b"No such file"),
        (f"{tmp_path}/source", "nobody:x", 5, b"nobody"),
    ):
        status, out, err = same(source, target)
        assert (status, out) == (code, b"")
        assert said in err


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "exit 7",
        r"printf 'a\000\377\n\n'; printf b >&2; exit 3",
        "echo out; echo err >&2",
        "kill -9 $BASHPID",
        "no-such-program",
        "echo 'unfinished",
        "cd /nowhere",
        "head -c 3000000 /dev/zero | tr '\\0' x",
        'echo "$LANG $LC_ALL"; pwd',
        "cat; echo $?",
    ],
)
def test_output_and_exit_code_are_the_same(connmgr: CommandLine, command: str) -> None:
    _same(connmgr, "local", "--", command)
    _same(connmgr, "local machine", command, LANG="C.UTF-8", LC_ALL=None)


@pytest.mark.parametrize("size", [0, 5, 16 << 10, (16 << 10) + 1, 3 << 20])
def test_input_is_the_same(connmgr: CommandLine, size: int) -> None:
    assert _same(connmgr, "local", "wc", "-c", stdin=b"\xff" * size)[1].split() == [str(size).encode()]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("locall", "--", "true"), 125),
        (("", "--", "true"), 125),
        (("f0ec68aa-63f5-405c-b178-9a4454556d6c", "--", "true"), 125),
        (("loc*", "--", "true"), 125),
        (("local", "--", "a\udcff"), 125),
        (("local", "--", "exit"), 0),
    ],
)
def test_errors_are_the_same(connmgr: CommandLine, words: tuple[str, ...], code: int) -> None:
    found = _same(connmgr, *words)
    assert found[0] == code, found


@pytest.mark.parametrize(
    "variables",
    [
        {"CONNMGR_PORT": "1"},
        {"CONNMGR_PORT": "x"},
        {"CONNMGR_PORT": ""},
        {"CONNMGR_HOST": "no host"},
        {"CONNMGR_TOKEN": ""},
        {"CONNMGR_TOKEN": "cmgr_unknown"},
        {"CONNMGR_TOKEN": "no token"},
        {"CONNMGR_TOKEN": "cmgr_unknown", "CONNMGR_TOKEN_FILE": "/nowhere"},
        {"CONNMGR_TOKEN_FILE": "/nowhere"},
        {"CONNMGR_AUTH_FILE": "/nowhere"},
        {"CONNMGR_AUTH_FILE": ""},
        {"CONNMGR_CONFIG": ""},
        {"CONNMGR_SESSION": "no name"},
    ],
)
def test_what_the_environment_names_is_refused_in_the_same_words(
    connmgr: CommandLine, variables: dict[str, str]
) -> None:
    code, output, errors = _same(connmgr, "local", "--", "echo", "ran", **variables)
    assert (code, output) == (125, b"")
    assert b"Error: " in errors


def test_a_token_has_its_own_rights(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(
        clean_connmgr("token", "create", "--for", "reader", "--scope", "connection.read", "--expires", "1h").output
    )
    code, _, errors = _same(clean_connmgr, "local", "--", "true", CONNMGR_TOKEN_FILE=str(token))
    assert (code, b"scope" in errors) == (125, True)


def test_settings_name_the_daemon(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"port = {clean_connmgr.environment['CONNMGR_PORT']}\n")
    unnamed = {"CONNMGR_CONFIG": str(config), "CONNMGR_PORT": None}
    assert _same(clean_connmgr, "local", "--", "echo", "here", **unnamed)[:2] == (0, b"here\n")
    config.write_text("port = 'x'\n")
    assert _same(clean_connmgr, "local", "--", "echo", "here", **unnamed)[:2] == (125, b"")


def test_a_command_continues_the_session_that_was_unlocked(own_connmgr: CommandLine) -> None:
    own_connmgr("vault", "user", "add", "me", stdin="correct horse\n")
    own_connmgr("vault", "unlock", "me", stdin="correct horse\n")
    kept = next(Path(own_connmgr.daemon.client._session.auth_file).parent.glob("session"))
    content = kept.read_bytes()
    assert _same(own_connmgr, "local", "--", "echo", "here")[1] == b"here\n"
    assert kept.read_bytes() == content
    kept.write_bytes(content.replace(b'"token": "', b'"token": "x'))
    _same(own_connmgr, "local", "--", "true")
    assert not kept.exists(), "the session that has ended is forgotten"


def test_a_lost_shell_is_told_of(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    clean_connmgr.add_ssh("web", server)
    for program in (WHOLE, FRONT):
        assert clean_connmgr("exec", "web", "--", "true").code == 0
        lose_links(clean_connmgr, server)
        done = _done(program, clean_connmgr.environment, ("exec", "web", "--", "echo here"), b"")
        told = b"web: the shell was started anew; its directory and variables are new\n"
        assert done == (0, b"here\n", told)


def test_a_refused_login_is_told_of_once(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    data = [
        f"port={server.port}",
        "user=no.such.user",
        f"identity.file={server.client_key}",
        "hostKeyChecking=acceptNew",
    ]
    clean_connmgr("add", "ssh", "web", "host=127.0.0.1", *data)
    code, output, errors = _same(clean_connmgr, "web", "--", "true")
    assert (code, output) == (125, b"")
    assert b"`connmgr info web` shows what is offered" in errors


def test_an_unknown_host_is_asked_about(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    data = [f"port={server.port}", f"user={server.user}", f"identity.file={server.client_key}"]
    clean_connmgr("add", "ssh", "web", "host=127.0.0.1", *data)
    assert b"is not known" in _same(clean_connmgr, "web", "--", "true")[2]
    terminal = clean_connmgr.on_terminal("exec", "web", "--", "echo", "here")
    terminal.expect_exact("Trust this host? (yes/no/fingerprint) ")
    terminal.sendline("yes")
    terminal.expect("trusted .*here")
    assert finish(terminal)[0] == 0


def test_a_question_wipes_the_line_that_counts_the_seconds(own_connmgr: CommandLine) -> None:
    terminal = own_connmgr.on_terminal("exec", "local", "--", "sleep 2.5; echo here")
    # On a busy machine a second may go by unseen.
    terminal.expect(r"\r\x1b\[Klocal: [1-9][0-9]* s")
    terminal.expect_exact("\r\x1b[Khere")
    assert finish(terminal)[0] == 0


def test_it_says_whose_command_it_waits_for(own_connmgr: CommandLine, gate: Path) -> None:
    environment = own_connmgr.environment
    with subprocess.Popen([*FRONT, "exec", "local", "--", f"read line <{gate}"], env=environment) as ahead:
        eventually(
            lambda: any(one.running_since for one in own_connmgr.daemon.client.shell.list()), "no command is running"
        )
        behind = [*FRONT, "exec", "local", "--", "echo here"]
        with subprocess.Popen(behind, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
            assert waiting.stderr is not None
            said = waiting.stderr.readline()
            gate.write_text("go on\n")
            output, errors = waiting.communicate(timeout=DEADLINE_SECONDS)
        assert ahead.wait(DEADLINE_SECONDS) == 0
    assert re.match(rb"connmgr: local: waiting for `read line <.*` of connmgr, running for ", said), said
    assert (waiting.returncode, output, errors) == (0, b"here\n", b"")


@pytest.mark.parametrize("program", [WHOLE, FRONT], ids=["whole", "front"])
def test_ctrl_c_kills_the_command(own_connmgr: CommandLine, program: tuple[str, ...], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    command = f"echo $BASHPID >{mark}; echo begun; exec sleep 600"
    terminal = pexpect.spawn(
        program[0], [*program[1:], "exec", "local", "--", command], env=own_connmgr.environment, encoding="utf-8"
    )
    terminal.expect_exact("begun\r\n", timeout=DEADLINE_SECONDS)
    terminal.sendintr()
    code, printed = finish(terminal)
    assert (code, printed) == (130, "^C\r\n")
    await_ends(int(mark.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", [WHOLE, FRONT], ids=["whole", "front"])
def test_a_signal_kills_the_command(
    own_connmgr: CommandLine, program: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    argv = [*program, "exec", "local", "--", f"echo $BASHPID >{mark}; echo begun; exec sleep 600"]
    process = subprocess.Popen(argv, env=own_connmgr.environment, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.wait(DEADLINE_SECONDS) == -number
    await_ends(int(mark.read_text()))


@pytest.mark.parametrize("program", [WHOLE, FRONT], ids=["whole", "front"])
def test_without_a_reader_the_command_is_killed_quietly(
    own_connmgr: CommandLine, program: tuple[str, ...], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    argv = [*program, "exec", "local", "--", f"echo $BASHPID >{mark}; exec yes"]
    process = subprocess.Popen(argv, env=own_connmgr.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(4) == b"y\ny\n"
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(DEADLINE_SECONDS) == 1
    await_ends(int(mark.read_text()))


def test_streams_may_be_closed(connmgr: CommandLine) -> None:
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        codes = [
            subprocess.run(
                ["/bin/sh", "-c", f'"$@" {closed}', "sh", *program, "exec", "local", "--", "echo out; exit 9"],
                env=connmgr.environment,
                capture_output=True,
                timeout=DEADLINE_SECONDS,
                check=False,
            )
            for program in (WHOLE, FRONT)
        ]
        assert [(one.returncode, one.stdout, one.stderr) for one in codes[:1]] == [
            (one.returncode, one.stdout, one.stderr) for one in codes[1:]
        ]


def test_a_full_disk_is_told_of(connmgr: CommandLine) -> None:
    with Path("/dev/full").open("wb") as full:
        told = [
            subprocess.run(
                [*program, "exec", "local", "--", "echo out"],
                env=connmgr.environment,
                stdout=full,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                timeout=DEADLINE_SECONDS,
                check=False,
            )
            for program in (WHOLE, FRONT)
        ]
    assert told[0].stderr == told[1].stderr != b""
    assert told[0].returncode == told[1].returncode == 125


def test_a_terminal_is_not_read(connmgr: CommandLine) -> None:
    main, other = pty.openpty()
    os.write(main, b"typed\n")
    for program in (WHOLE, FRONT):
        done = subprocess.run(
            [*program, "exec", "local", "--", "cat; echo end"],
            env=connmgr.environment,
            stdin=other,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"end\n", b"")
    os.close(main)
    os.close(other)


def test_commands_of_one_terminal_share_a_shell(clean_connmgr: CommandLine) -> None:
    environment = {name: value for name, value in clean_connmgr.environment.items() if name != "CONNMGR_SESSION"}
    line = f"{FRONT[0]} exec local -- cd /etc; {FRONT[0]} exec local -- pwd"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=environment, capture_output=True, timeout=DEADLINE_SECONDS, check=True
    )
    assert done.stdout == b"/etc\n"
    assert not any(one.status.session is None for one in clean_connmgr.daemon.client.shell.list(LOCAL_MACHINE))
