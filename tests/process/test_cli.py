"""The command line as a process."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from connmgr import __version__
from connmgr.settings import options
from tests.cli.program import Done, run
from tests.daemon import clean_environment


def connmgr(home: Path, *words: str, **environment: str) -> Done:
    return run(*words, environment=clean_environment(home) | environment)


def test_the_version(tmp_path: Path) -> None:
    assert connmgr(tmp_path, "--version").output == f"connmgr {__version__}\n"


def test_help_shows_every_option_with_its_text(tmp_path: Path) -> None:
    shown = " ".join(connmgr(tmp_path, "serve", "--help").output.split())
    for option in options():
        assert f"--{option.name.replace('_', '-')}" in shown
        # click breaks lines at hyphens, too.
        assert option.metadata["help"].split(" [")[0].replace("- ", "-") in shown.replace("- ", "-")


def test_the_api_key_is_made_once_private_and_rotated(tmp_path: Path) -> None:
    first = connmgr(tmp_path, "api-key")
    assert (first.code, first.errors) == (0, "")
    file = tmp_path / "data/connmgr/api.key"
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert connmgr(tmp_path, "api-key").output == first.output
    rotated = connmgr(tmp_path, "api-key", "--rotate").output
    assert rotated != first.output
    assert connmgr(tmp_path, "api-key").output == rotated
    assert [path.name for path in file.parent.iterdir()] == ["api.key"]


def test_an_api_key_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    connmgr(tmp_path, "api-key")
    file = tmp_path / "data/connmgr/api.key"
    file.chmod(0o640)
    done = connmgr(tmp_path, "api-key")
    assert (done.code, done.output) == (1, "")
    assert f"chmod 600 {file}" in done.errors
    file.unlink()
    file.symlink_to("/etc/hostname")
    assert "symbolic link" in connmgr(tmp_path, "api-key").errors


def test_the_plugins_are_listed_for_people_and_programs(tmp_path: Path) -> None:
    table = connmgr(tmp_path, "plugins").output.splitlines()
    assert table[0].split() == ["TYPE", "DISTRIBUTION", "VERSION", "DESCRIPTION"]
    assert any(line.split()[:3] == ["local", "connmgr", __version__] for line in table)
    listed = json.loads(connmgr(tmp_path, "plugins", "--json").output)
    assert listed["problems"] == []
    assert {"local", "ssh"} <= {entry["type"] for entry in listed["types"]}


def test_a_broken_plugin_is_named_and_the_others_work(tmp_path: Path) -> None:
    distribution = tmp_path / "site" / "broken-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text("[connmgr]\nbroken = no_such_module\n")
    done = connmgr(tmp_path, "plugins", PYTHONPATH=str(distribution.parent))
    assert done.code == 0
    assert "local" in done.output
    assert done.errors.startswith("not used: broken of broken: ModuleNotFoundError")


def test_the_error_of_a_broken_plugin_cannot_control_the_terminal(tmp_path: Path) -> None:
    distribution = tmp_path / "site" / "rude-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text("[connmgr]\nrude = rude\n")
    (distribution.parent / "rude.py").write_text("raise ImportError('two\\nlines\\x1b[31m')\n")
    said = connmgr(tmp_path, "plugins", PYTHONPATH=str(distribution.parent)).errors
    assert said.splitlines() == [r"not used: rude of rude: ImportError: two\nlines\x1b[31m"]


@pytest.mark.parametrize("words", [("serve", "--port", "0"), ("doctor",), ("vault", "restore", "backup")])
def test_a_database_of_another_kind_is_refused_and_not_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "backup").touch()
    done = connmgr(tmp_path, *words, "--database-url", "sqlite:///x")
    assert done.code == 1
    assert "Bad value of option --database-url (begins with postgresql)." in done.output + done.errors
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("words", "code"), [(("nonsense",), 2), (("serve", "--nonsense"), 2), (("serve", "--port", "x"), 1)]
)
def test_a_usage_error_is_one_message_on_stderr(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    done = connmgr(tmp_path, *words)
    assert (done.code, done.output) == (code, "")
    assert "Error: " in done.errors
    assert "Traceback" not in done.errors
