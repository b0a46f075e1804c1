"""The guide for plugin authors: its files are those of the example, and its other code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from connmgr import errors, plugin, testing

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "connmgr-netns"
GUIDE = (ROOT / "docs" / "PLUGINS.md").read_text()
BLOCK = re.compile(
    r"(?:^`(?P<file>[\w./]+)`(?:, continued)?:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def files() -> dict[str, str]:
    """Return the files that the guide shows, by name, with their pieces joined."""
    found: dict[str, str] = {}
    for block in BLOCK.finditer(GUIDE):
        if block["file"]:
            found[block["file"]] = found.get(block["file"], "") + block["text"]
    return found


def test_every_piece_of_code_belongs_to_a_file_or_is_a_session() -> None:
    loose = [b["text"] for b in BLOCK.finditer(GUIDE) if b["language"] in ("python", "toml") and not b["file"]]
    assert [text for text in loose if not text.startswith(">>> ")] == []
    assert len(loose) == 1, "the session is run by the test of the example"


def test_the_guide_builds_the_example() -> None:
    ours = {path.relative_to(EXAMPLE).as_posix(): path.read_text() for path in EXAMPLE.rglob("*.*") if path.is_file()}
    code = {name: text for name, text in ours.items() if name.endswith((".py", ".toml"))}
    assert {name: text for name, text in files().items() if name in code} == code


def test_the_other_files_of_the_guide_pass_their_tests(tmp_path: Path) -> None:
    others = {name: text for name, text in files().items() if not (EXAMPLE / name).exists()}
    assert {"connmgr_small_sudo.py", "test_small_sudo.py"} <= set(others)
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    argv = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", tmp_path]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_the_guide_names_everything_public() -> None:
    public = {*plugin.__all__, *testing.__all__} - {"ValidationError", "Outcome", "WAIT_SECONDS", "InMemory", "Process"}
    assert [name for name in sorted(public) if not re.search(rf"\b{name}\b", GUIDE)] == []


def test_the_errors_that_the_guide_names_exist() -> None:
    table = GUIDE.partition("## Errors\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([A-Z]\w+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert len(named) > 8
    assert [name for name in named if not issubclass(getattr(errors, name, int), errors.OperationError)] == []
