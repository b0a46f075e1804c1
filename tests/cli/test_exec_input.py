"""Standard input of ``connmgr exec``, and local scripts: what a pipe, a file or nothing brings to the command."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import DIRECTORY, CommandLine, finish
from tests.deadlines import DEADLINE_SECONDS

pytestmark = pytest.mark.needs("bash")

MEBIBYTE = 1 << 20
BINARY = bytes(range(256)) * 4096


@contextmanager
def begun(connmgr: CommandLine, *words: str, stdin: int | IO[bytes] = subprocess.PIPE) -> Iterator[Any]:
    """Run the program with a standard input of its own, and kill it if it does not end in time."""
    with connmgr.begin(*words, stdin=stdin if isinstance(stdin, int) else stdin.fileno()) as process:
        killer = threading.Timer(DEADLINE_SECONDS, process.kill)
        killer.start()
        try:
            yield process
        finally:
            killer.cancel()
            process.kill()


def ended(process: Any) -> tuple[int, bytes, bytes]:
    """Wait for a program whose standard input stays open."""
    stdout, stderr = process.stdout.read(), process.stderr.read()
    return process.wait(DEADLINE_SECONDS), stdout, stderr


def test_a_pipe_reaches_the_command_byte_by_byte(connmgr: CommandLine) -> None:
    for data in (b"", b"hello\n", BINARY, BINARY * 8):
        assert connmgr("exec", "local", "cat", stdin=data).stdout == data
    assert connmgr("exec", "--json", "local", "wc -c", stdin=BINARY).json["stdout"] == str(len(BINARY))
    assert connmgr("exec", "--fresh", "--argv", "local", "cat", stdin=BINARY).stdout == BINARY
    assert connmgr("exec", "--timeout", "60", "local", "wc -c; exit 3", stdin=BINARY, code=3).output.split() == [
        str(len(BINARY))
    ]


def test_a_file_a_socket_and_a_device_too(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BINARY)
    with (tmp_path / "file").open("rb") as file, begun(connmgr, "exec", "local", "wc -c", stdin=file) as process:
        assert int(ended(process)[1]) == len(BINARY)
    with Path("/dev/zero").open("rb") as zero, begun(connmgr, "exec", "local", "head -c 5", stdin=zero) as process:
        assert ended(process) == (0, bytes(5), b"")
    with Path(os.devnull).open("rb") as null, begun(connmgr, "exec", "local", "cat", stdin=null) as process:
        assert ended(process) == (0, b"", b"")


def test_the_state_of_the_shell_lasts_although_the_command_reads(clean_connmgr: CommandLine) -> None:
    clean_connmgr("exec", "local", "cd /usr; read -r A; export A", stdin=b"value\n" + BINARY)
    assert clean_connmgr("exec", "local", 'pwd; echo "$A"').output == "/usr\nvalue\n"


@pytest.mark.parametrize("words", [(), ("-n",), ("--json",), ("--fresh",)])
def test_a_pipe_that_nobody_writes_does_not_hold_a_command(connmgr: CommandLine, words: tuple[str, ...]) -> None:
    with begun(connmgr, "exec", *words, "local", "exit 3") as process:
        assert ended(process)[0] == 3


def test_input_and_output_alternate(connmgr: CommandLine) -> None:
    with begun(connmgr, "exec", "local", "while read -r word; do echo got $word; done; echo over") as process:
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"got " + word + b"\n"
        process.stdin.close()
        assert ended(process)[:2] == (0, b"over\n")


def test_unread_input_does_not_hold_or_fail_a_command(connmgr: CommandLine) -> None:
    with begun(connmgr, "exec", "local", "head -c 3; exit 4") as process:
        with suppress(BrokenPipeError):
            while True:
                process.stdin.write(BINARY)
        assert ended(process) == (4, b"\0\1\2", b"")


def test_tar_passes_both_ways(connmgr: CommandLine, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(Path(__file__).parent, "tests")
    (tmp_path / "there").mkdir()
    connmgr("exec", "--cwd", str(tmp_path / "there"), "local", "tar", "x", stdin=archive.getvalue())
    back = connmgr("exec", "--cwd", str(tmp_path / "there"), "local", "tar", "c", "tests").stdout
    with tarfile.open(fileobj=io.BytesIO(back)) as tar:
        content = tar.extractfile("tests/test_exec_input.py")
        assert content
        assert content.read() == Path(__file__).read_bytes()


def test_the_client_s_memory_is_bounded(connmgr: CommandLine) -> None:
    """200 MiB, of which the program keeps nothing: its largest memory ever is that of Python and a few pieces."""
    # A forked one would have the memory of the tests.
    argv = [DIRECTORY / "connmgr", "exec", "local", "cat >/dev/null"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(argv, env=connmgr.environment, cwd=connmgr.daemon.home, **pipes) as process:
        assert process.stdin is not None
        for _ in range(200):
            process.stdin.write(bytes(MEBIBYTE))
        process.stdin.flush()
        peak = _peak(process.pid)
        process.stdin.close()
        assert ended(process)[0] == 0
    assert 4 * MEBIBYTE < peak < 64 * MEBIBYTE, f"{peak / MEBIBYTE:.0f} MiB"


def _peak(pid: int) -> int:
    """Return the largest memory that a process ever had, in bytes."""
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def test_a_terminal_is_read_only_on_request(connmgr: CommandLine) -> None:
    terminal = connmgr.on_terminal("exec", "local", "cat; echo over")
    assert finish(terminal) == (0, "over\r\n")
    terminal = connmgr.on_terminal("exec", "--stdin", "local", "read -r word; echo got $word")
    terminal.sendline("typed")
    code, shown = finish(terminal)
    assert (code, "got typed" in shown) == (0, True)


def test_many_get_input_only_on_request_and_nothing_is_dropped_in_silence(connmgr: CommandLine) -> None:
    everywhere = ("exec", "--all", "--json", "local*", "--", "wc -c")
    refused = connmgr(*everywhere, stdin="some", code=125)
    assert "Nothing was run" in refused.errors
    assert "-n" in refused.errors
    assert connmgr("exec", "-n", *everywhere[1:], stdin="some").json["stdout"] == "0"
    assert connmgr("exec", "--stdin", *everywhere[1:], stdin=BINARY).json["stdout"] == str(len(BINARY))
    large = connmgr("exec", "--stdin", *everywhere[1:], stdin=bytes(12 * MEBIBYTE), code=125)
    assert "more than 11 MiB" in large.errors
    with begun(connmgr, *everywhere) as process:
        code, _, errors = ended(process)
        assert (code, b"--all does not read standard input" in errors) == (0, True)


def test_a_job_gets_input_only_on_request(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    detach = ("exec", "--detach", "local", "wc -c")
    (tmp_path / "input").write_text("some")
    refused = subprocess.run(
        ["sh", "-c", f"connmgr exec --detach local 'wc -c' < {tmp_path}/input"],
        env=clean_connmgr.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (refused.returncode, "Nothing was run" in refused.stderr) == (125, True), refused
    assert clean_connmgr("job", "ls").output == ""
    job = clean_connmgr("exec", "--stdin", *detach[1:], stdin="some").output.strip()
    clean_connmgr("job", "wait", job)
    assert clean_connmgr("job", "logs", job).output == "4\n"
    assert "--open-input" in clean_connmgr("exec", "--stdin", *detach[1:], stdin=bytes(12 * MEBIBYTE), code=125).errors


def test_words_on_standard_input_that_connmgr_reads_itself_do_not_reach_a_command(own_connmgr: CommandLine) -> None:
    failed = own_connmgr("exec", "--all", "--json", "local*", "--", "exit 3", code=1).stdout
    again = own_connmgr("exec", "--all", "--json", "--failed", "-", "--", "wc -c", stdin=failed).json
    assert again["stdout"] == "0"
    passphrase = "correct horse battery staple"
    own_connmgr("vault", "user", "add", "alice", stdin=f"{passphrase}\n")
    unlocked = ("--unlock", "alice", "exec")
    assert own_connmgr(*unlocked, "local", "cat", stdin=f"{passphrase}\nrest\n").output == "rest\n"
    assert own_connmgr(*unlocked, "--script", "-", "local", stdin=f"{passphrase}\necho ran\n").output == "ran\n"


def test_a_loop_over_a_list_needs_no_input(connmgr: CommandLine) -> None:
    loop = "while read -r host; do connmgr exec {} $host echo here; done"
    for option, times in (("", 1), ("-n", 3)):
        done = subprocess.run(
            ["sh", "-c", loop.format(option)],
            input=b"local\nlocal\nlocal\n",
            env=connmgr.environment,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=True,
        )
        assert done.stdout == b"here\n" * times, "not as with ssh"


@pytest.mark.needs("sshd")
def test_input_over_ssh(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    clean_connmgr.add_ssh("far", start_sshd())
    assert clean_connmgr("exec", "far", "cat", stdin=BINARY * 8).stdout == BINARY * 8
    with begun(clean_connmgr, "exec", "far", "exit 3") as process:
        assert ended(process)[0] == 3
    clean_connmgr.add_ssh("strict", start_sshd(options={"MaxSessions": "1"}))
    assert clean_connmgr("exec", "strict", "cat", stdin=BINARY * 8).stdout == BINARY * 8


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script"
    path.write_text('#!/bin/bash\nprintf "<%s>" "$@"; [ "${BASH_VERSION}" ] || exit 9; cat; pwd; exit 5\n')
    return path


def left(connmgr: CommandLine) -> list[str]:
    temporary = Path(connmgr.environment["TMPDIR"])
    return sorted(one.name for one in temporary.iterdir() if one.name.startswith("connmgr-"))


def test_a_script_runs_by_its_interpreter_and_leaves_nothing(clean_connmgr: CommandLine, script: Path) -> None:
    words = ("--cwd", "/usr", "local", "a", "b  c", "-x", "$HOME")
    done = clean_connmgr("exec", "--script", str(script), *words, stdin=b"input\n", code=5)
    assert done.output == "<a><b  c><-x><$HOME>input\n/usr\n"
    clean_connmgr("exec", "--timeout", "0.5", "--script", "-", "local", stdin="sleep 100", code=124)
    assert clean_connmgr("exec", "--fresh", "--script", "-", "local", "x", stdin='echo "$1"').output == "x\n"
    assert left(clean_connmgr) == [], "a script stays on the machine"
    assert "names no interpreter" in clean_connmgr("exec", "--script", "-", "local", stdin="#!\n", code=125).errors
    assert "No such file" in clean_connmgr("exec", "--script", "nowhere", "local", code=125).errors


def test_a_script_runs_on_many(clean_connmgr: CommandLine, script: Path) -> None:
    # Equal connections would be one.
    for name, shell in (("one", "bash"), ("two", "sh")):
        clean_connmgr("add", "local", name, f"shell={shell}")
    lines = clean_connmgr("exec", "--all", "--brief", "one", "two", "-n", "--script", str(script), "--", "a b", code=1)
    assert lines.output.count("exit 5") == 2, lines.output
    done = clean_connmgr("exec", "--all", "--json", "one", "--script", "-", "--", "a b", stdin='echo "<$1>"').json
    assert (done["exitCode"], done["stdout"], done["name"]) == (0, "<a b>", "default/one")
    assert left(clean_connmgr) == []
