"""The examples, run in their order as a reader would, against one daemon."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("[0-9]*.sh"))

Result = subprocess.CompletedProcess[str]


def documents(text: str) -> list[Any]:
    """Return the JSON documents in ``text``, one after the other."""
    found, rest = [], text.strip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].strip()
    return found


class Examples:
    """A daemon, and each example's output."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        port = daemon.url.rpartition(":")[2]
        self._environment = {**daemon.environment, "CONNMGR_PORT": port}
        self._printed: dict[str, str] = {}
        self._order = list(SCRIPTS)

    def run(self, *command: str) -> Result:
        return subprocess.run(
            command, env=self._environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    def printed(self, script: str) -> str:
        """Run all examples up to ``script``, and return its output."""
        while script not in self._printed:
            following = self._order.pop(0)
            done = self.run(str(EXAMPLES / following))
            assert (following, done.returncode, done.stderr) == (following, 0, ""), done.stdout
            self._printed[following] = done.stdout
        return self._printed[script]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    daemon = Daemon(tmp_path_factory.mktemp("examples"))
    yield Examples(daemon)
    daemon.stop()


def keys(*names: str) -> Callable[[list[Any]], bool]:
    return lambda answers: set(answers[-1]) == set(names)


def nothing(answers: list[Any]) -> bool:
    return answers == []


def nothing_kept(answers: list[Any]) -> bool:
    """Whether the answer is that to the owner, whose changes of files are not kept."""
    return answers == [{}]


TEXTS = {
    "49-undo-read.sh": "before\n",
    "52-shell-pipe.sh": "HELLO FROM A PIPE\nexit status 3\n",
    "58-terminal-attach.sh": "HTTP/1.1 101\n",
    "44-fs-download.sh": "Hello from connmgr\nContent-Disposition: attachment; filename*=UTF-8''hello\n",
    "43-fs-read.sh": "Hello from connmgr\n",
    "46-fs-archive.sh": "./\n./greeting\n",
}

EXPECTED: dict[str, Callable[[list[Any]], bool]] = {
    "01-handshake.sh": keys("sessionToken"),
    "02-daemon-version.sh": keys("version", "canonicalVersion", "buildVersion", "jvmVersion", "pro"),
    "03-daemon-status.sh": keys(
        "version",
        "runtime",
        "pid",
        "uptime",
        "threads",
        "clients",
        "slots",
        "sessions",
        "blobs",
        "auditLost",
        "activity",
        "environment",
    ),
    "10-category-query.sh": lambda answers: len(answers[0]["found"]) == 2,
    "11-category-info.sh": lambda answers: answers[0]["infos"][0]["name"] == ["all connections"],
    "12-category-add.sh": keys("category"),
    "20-connection-types.sh": lambda answers: "local" in [kind["type"] for kind in answers[0]["types"]],
    "21-connection-add.sh": keys("connection", "added"),
    "22-connection-query.sh": lambda answers: len(answers[0]["found"]) == 1,
    "23-connection-info.sh": lambda answers: answers[0]["infos"][0]["name"] == ["example shell"],
    "24-connection-label.sh": lambda answers: answers[0]["changed"] == answers[1]["found"],
    "24-connection-update.sh": nothing,
    "25-connection-refresh.sh": lambda answers: answers == [{"added": [], "gone": [], "skipped": []}],
    "25-fact-gather.sh": lambda answers: [one["facts"] > 5 for one in answers[0]["gathered"]] == [True],
    "25-fact-query.sh": lambda answers: (
        answers[0]["total"] == 1 and {"os.id", "arch"} < answers[0]["machines"][0]["facts"].keys()
    ),
    "28-connection-toggle.sh": nothing,
    "29-connection-browse.sh": lambda answers: answers == [{}],
    "29-connection-terminal.sh": lambda answers: answers == [{}],
    "29-tunnel-query.sh": lambda answers: (
        [(one["state"], one["address"]) for one in answers[0]["tunnels"]] == [("open", "127.0.0.1:8080")]
    ),
    "26-hostkey-trust.sh": nothing,
    "27-hostkey-forget.sh": lambda answers: [one["kept"] for one in answers[0]["keys"]] == [""],
    "26-connection-apply.sh": lambda answers: answers == [{"added": [], "removed": []}],
    "30-shell-start.sh": keys("shellDialect", "osType", "osName", "ttyState", "temp"),
    "31-shell-exec.sh": lambda answers: answers == [{"exitCode": 3, "stdout": "Linux", "stderr": "oops"}],
    "32-shell-exec.sh": lambda lines: (
        lines == [{"stdout": "one\n"}, {"stdout": "two\n"}, {"stderr": "oops\n"}, {"exitCode": 3}]
    ),
    "32-shell-list.sh": lambda answers: [one.get("session") for one in answers[1]["shells"]] == [None, "second"],
    "27-connection-environment.sh": lambda answers: "LANG" in answers[0]["send"],
    "27-connection-login.sh": lambda answers: answers == [{"opened": True}],
    "27-connection-elevate.sh": lambda answers: answers[0]["connection"].endswith("+owner+root"),
    "33-shell-broadcast.sh": lambda answers: [answers[0]["stdout"], answers[1]["succeeded"]] == ["Linux", 1],
    "33-job-start.sh": keys("job"),
    "33-shell-exec.sh": lambda answers: answers[0]["stdout"].splitlines() == ["it's one  word", "*", "$HOME"],
    "34-job-input.sh": nothing,
    "35-job-output.sh": lambda answers: (
        [answers[0][name]["data"] for name in ("stdout", "stderr")] == ["world\n", "oops\n"]
    ),
    "36-job-wait.sh": lambda answers: (answers[0]["state"], answers[0]["exitCode"]) == ("exited", 3),
    "37-job-query.sh": lambda answers: answers[0]["jobs"] == [answers[1]],
    "38-job-kill.sh": lambda answers: answers[0]["state"] == "killed",
    "39-job-orphans.sh": lambda answers: answers == [{"orphans": []}],
    "39-job-remove.sh": nothing,
    "35-run-start.sh": keys("run", "targets", "waves", "as", "why"),
    "36-run-wait.sh": lambda answers: (answers[0]["state"], answers[0]["counts"]["failed"]) == ("failed", 1),
    "37-run-info.sh": lambda answers: answers[0]["state"] == "failed",
    "37-run-output.sh": lambda answers: (answers[0]["groups"][0]["stdout"], len(answers[0]["groups"])) == ("Linux", 1),
    "37-run-query.sh": lambda answers: [one["name"] for one in answers[0]["runs"]] == ["example"],
    "37-run-targets.sh": lambda answers: [one["exitCode"] for one in answers[0]["targets"]] == [3],
    "38-run-retry.sh": lambda answers: (answers[0]["targets"], answers[1]["state"]) == (1, "failed"),
    "39-run-pause.sh": keys("run", "targets", "waves", "as", "why"),
    "39-run-remove.sh": nothing,
    "39-run-resume.sh": nothing,
    "39-run-stop.sh": lambda answers: answers[0]["state"] == "stopped",
    "34-shell-exec.sh": lambda lines: lines == [{"begun": True}, {"stdout": "1000000\n"}, {"exitCode": 0}],
    "39-shell-exec.sh": keys("job", "stdout", "stderr"),
    "40-fs-mkdir.sh": nothing_kept,
    "41-fs-blob.sh": keys("blob"),
    "42-fs-upload.sh": lambda answers: answers[0]["bytes"] == 19 and len(answers[0]["sha256"]) == 64,
    "42-fs-write.sh": nothing_kept,
    "43-fs-ticket.sh": lambda answers: (answers[0]["name"], answers[0]["size"]) == ("hello", 19),
    "45-fs-attributes.sh": nothing_kept,
    "59-recording-query.sh": lambda answers: [one["columns"] for one in answers[0]["recordings"]] == [60],
    "59-recording-read.sh": lambda answers: (answers[0]["version"], answers[0]["term"]["cols"]) == (3, 60),
    "59-recording-search.sh": lambda answers: [one["text"] for one in answers[0]["matches"]] == ["Hello, Ada"],
    "44-fs-stat.sh": lambda answers: (answers[0]["size"], answers[0]["mode"]) == (19, "0640"),
    "45-fs-move.sh": nothing_kept,
    "46-fs-checksum.sh": lambda answers: [one["name"] for one in answers[0]["entries"]] == ["greeting"],
    "46-fs-extract.sh": lambda answers: answers == [{"files": 1, "bytes": 19, "failed": []}],
    "46-fs-glob.sh": lambda answers: (
        [Path(entry["name"]).name for entry in answers[0]["entries"]] == ["copy", "greeting"]
    ),
    "46-fs-list.sh": lambda answers: [entry["name"] for entry in answers[0]["entries"]] == ["copy", "greeting"],
    "46-fs-search.sh": lambda answers: [one["text"] for one in answers[0]["lines"]] == ["Hello from connmgr"] * 2,
    "47-fs-script.sh": lambda answers: answers[1]["stdout"] == f"I am {answers[0]['path']}",
    "48-undo-query.sh": lambda answers: [one["by"] for one in answers[0]["changes"]] == ["editor"],
    "49-undo-restore.sh": lambda answers: [one["state"] for one in answers[0]["results"]] == ["restored"],
    "48-fs-remove.sh": nothing_kept,
    "50-secret-encrypt.sh": keys("encrypted"),
    "51-secret-sudo.sh": keys("connection"),
    "51-secret-decrypt.sh": lambda answers: answers == [{"decrypted": "correct horse battery staple"}],
    "53-terminal-open.sh": lambda answers: answers[0]["state"] == "running",
    "54-terminal-screen.sh": lambda answers: answers[0]["lines"][0] == "Name?",
    "52-multiplex-open.sh": lambda answers: [one["name"] for one in answers[0]["sockets"]] == [["renamed at once"]],
    "52-multiplex-query.sh": lambda answers: [one["name"] for one in answers[0]["sockets"]] == [["renamed at once"]],
    "53-multiplex-forward.sh": lambda answers: answers[0]["host"] == "127.0.0.1" and answers[0]["port"] > 0,
    "53-multiplex-renew.sh": nothing,
    "54-multiplex-cancel.sh": nothing,
    "53-multiplex-config.sh": lambda answers: answers[0]["unnamed"] == [["renamed at once"]],
    "55-multiplex-close.sh": lambda answers: answers == [{"closed": 1}],
    "56-multiplex-keep.sh": lambda answers: answers[0]["file"].endswith("/ssh_config"),
    "57-multiplex-forget.sh": lambda answers: answers[0]["file"].endswith("/ssh_config"),
    "55-terminal-input.sh": lambda answers: answers[0]["lines"] == ["Name? Ada", "Hello, Ada", "", ""],
    "56-terminal-output.sh": lambda answers: answers[0]["data"] == "Name? Ada\r\nHello, Ada\r\n",
    "57-terminal-resize.sh": nothing,
    "57-terminal-ticket.sh": keys("ticket"),
    "59-terminal-close.sh": nothing,
    "59-terminal-query.sh": lambda answers: [one["state"] for one in answers[0]["terminals"]] == ["closed"],
    "77-inventory-add.sh": lambda answers: answers[0]["added"] == ["lab1", "lab2"],
    "78-inventory-query.sh": lambda answers: answers[0]["inventories"][0]["hosts"] == 2,
    "78-inventory-renew.sh": lambda answers: (answers[0]["hosts"], answers[0]["changed"]) == (2, []),
    "79-inventory-remove.sh": nothing,
    "50-schedule-add.sh": keys("schedule", "next"),
    "51-schedule-next.sh": lambda answers: len(answers[0]["times"]) == 3,
    "51-schedule-query.sh": lambda answers: [one["name"] for one in answers[0]["schedules"]] == ["nightly"],
    "52-schedule-update.sh": lambda answers: answers[0]["cron"] == "0 3 * * 1-5",
    "53-schedule-pause.sh": nothing,
    "54-schedule-trigger.sh": keys("run"),
    "55-schedule-resume.sh": nothing,
    "56-schedule-remove.sh": nothing,
    "70-ca-init.sh": keys("name", "authorities"),
    "71-ca-query.sh": lambda answers: [one["type"] for one in answers[0]["signers"]] == ["ca"],
    "72-ca-limit.sh": lambda answers: answers[0]["limits"][0]["principals"] == ["deploy", "backup"],
    "73-ca-rotate.sh": lambda answers: [len(one["lines"]) for one in answers] == [2, 1],
    "74-ca-revoke.sh": keys("revoked"),
    "75-ca-host.sh": keys("certificate", "serial", "expires"),
    "75-ca-trust.sh": lambda answers: answers[0]["lines"][0].endswith(" connmgr-team"),
    "76-ca-remove.sh": nothing,
    "60-vault-user-add.sh": nothing,
    "61-vault-unlock.sh": lambda answers: answers == [{"recoveries": []}],
    "62-vault-recovery-create.sh": lambda answers: [len(one.split()) for one in answers[0]["shares"]] == [20] * 3,
    "63-vault-recovery-query.sh": lambda answers: [one["used"] for one in answers[0]["recoveries"]] == [None],
    "64-vault-recovery-rotate.sh": keys("recovery", "user", "shares", "threshold"),
    "64-vault-recovery-use.sh": keys("recovery", "user"),
    "65-vault-recovery-revoke.sh": lambda answers: len(answers[0]["recoveries"]) == 1,
    "66-audit-query.sh": lambda answers: [one["action"] for one in answers[0]["entries"]] == ["shell.exec"] * 2,
    "67-audit-record.sh": lambda answers: [one["exitCode"] for one in answers[0]["steps"]][:1] == [0],
    "67-audit-verify.sh": lambda answers: answers[0]["sound"],
    "68-audit-forget.sh": lambda answers: answers[0]["code"] == "unknown_audit_log",
    "62-vault-status.sh": lambda answers: answers[0]["user"] == "example",
    "63-vault-user-passphrase.sh": nothing,
    "64-vault-lock.sh": nothing,
    "65-vault-user-remove.sh": keys("connections", "resealed", "heir", "lost"),
    "66-approval-query.sh": lambda answers: [one["state"] for one in answers[0]["approvals"]] == ["pending"],
    "67-approval-decide.sh": lambda answers: [answers[0]["state"], answers[1]["stdout"]] == ["once", "approved"],
    "68-command-save.sh": lambda answers: answers[1]["stdout"] == "Hello, Ada",
    "69-command-query.sh": lambda answers: [one["name"] for one in answers[0]["commands"]] == ["greet"],
    "69-command-remove.sh": nothing,
    "66-token-create.sh": lambda answers: [answers[0]["exitCode"], answers[1]["code"]] == [0, "policy_denied"],
    "96-web-ticket.sh": lambda answers: answers[0]["valid"] == 60,
    "97-web-login.sh": lambda answers: answers[0]["idle"] == 3600,
    "98-web-confirm.sh": lambda answers: answers == [{"valid": 900}],
    "98-web-logout.sh": nothing,
    "67-token-check.sh": lambda answers: answers == [{"effect": "allow", "rule": 1, "argv": ["uptime"]}],
    "67-token-info.sh": lambda answers: answers[0]["commands"] == "argv" and "shell.exec" in answers[0]["actions"],
    "68-token-lend.sh": lambda answers: answers[0]["lent"] is None,
    "68-token-renew.sh": lambda answers: answers[0]["id"] in [one["id"] for one in answers[1]["tokens"]],
    "69-token-revoke.sh": lambda answers: answers[0]["code"] == "token_revoked",
    "70-shell-stop.sh": nothing,
    "71-connection-remove.sh": nothing,
    "72-category-remove.sh": nothing,
    "73-event-ticket.sh": keys("ticket"),
    "74-event-stream.sh": lambda answers: [one["change"] for one in answers] == ["begun", "added", "removed"],
    "99-daemon-stop.sh": nothing,
}


def test_session_py_prints_its_results(examples: Examples) -> None:
    examples.printed("01-handshake.sh")
    done = examples.run(sys.executable, str(EXAMPLES / "session.py"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("running on ")
    assert lines[1:] == ["exit code 3 and 'hello from /'", "refused: command_timeout"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_prints_its_answer(examples: Examples, script: str) -> None:
    printed = examples.printed(script)
    if script in TEXTS:
        assert printed == TEXTS[script]
    else:
        assert EXPECTED[script](documents(printed)), printed


def test_every_endpoint_has_an_example(daemon: Daemon) -> None:
    import urllib.request

    with urllib.request.urlopen(f"{daemon.url}/openapi.json", timeout=30) as response:
        paths = {path.partition("{")[0] for path in json.load(response)["paths"]}
    sent = {
        script: re.findall(r"(?:post |\$url|GET )(/[a-z/]+)", (EXAMPLES / script).read_text()) for script in SCRIPTS
    }
    assert {path for found in sent.values() for path in found} == paths
    for script, found in sent.items():
        assert script[3:].removesuffix(".sh") in {path.strip("/").replace("/", "-") for path in found}


def test_files_of_the_examples_are_private(examples: Examples) -> None:
    examples.printed("01-handshake.sh")
    state = examples.daemon.home / "run" / "connmgr-examples"
    for path in (state, *state.iterdir()):
        assert path.stat().st_mode & 0o077 == 0
