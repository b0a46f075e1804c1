"""The example plugin in a separate environment: its own tests, and its type through a running daemon."""

from __future__ import annotations

import doctest
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError
from tests.daemon import Daemon, clean_environment

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "connmgr-netns"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*argv: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with connmgr and the example, both built from source."""
    base = tmp_path_factory.getbasetemp()
    # All test processes of a run share it.
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "netns-example"
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
    (sources / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "page_libraries.py", sources / "scripts")
    for name in ("connmgr", "plugins"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
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
def namespace() -> Iterator[str]:
    """The file of a network namespace with only a loopback interface."""
    argv = ["unshare", "--net", "/bin/sh", "-c", "echo made; exec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"made\n"
        yield f"/proc/{holder.pid}/ns/net"
        # The process ends with its input.


@pytest.fixture(scope="module")
def netns_daemon(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of that environment."""
    running = Daemon(tmp_path_factory.mktemp("netns-daemon"), program=[str(programs / "connmgr")])
    yield running
    running.stop()


def add(daemon: Daemon, name: str, **data: Any) -> str:
    answer: Any = daemon.client.post("/connection/add", name=name, data=data, validate=False)
    return str(answer["connection"])


def answer_of(daemon: Daemon, connection: str, command: str) -> dict[str, Any]:
    answer: Any = daemon.client.post("/shell/exec", connection=connection, command=command)
    return dict(answer)


def test_the_example_is_as_small_as_it_says() -> None:
    assert len((EXAMPLE / "connmgr_netns.py").read_text().splitlines()) < 80


@pytest.mark.needs("machine")
def test_the_example_passes_its_own_tests(programs: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    # Root of a user namespace may enter only network namespaces of its own, and the tests enter theirs.
    printed = run("unshare", "--net", *argv, cwd=tmp_path, environment=environment)
    assert " passed" in printed
    assert "skipped" not in printed


def test_the_environment_lists_its_type(programs: Path, tmp_path: Path) -> None:
    listed = run(programs / "connmgr", "plugins", cwd=tmp_path, environment=clean_environment(tmp_path))
    assert [line.split()[:3] for line in listed.splitlines() if line.startswith("netns ")] == [
        ["netns", "connmgr-netns", "1.0"]
    ]


@pytest.mark.needs("machine")
def test_a_shell_in_a_namespace_over_a_local_connection(netns_daemon: Daemon, namespace: str) -> None:
    host = add(netns_daemon, "host", type="local", shell="/bin/sh")
    connection = add(netns_daemon, "blue", type="netns", host=host, namespace=namespace)
    started: Any = netns_daemon.client.post("/shell/start", connection=connection)
    assert started["ttyState"] == "none"
    assert answer_of(netns_daemon, connection, "readlink /proc/self/ns/net; exit 3") == {
        "exitCode": 3,
        "stdout": str(Path(namespace).readlink()),
        "stderr": "",
    }
    infos: Any = netns_daemon.client.post("/connection/info", connections=[connection])
    assert infos["infos"][0]["name"] == ["host", "blue"]


@pytest.mark.needs("machine")
def test_a_namespace_in_an_elevated_shell(netns_daemon: Daemon, namespace: str) -> None:
    host = add(netns_daemon, "host", type="local", shell="/bin/sh")
    elevated = add(netns_daemon, "root", type="shellEnvironment", host=host, elevated=True, method="su")
    connection = add(netns_daemon, "blue", type="netns", host=elevated, namespace=namespace)
    netns_daemon.client.post("/shell/start", connection=connection)
    inside = answer_of(netns_daemon, connection, "readlink /proc/self/ns/net")["stdout"]
    assert inside == str(Path(namespace).readlink())


@pytest.mark.needs("root")
def test_a_namespace_that_is_not_there_is_named(netns_daemon: Daemon) -> None:
    data = {"type": "netns", "host": add(netns_daemon, "host", type="local"), "namespace": "/no/such/one"}
    with pytest.raises(ClientError) as refusal:
        netns_daemon.client.post("/connection/add", name="nowhere", data=data, validate=True)
    assert (refusal.value.code, refusal.value.status) == ("shell_start_failed", 400)
    assert "No shell in /no/such/one: nsenter: cannot open /no/such/one" in refusal.value.message


@pytest.mark.needs("machine")
def test_the_session_of_the_guide_goes_as_it_is_written(
    netns_daemon: Daemon, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNMGR_PORT", netns_daemon.url.rpartition(":")[2])
    monkeypatch.setenv("CONNMGR_AUTH_FILE", str(netns_daemon.auth_file))
    guide = (ROOT / "docs" / "PLUGINS.md").read_text()
    [session] = re.findall(r"^```python\n(>>> .*?)^```$", guide, re.DOTALL | re.MULTILINE)
    # Python shows where a class is defined, the guide from where it is imported.
    session = session.replace("connmgr.client.ClientError", f"{ClientError.__module__}.ClientError")
    test = doctest.DocTestParser().get_doctest(session.replace("/run/netns/blue", namespace), {}, "PLUGINS.md", None, 0)
    assert len(test.examples) > 5
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
    test.globs["daemon"].close()
    assert not report, "".join(report)
