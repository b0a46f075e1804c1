"""A stranger's plugin in an environment of its own: its own tests, and its type used through a running daemon."""

from __future__ import annotations

import doctest
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError
from tests.components import program
from tests.daemon import Daemon, clean_environment

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "connmgr-chroot"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*argv: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment into which connmgr and the example were installed, each built from its sources."""
    base = tmp_path_factory.getbasetemp()
    # All test processes of a run share it.
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "chroot-example"
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            directory.mkdir()
            install(directory)
            (directory / "complete").touch()
    return directory / "environment" / "bin"


def install(directory: Path) -> None:
    """Make ``directory``/environment; connmgr's libraries in it are those of the environment that runs the tests."""
    sources = directory / "connmgr"
    sources.mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    (sources / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "connmgr.1", sources / "docs")
    for name in ("connmgr", "plugins"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(EXAMPLE, directory / "example", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(directory / "environment")
    python = directory / "environment" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=directory).strip())
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "--disable-pip-version-check",
        "install",
        "--no-compile",
    ]
    # Once, and not for each of the two builds.
    run(*pip, "--ignore-installed", "setuptools >= 70.1", cwd=directory)
    run(*pip, "--no-deps", "--no-build-isolation", sources, directory / "example", cwd=directory)


@pytest.fixture(scope="module")
def jail() -> Iterator[Path]:
    """A directory that can be a root: busybox under its many names, the libraries that it needs, and one file."""
    with tempfile.TemporaryDirectory(prefix="connmgr-jail-") as name:
        root = Path(name)
        busybox = program("busybox")
        assert busybox
        for source in [busybox, *libraries(busybox)]:
            target = root / source.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        for directory in ("bin", "dev", "etc", "tmp"):
            (root / directory).mkdir(exist_ok=True)
        null = Path(os.devnull).stat()
        os.mknod(root / "dev" / "null", null.st_mode, null.st_rdev)
        (root / "dev" / "null").chmod(0o666)
        for applet in ("sh", "cat", "ls", "id"):
            (root / "bin" / applet).symlink_to(busybox)
        (root / "etc" / "os-release").write_text('PRETTY_NAME="A small jail"\n')
        (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\ninmate:x:4242:4242::/:/bin/sh\n")
        (root / "only-here").write_text("seen from within\n")
        root.chmod(0o755)
        yield root


def libraries(executable: str) -> list[str]:
    """Return the shared libraries that an executable loads; none where it is a static one."""
    listed = subprocess.run(["ldd", executable], capture_output=True, text=True, timeout=20, check=False).stdout
    return [word for word in listed.split() if word.startswith("/") and Path(word).exists()]


@pytest.fixture(scope="module")
def chroot_daemon(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of that environment."""
    running = Daemon(tmp_path_factory.mktemp("chroot-daemon"), program=[str(programs / "connmgr")])
    yield running
    running.stop()


def add(daemon: Daemon, name: str, **data: Any) -> str:
    answer: Any = daemon.client.post("/connection/add", name=name, data=data, validate=False)
    return str(answer["connection"])


def answer_of(daemon: Daemon, connection: str, command: str) -> dict[str, Any]:
    answer: Any = daemon.client.post("/shell/exec", connection=connection, command=command)
    return dict(answer)


def test_the_example_is_as_small_as_it_says() -> None:
    assert len((EXAMPLE / "connmgr_chroot.py").read_text().splitlines()) < 80


@pytest.mark.needs("root")
def test_the_example_passes_its_own_tests(programs: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    printed = run(programs / "python", *argv, cwd=tmp_path, environment=environment)
    assert " passed" in printed
    assert "skipped" not in printed


def test_the_environment_lists_its_type(programs: Path, tmp_path: Path) -> None:
    listed = run(programs / "connmgr", "plugins", cwd=tmp_path, environment=clean_environment(tmp_path))
    assert [line.split()[:3] for line in listed.splitlines() if line.startswith("chroot ")] == [
        ["chroot", "connmgr-chroot", "1.0"]
    ]


@pytest.mark.needs("root", "devices", "busybox")
def test_a_shell_in_another_root_over_a_local_connection(chroot_daemon: Daemon, jail: Path) -> None:
    host = add(chroot_daemon, "host", type="local", shell="/bin/sh")
    connection = add(chroot_daemon, "jail", type="chroot", host=host, directory=str(jail))
    started: Any = chroot_daemon.client.post("/shell/start", connection=connection)
    assert (started["osName"], started["ttyState"]) == ("A small jail", "none")
    assert answer_of(chroot_daemon, connection, "cd /; ls") == {
        "exitCode": 0,
        "stdout": "\n".join(sorted(path.name for path in jail.iterdir())),
        "stderr": "",
    }
    assert answer_of(chroot_daemon, connection, "cat only-here; exit 3")["exitCode"] == 3
    infos: Any = chroot_daemon.client.post("/connection/info", connections=[connection])
    assert infos["infos"][0]["name"] == ["host", "jail"]


@pytest.mark.needs("root", "devices", "busybox")
def test_a_chroot_in_an_elevated_shell_as_another_user(chroot_daemon: Daemon, jail: Path) -> None:
    host = add(chroot_daemon, "host", type="local", shell="/bin/sh")
    elevated = add(chroot_daemon, "root", type="shellEnvironment", host=host, elevated=True, method="su")
    connection = add(chroot_daemon, "inmate", type="chroot", host=elevated, directory=str(jail), user="inmate")
    chroot_daemon.client.post("/shell/start", connection=connection)
    assert answer_of(chroot_daemon, connection, "id -un; cat /only-here")["stdout"] == "inmate\nseen from within"


@pytest.mark.needs("root")
def test_a_directory_that_is_not_there_is_named(chroot_daemon: Daemon) -> None:
    data = {"type": "chroot", "host": add(chroot_daemon, "host", type="local"), "directory": "/no/such/jail"}
    with pytest.raises(ClientError) as refusal:
        chroot_daemon.client.post("/connection/add", name="nowhere", data=data, validate=True)
    assert (refusal.value.code, refusal.value.status) == ("shell_start_failed", 400)
    assert "No shell in /no/such/jail: chroot: cannot change root directory" in refusal.value.message


@pytest.mark.needs("root", "devices", "busybox")
def test_the_session_of_the_guide_goes_as_it_is_written(
    chroot_daemon: Daemon, jail: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNMGR_PORT", chroot_daemon.url.rpartition(":")[2])
    monkeypatch.setenv("CONNMGR_AUTH_FILE", str(chroot_daemon.auth_file))
    guide = (ROOT / "docs" / "PLUGINS.md").read_text()
    [session] = re.findall(r"^```python\n(>>> .*?)^```$", guide, re.DOTALL | re.MULTILINE)
    # Python shows where a class is defined, the guide from where it is imported.
    session = session.replace("connmgr.client.ClientError", f"{ClientError.__module__}.ClientError")
    test = doctest.DocTestParser().get_doctest(session.replace("/srv/jail", str(jail)), {}, "PLUGINS.md", None, 0)
    assert len(test.examples) > 5
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
    test.globs["daemon"].close()
    assert not report, "".join(report)
