"""Standard streams that are closed, full or not text: one message, an exit code, and no traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.program import CommandLine
from tests.deadlines import DEADLINE_SECONDS

pytestmark = [
    pytest.mark.needs("bash"),
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full: the system has none"),
]


def run(connmgr: CommandLine, line: str, code: int) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, which must exit with ``code`` and print no traceback."""
    done = subprocess.run(
        ["bash", "-c", line],
        env=connmgr.environment,
        cwd=connmgr.daemon.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, f"{line} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("connmgr exec local -- 'echo out; exit 7' >/dev/full", 125),
        ("connmgr exec local -- 'echo out; exit 7' >/dev/full 2>&1", 125),
        ("connmgr exec local -- 'echo err >&2; exit 7' 2>/dev/full", 125),
        ("connmgr exec local -- 'exit 7' 2>/dev/full", 7),
        ("connmgr exec local --json -- 'exit 7' >/dev/full", 125),
        ("connmgr exec --all 'local*' -- true >/dev/full", 125),
        ("connmgr exec nowhere -- true 2>/dev/full", 125),
        ("connmgr --help >/dev/full", 1),
        ("connmgr ls >/dev/full", 1),
        ("connmgr status --json >/dev/full", 1),
        ("connmgr doctor >/dev/full", 1),
        ("connmgr cp local:/etc/passwd - >/dev/full", 1),
        ("connmgr encrypt <<<value >/dev/full", 1),
        ("connmgr shell local <<<'echo out' >/dev/full", 1),
        ("connmgr info nowhere 2>/dev/full", 5),
        ("connmgr nonsense 2>/dev/full", 2),
    ],
)
def test_output_that_cannot_be_written_is_one_message(connmgr: CommandLine, line: str, code: int) -> None:
    errors = run(connmgr, line, code).stderr
    if code in (1, 125) and "2>" not in line:
        assert errors.splitlines()[-1] == "Error: Input or output failed: No space left on device."


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_token_that_cannot_be_printed_is_revoked(connmgr: CommandLine, option: str) -> None:
    line = f"connmgr token create --for nobody{option} --expires 1h --scope shell.any {option} >/dev/full"
    run(connmgr, line, 1)
    [state] = [token["state"] for token in connmgr("token", "ls", "--json").json if token["name"] == f"nobody{option}"]
    assert state == "revoked"


def test_words_of_a_recovery_key_that_cannot_be_printed_are_said_to_be_lost(own_connmgr: CommandLine) -> None:
    passphrase = "four words or more"
    own_connmgr("vault", "user", "add", "alice", stdin=f"{passphrase}\n")
    own_connmgr("vault", "unlock", "alice", stdin=f"{passphrase}\n")
    for words in ("create", "rotate ID", "rotate ID --json"):
        id = "".join(known["recovery"] for known in own_connmgr("vault", "recovery", "ls", "--json").json)
        line = f"connmgr vault recovery {words.replace('ID', id)} <<<'{passphrase}' >/dev/full"
        errors = run(own_connmgr, line, 1).stderr
        [known] = own_connmgr("vault", "recovery", "ls", "--json").json
        assert "shown once" not in errors
        assert (
            f"No space left on device. The words of recovery key {known['recovery']} are lost: `connmgr vault recovery "
            f"rotate {known['recovery']}` makes others.\n"
        ) in errors


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_leaves_the_exit_code_of_a_command_alone(connmgr: CommandLine, closed: str) -> None:
    done = run(connmgr, f"connmgr exec --stdin local -- 'cat; echo out; echo err >&2; exit 7' {closed}", 7)
    # No output went into files that the program opened meanwhile, and the open stream got its output.
    assert done.stdout == ("" if ">&-" in closed.split() else "out\n")
    assert done.stderr == ("" if "2>&-" in closed else "err\n")


def test_the_daemon_runs_with_its_streams_closed(connmgr: CommandLine, tmp_path: Path) -> None:
    options = f"--port 0 --data-dir {tmp_path}/data --auth-file {tmp_path}/auth"
    # The auth file exists when the daemon is ready.
    wait = f"for _ in {{1..300}}; do [ -e {tmp_path}/auth ] && break; sleep 0.1; done; kill $!; wait $!"
    run(connmgr, f"connmgr serve {options} <&- >&- 2>&- & {wait}", 0)


@pytest.mark.parametrize("command", ["encrypt", "shell local"])
def test_input_that_is_not_text_is_reported(connmgr: CommandLine, command: str) -> None:
    # A locale other than C.UTF-8, in which Python would accept any bytes.
    line = rf"printf '\xff\n' | PYTHONIOENCODING=utf-8:strict connmgr {command}"
    assert "Input or output failed: 'utf-8' codec can't decode" in run(connmgr, line, 1).stderr
