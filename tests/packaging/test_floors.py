"""Every requirement has a lowest version and an upper bound."""

from __future__ import annotations

import importlib.util
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("floors", ROOT / "scripts" / "floors.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_requirement_has_both_bounds() -> None:
    declared = requires("connmgr")
    assert declared
    for requirement in declared:
        if not requirement.startswith("connmgr["):
            assert ">=" in requirement, f"{requirement} has no lowest version"
            assert "<" in requirement.partition(";")[0], f"{requirement} has no upper bound"


def test_the_lowest_versions_are_those_of_setup_cfg(script: ModuleType) -> None:
    found = script.floors((ROOT / "setup.cfg").read_text())
    assert "marshmallow==4.0" in found
    assert 'tomli==2.0; python_version < "3.11"' in found
    assert not [line for line in found if line.startswith(("ruff", "asyncssh"))], "the tests need no such tool"


@pytest.mark.parametrize("requirement", ["flask", "flask >= 3.1", "flask < 4", "flask ~= 3.1"])
def test_a_requirement_without_bounds_is_refused(script: ModuleType, requirement: str) -> None:
    text = f"[options]\ninstall_requires =\n    {requirement}\n[options.extras_require]\n"
    with pytest.raises(ValueError, match="is not written as"):
        script.floors(text)
