"""Links that break between or during commands: the next command works and reports it, and nothing runs twice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import StartSshd, lose_links
from tests.cli.program import DIRECTORY, CommandLine
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "bash")

ANEW = "web: the shell was started anew; its directory and variables are new\n"


@pytest.fixture
def server(clean_connmgr: CommandLine, start_sshd: StartSshd) -> Sshd:
    """The server of the connection ``web``."""
    started = start_sshd()
    clean_connmgr.add_ssh("web", started)
    return started


def test_the_first_command_after_a_broken_link_works_and_says_so(clean_connmgr: CommandLine, server: Sshd) -> None:
    first = clean_connmgr("exec", "web", "--", "cd /usr; export ODD=1")
    assert first.errors == "", "a shell that was never there is told as one that was lost"
    lose_links(clean_connmgr, server)
    done = clean_connmgr("exec", "web", "--", 'echo "<$ODD>"; pwd')
    assert done.output.startswith("<>\n/")
    assert "/usr" not in done.output
    assert done.errors == ANEW
    assert clean_connmgr("exec", "web", "--", "true").errors == "", "it is said twice"


def test_json_says_it_by_a_member(clean_connmgr: CommandLine, server: Sshd) -> None:
    for everywhere in ([], ["--all"]):
        clean_connmgr("exec", "web", "--", "true")
        lose_links(clean_connmgr, server)
        done = clean_connmgr("exec", *everywhere, "--json", "web", "--", "echo hi")
        found = json.loads(done.output)
        assert (found["stdout"], found.get("restarted")) == ("hi", True), found
        assert ANEW not in done.errors
        assert "restarted" not in json.loads(clean_connmgr("exec", *everywhere, "--json", "web", "--", "true").output)


def test_a_run_everywhere_says_where_it_was(clean_connmgr: CommandLine, server: Sshd) -> None:
    clean_connmgr("exec", "web", "--", "true")
    lose_links(clean_connmgr, server)
    done = clean_connmgr("exec", "--all", "{web,local*}", "--", "echo hi")
    assert "2 ok" in done.errors
    assert ANEW in done.errors
    assert done.errors.count("anew") == 1


def test_a_command_during_which_the_link_breaks_fails_and_is_not_run_twice(
    clean_connmgr: CommandLine, server: Sshd
) -> None:
    counter = server.directory / "counter"
    counter.touch()
    counter.chmod(0o666)
    command = f"echo once >> {counter}; echo begun; sleep 100"
    process = subprocess.Popen(
        [DIRECTORY / "connmgr", "exec", "web", "--", command],
        env=clean_connmgr.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"begun\n"
        server.kill_sessions()
        assert process.wait(DEADLINE_SECONDS) == 125
        assert b"The next command starts a new shell" in process.stderr.read()
    assert counter.read_text() == "once\n", "the command ran twice"
    assert clean_connmgr("exec", "web", "--", "echo on").errors == ANEW


def test_files_and_jobs_and_a_shell_go_on_too(clean_connmgr: CommandLine, server: Sshd) -> None:
    clean_connmgr("exec", "web", "--", "true")
    lose_links(clean_connmgr, server)
    done = clean_connmgr("cp", f"web:{__file__}", "-")
    assert done.output == Path(__file__).read_text()
    assert done.errors == ANEW
    lose_links(clean_connmgr, server)
    job = clean_connmgr("exec", "--detach", "web", "--", "echo of a job")
    assert job.errors == ANEW
    assert clean_connmgr("job", "logs", "-f", job.output.strip()).output == "of a job\n"
    lose_links(clean_connmgr, server)
    done = clean_connmgr("shell", "web", stdin="echo hi\n")
    assert (done.output, done.errors) == ("hi\n", ANEW)


def test_the_status_shows_a_link_that_broke(clean_connmgr: CommandLine, server: Sshd) -> None:
    clean_connmgr("exec", "web", "--", "true")
    server.kill_sessions()
    eventually(
        lambda: clean_connmgr("status").output, "the shell is not shown as lost", holds=lambda seen: "lost" in seen
    )
    assert clean_connmgr("status", "--json").json["sessions"][0]["state"] == "lost"
