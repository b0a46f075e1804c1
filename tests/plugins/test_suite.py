"""The public suite reports each breach of the contract, and none for valid types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from connmgr.testing import ConnectionConformance, WrapperConformance
from connmgr.testing.conformance import SessionConformance
from tests.plugins.faulty_types import FAULTS

ROOT = Path(__file__).parents[2]
FILE = "tests/plugins/faulty_types.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


SOUND = ("Sound", "SoundWrapper")


def test_each_breach_is_noticed_by_its_test_and_sound_types_pass_all() -> None:
    selected = [f"{FILE}::Test{fault}::{test}" for fault, test in FAULTS.items()]
    selected += [f"{FILE}::Test{name}" for name in SOUND]
    # Most tests are to fail, so failures are described briefly.
    options = ["-rA", "-q", "--assert=plain", "--tb=short", "-p", "no:cacheprovider", "-p", "timeout"]
    # They wait rather than compute: each breach for what never comes.
    options += ["-p", "xdist", "-n", "3"]
    argv = [sys.executable, "-m", "pytest", *options, *selected]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    printed = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    ).stdout
    ended: dict[str, set[str]] = {}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) .*?::Test(\w+)::", printed, re.MULTILINE):
        ended.setdefault(name, set()).add(outcome)
    assert {name: ended.get(name) for name in SOUND} == {name: {"PASSED"} for name in SOUND}, printed
    assert [fault for fault in FAULTS if "FAILED" not in ended.get(fault, ())] == []


def test_every_test_of_the_suite_is_known_to_fail() -> None:
    # Except those that run the engine, which has its own tests.
    suites = (ConnectionConformance, WrapperConformance)
    tests = {name for suite in suites for name in dir(suite) if name.startswith("test_")}
    assert tests - set(dir(SessionConformance)) == set(FAULTS.values())
