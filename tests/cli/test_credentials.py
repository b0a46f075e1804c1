"""Credentials that are named: exactly that one is used or none, by the command line and by the examples."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from tests.cli.program import CommandLine, Done
from tests.daemon import Daemon

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t\n", "is empty"),
    "several lines": (b"cmgr_one\ncmgr_two\n", "several lines"),
    "binary": (b"\xff\xfe\x00\x01", "not text"),
    "control characters": (b"cmgr_\x00\x07", "printable"),
}
"""The contents of files that are no credential, and what is said about them."""


@pytest.fixture
def token(connmgr: CommandLine, tmp_path: Path) -> Path:
    """A token that may run one program."""
    file = tmp_path / "ci.token"
    connmgr(*["token", "create", "--for", "ci", "--expires", "1h", "--may"], "argv:/bin/echo *", "--output", str(file))
    return file


@pytest.fixture
def key(connmgr: CommandLine, tmp_path: Path) -> Path:
    """The API key."""
    file = tmp_path / "api.key"
    connmgr("api-key", "--output", str(file))
    return file


def runs_anything(connmgr: CommandLine, *options: str, code: int, **variables: str) -> Done:
    """Run a command that only the owner may run."""
    done = connmgr("exec", "local", *options, "--", "id; : $HOME", environment=variables, code=code)
    assert code == 0 or "uid=" not in done.output
    return done


@pytest.mark.parametrize("option", ["--token-file", "--api-key-file"])
@pytest.mark.parametrize("content", FILES)
def test_a_malformed_credential_file_does_not_fall_back_to_the_owner(
    connmgr: CommandLine, tmp_path: Path, option: str, content: str
) -> None:
    file = tmp_path / "t"
    file.write_bytes(FILES[content][0])
    errors = runs_anything(connmgr, option, str(file), code=125).errors
    assert str(file) in errors
    assert FILES[content][1] in errors
    variable = {"--token-file": "CONNMGR_TOKEN_FILE", "--api-key-file": "CONNMGR_API_KEY_FILE"}[option]
    errors = runs_anything(connmgr, code=125, **{variable: str(file)}).errors
    assert str(file) in errors


def test_a_file_that_cannot_be_read_is_named(connmgr: CommandLine, tmp_path: Path) -> None:
    missing, directory = str(tmp_path / "missing"), str(tmp_path)
    for path in (missing, directory):
        assert path in runs_anything(connmgr, "--token-file", path, code=125).errors
        assert path in runs_anything(connmgr, code=125, CONNMGR_TOKEN_FILE=path).errors


@pytest.mark.parametrize("value", ["", " ", "\n"])
@pytest.mark.parametrize("variable", ["CONNMGR_TOKEN", "CONNMGR_TOKEN_FILE", "CONNMGR_API_KEY_FILE"])
def test_an_empty_variable_is_not_the_owner(connmgr: CommandLine, variable: str, value: str) -> None:
    errors = runs_anything(connmgr, code=125, **{variable: value}).errors
    assert f"{variable} is empty" in errors


def test_an_auth_file_without_a_name_is_said(connmgr: CommandLine) -> None:
    for words in (["ls"], ["exec", "local", "--", "true"]):
        done = connmgr(*words, environment={"CONNMGR_AUTH_FILE": "/"}, code=125 if words[0] == "exec" else 4)
        assert "CONNMGR_AUTH_FILE is /, which is a directory" in done.errors


@pytest.mark.parametrize("variable", ["CONNMGR_AUTH_FILE", "CONNMGR_HOST", "CONNMGR_PORT", "CONNMGR_CONFIG"])
def test_an_empty_variable_does_not_mean_the_default_daemon(connmgr: CommandLine, variable: str) -> None:
    assert (
        f"{variable} is empty"
        in connmgr("ls", environment={variable: ""}, code=1 if variable != "CONNMGR_AUTH_FILE" else 4).errors
    )


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("CONNMGR_TOKENFILE", "CONNMGR_TOKEN_FILE"),
        ("CONNMGR_TOKENS", "CONNMGR_TOKEN"),
        ("connmgr_token", "CONNMGR_TOKEN"),
        ("CONNMGR_APIKEY_FILE", "CONNMGR_API_KEY_FILE"),
        ("CONNMGR_AUTHFILE", "CONNMGR_AUTH_FILE"),
    ],
)
@pytest.mark.parametrize("command", [("ls",), ("exec", "local", "true")])
def test_a_misspelt_variable_is_not_the_owner(
    connmgr: CommandLine, variable: str, meant: str, command: tuple[str, ...]
) -> None:
    code = 4 if command == ("ls",) else 125
    done = connmgr(*command, environment={variable: "/nowhere"}, code=code)
    assert done.errors == f"Error: The environment variable {variable} is unknown. Is {meant} meant?\n"


def test_an_empty_url_does_not_mean_the_default_daemon(connmgr: CommandLine) -> None:
    assert "Not the URL of a daemon" in connmgr("--url", "", "ls", code=2).errors


def test_an_api_key_is_not_taken_for_a_token(connmgr: CommandLine, key: Path) -> None:
    assert "tokens begin with cmgr_" in runs_anything(connmgr, "--token-file", str(key), code=125).errors
    assert "tokens begin with cmgr_" in runs_anything(connmgr, code=125, CONNMGR_TOKEN=key.read_text()).errors
    assert "tokens begin with cmgr_" in connmgr("mcp", "--token-file", str(key), code=4).errors


def test_an_option_outranks_variables_and_two_of_a_kind_are_refused(
    connmgr: CommandLine, token: Path, key: Path, tmp_path: Path
) -> None:
    text = token.read_text().strip()
    assert runs_anything(connmgr, "--api-key-file", str(key), code=0, CONNMGR_TOKEN=text).output.startswith("uid=")
    assert (
        "lacks the scope"
        in runs_anything(connmgr, "--token-file", str(token), code=125, CONNMGR_API_KEY_FILE=str(key)).errors
    )
    both = runs_anything(connmgr, "--token-file", str(token), "--api-key-file", str(key), code=125)
    assert "two credentials" in both.errors
    several = runs_anything(connmgr, code=125, CONNMGR_TOKEN=text, CONNMGR_API_KEY_FILE=str(key))
    assert "CONNMGR_TOKEN and CONNMGR_API_KEY_FILE" in several.errors
    # The auth file only says where the daemon is.
    auth_file = {"CONNMGR_AUTH_FILE": str(connmgr.daemon.auth_file)}
    assert "lacks the scope" in runs_anything(connmgr, code=125, CONNMGR_TOKEN=text, **auth_file).errors


def test_a_token_may_come_from_a_pipe(connmgr: CommandLine, token: Path, tmp_path: Path) -> None:
    script = f"connmgr exec local --token-file <(cat {token}) --argv -- /bin/echo piped"
    done = subprocess.run(
        ["bash", "-c", script], env=connmgr.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "piped\n"), done.stderr


def test_a_wrong_key_does_not_continue_the_owners_session(own_connmgr: CommandLine, tmp_path: Path) -> None:
    passphrase = "four words or more"
    own_connmgr("vault", "user", "add", "alice", stdin=f"{passphrase}\n")
    own_connmgr("vault", "unlock", "alice", stdin=f"{passphrase}\n")
    assert own_connmgr("vault", "status", "--json").json["user"] == "alice"
    wrong = tmp_path / "wrong"
    wrong.write_text("A" * 43)
    errors = runs_anything(own_connmgr, "--api-key-file", str(wrong), code=125).errors
    assert "Unknown API key" in errors
    key = tmp_path / "key"
    own_connmgr("api-key", "--output", str(key))
    assert own_connmgr("--api-key-file", str(key), "vault", "status", "--json").json["user"] is None
    # Each credential keeps what it has unlocked.
    own_connmgr("--api-key-file", str(key), "vault", "unlock", "alice", stdin=f"{passphrase}\n")
    assert own_connmgr("--api-key-file", str(key), "vault", "status", "--json").json["user"] == "alice"
    own_connmgr("vault", "lock")
    assert own_connmgr("vault", "status", "--json").json["user"] is None
    assert own_connmgr("--api-key-file", str(key), "vault", "status", "--json").json["user"] == "alice"


@pytest.mark.parametrize(
    "words",
    [
        ["api-key"],
        ["api-key", "--rotate"],
        ["vault", "backup", "backup.db"],
        ["vault", "restore", "/etc/hostname"],
        ["vault", "rotate-key"],
        ["audit", "verify"],
        ["doctor"],
        ["serve", "--port", "0"],
        ["service", "install", "--dry-run"],
        ["service", "status"],
        ["service", "uninstall"],
    ],
    ids=" ".join,
)
def test_commands_on_the_owners_files_refuse_a_credential(connmgr: CommandLine, token: Path, words: list[str]) -> None:
    before = (connmgr.daemon.data_dir / "api.key").exists()
    done = connmgr(*words, "--token-file", str(token), code=4)
    assert done.output == ""
    assert "this user's own files" in done.errors
    assert "--token-file" in done.errors
    done = connmgr(*words, environment={"CONNMGR_TOKEN": token.read_text()}, code=4)
    assert "CONNMGR_TOKEN" in done.errors
    assert (connmgr.daemon.data_dir / "api.key").exists() == before


class TestOutput:
    def create(self, connmgr: CommandLine, *options: str, code: int = 0) -> Done:
        return connmgr("token", "create", "--for", "ci", "--expires", "1h", *options, code=code)

    def test_a_file_is_private_and_stdout_empty(self, connmgr: CommandLine, tmp_path: Path) -> None:
        file = tmp_path / "t"
        done = self.create(connmgr, "--scope", "connection.read", "--output", str(file))
        assert done.output == ""
        assert str(file) in done.errors
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert connmgr("ls", "--token-file", str(file)).output
        assert [one.name for one in tmp_path.iterdir()] == ["t"]

    def test_a_refusal_leaves_no_file(self, connmgr: CommandLine, token: Path, tmp_path: Path) -> None:
        file = tmp_path / "t"
        self.create(connmgr, "--output", str(file), "--token-file", str(token), code=4)
        self.create(connmgr, "--scope", "root", "--output", str(file), code=1)
        assert [one.name for one in tmp_path.iterdir()] == [token.name]

    def test_a_file_that_exists_is_kept_and_no_token_made(self, connmgr: CommandLine, tmp_path: Path) -> None:
        file = tmp_path / "t"
        file.write_text("mine")
        before = len(connmgr("token", "ls", "--json").json)
        assert "--force" in self.create(connmgr, "--output", str(file), code=1).errors
        (tmp_path / "link").symlink_to(file)
        for name in ("link", "missing/t", "."):
            self.create(connmgr, "--output", str(tmp_path / name), "--force", code=1)
        self.create(connmgr, "--output", str(tmp_path / "other"), "--json", code=2)
        assert file.read_text() == "mine"
        assert len(connmgr("token", "ls", "--json").json) == before
        self.create(connmgr, "--output", str(file), "--force")
        assert file.read_text().startswith("cmgr_")

    def test_the_api_key_goes_into_a_file_too(self, connmgr: CommandLine, tmp_path: Path) -> None:
        file = tmp_path / "k"
        assert connmgr("api-key", "--output", str(file)).output == ""
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert runs_anything(connmgr, "--api-key-file", str(file), code=0).output.startswith("uid=")
        assert "--force" in connmgr("api-key", "--rotate", "--output", str(file), code=1).errors
        assert runs_anything(connmgr, "--api-key-file", str(file), code=0).output.startswith("uid=")


class TestMcp:
    def test_an_empty_token_serves_nobody(self, connmgr: CommandLine, tmp_path: Path) -> None:
        empty = tmp_path / "t"
        empty.write_text("")
        for words in (["mcp"], ["mcp", "--http", "--port", "0"], ["mcp", "--owner"]):
            assert str(empty) in connmgr(*words, "--token-file", str(empty), code=4).errors
            assert "is empty" in connmgr(*words, environment={"CONNMGR_TOKEN": ""}, code=4).errors

    def test_the_owner_with_a_token_contradicts_itself(self, connmgr: CommandLine, token: Path) -> None:
        assert "contradict" in connmgr("mcp", "--owner", "--token-file", str(token), code=2).errors

    def test_an_api_key_is_for_no_agent(self, connmgr: CommandLine, key: Path) -> None:
        assert "no agent may have it" in connmgr("mcp", "--http", "--api-key-file", str(key), code=2).errors
        assert "No token is given for the agent" in connmgr("mcp", "--api-key-file", str(key), code=1).errors

    def test_an_empty_token_decides_nothing(self, connmgr: CommandLine, token: Path, tmp_path: Path) -> None:
        empty = tmp_path / "approver"
        empty.write_text("\n")
        words = ["mcp", "--token-file", str(token)]
        assert str(empty) in connmgr(*words, "--approver-token-file", str(empty), code=4).errors
        assert (
            "CONNMGR_APPROVER_TOKEN_FILE"
            in connmgr(*words, environment={"CONNMGR_APPROVER_TOKEN_FILE": ""}, code=4).errors
        )


class TestExamples:
    def shake_hands(self, daemon: Daemon, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**daemon.environment, "CONNMGR_PORT": daemon.url.rpartition(":")[2], **variables}
        command = [str(EXAMPLES / "01-handshake.sh")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def test_commands_use_the_named_credential(self, connmgr: CommandLine, token: Path, key: Path) -> None:
        daemon = connmgr.daemon
        for variables in (
            {},
            {"CONNMGR_TOKEN": token.read_text().strip()},
            {"CONNMGR_TOKEN_FILE": str(token)},
            {"CONNMGR_API_KEY_FILE": str(key)},
        ):
            done = self.shake_hands(daemon, **variables)
            assert done.returncode == 0, done.stderr
            assert "sessionToken" in done.stdout
            own = subprocess.run(
                ["sh", "-c", f". {EXAMPLES}/request.sh; echo {{}} | post /token/info"],
                env={**daemon.environment, "CONNMGR_PORT": daemon.url.rpartition(":")[2]},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
            is_owner = "TOKEN" not in "".join(variables)
            assert ('"scopes": ["*"]' in own or '"scopes":["*"]' in own) == is_owner, own

    def test_an_empty_one_is_refused(self, connmgr: CommandLine, token: Path, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.write_text("")
        for variables in (
            {"CONNMGR_TOKEN": ""},
            {"CONNMGR_TOKEN_FILE": ""},
            {"CONNMGR_TOKEN_FILE": str(empty)},
            {"CONNMGR_API_KEY_FILE": str(empty)},
            {"CONNMGR_AUTH_FILE": ""},
            {"CONNMGR_TOKEN": "x", "CONNMGR_TOKEN_FILE": str(token)},
        ):
            done = self.shake_hands(connmgr.daemon, **variables)
            assert done.returncode != 0, variables
            assert "sessionToken" not in done.stdout
