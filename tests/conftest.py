"""Fixtures of all tests: real daemons, and a report of the components that tests lack."""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import shutil
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# A shell starts what is in the background with SIGINT and SIGQUIT ignored, nohup what it runs with SIGHUP, and every
# program that a test starts would inherit that. A signal with a handler is not ignored behind an exec.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, lambda *_: None)

if TYPE_CHECKING:
    from connmgr.vault import Vault
    from tests.cleaning import CleanDaemon

# Before their import, so that failed assertions in shared modules show their values, too.
pytest.register_assert_rewrite(
    *(f"tests.{module.name}" for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
)

from scripts.clean import clean  # noqa: E402

clean()
tempfile.tempdir = None  # forgets the caller's TMPDIR

from tests.clock import Clock  # noqa: E402
from tests.components import may_be_skipped, missing  # noqa: E402
from tests.daemon import Daemon  # noqa: E402
from tests.derivation import REAL, lower_cost, real_cost  # noqa: E402
from tests.ports import reserved_port  # noqa: E402

StartDaemon = Callable[..., Daemon]
Recorded = Callable[[], list[dict[str, Any]]]
ROOT = Path(__file__).parent.parent
VAULT_KEY = b"k" * 32

lower_cost()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all tests that leave it unchanged; it must still run at the end, and stop cleanly."""
    running = Daemon(tmp_path_factory.mktemp("daemon"))
    yield running
    assert running.running, f"a test has brought the shared daemon down; stderr:\n{running.stderr()}"
    running.stop()


@pytest.fixture(scope="module", autouse=True)
def cost_of_passphrases(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests in :data:`REAL`, and what they fork, derive keys from passphrases at the real cost."""
    with real_cost() if request.path.relative_to(ROOT).as_posix().startswith(REAL) else nullcontext():
        yield


@pytest.fixture(scope="session")
def lender() -> Iterator[CleanDaemon]:
    """The owner of :func:`clean_daemon`."""
    from tests.cleaning import CleanDaemon

    # Not below tmp_path: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory:
        lender = CleanDaemon(Path(directory))
        yield lender
        lender.close()


@pytest.fixture
def clean_daemon(lender: CleanDaemon) -> Iterator[Daemon]:
    """A daemon with default settings and an empty vault and home, which are cleaned after the test."""
    with lender.lent() as daemon:
        yield daemon


@pytest.fixture
def recorded(clean_daemon: Daemon) -> Recorded:
    """A function that returns the audit log of :func:`clean_daemon` since the test began.

    The end of a process that an earlier test began may be recorded late; such entries, known by their request, are left
    out.
    """
    log = clean_daemon.data_dir / "audit.log"
    earlier = log.read_bytes()
    requests = {entry.get("id") for entry in map(json.loads, earlier.splitlines())}

    def entries() -> list[dict[str, Any]]:
        since = map(json.loads, log.read_bytes()[len(earlier) :].splitlines())
        return [entry for entry in since if "event" not in entry or entry.get("id") not in requests]

    return entries


@pytest.fixture
def daemon_program() -> tuple[str, ...]:
    """The ``program`` of :func:`start_daemon`; tests of the process itself override it."""
    return ()


@pytest.fixture
def start_daemon(daemon_program: tuple[str, ...]) -> Iterator[StartDaemon]:
    """A function that starts a daemon of the test's own: ``start_daemon(*options, home=..., environment=...)``.

    Without ``home`` each call has new directories; with that of an earlier daemon it continues on the same vault.
    Those still running at the end of the test must stop cleanly.
    """
    started: list[Daemon] = []
    # Not below tmp_path: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory:

        def start(*options: str, home: Path | None = None, environment: dict[str, str] | None = None) -> Daemon:
            own = home or Path(directory) / f"daemon{len(started)}"
            started.append(Daemon(own, *options, environment=environment, program=daemon_program))
            return started[-1]

        yield start
        for running in started:
            if running.running:
                running.stop()
            running.close()


@pytest.fixture
def own_daemon(start_daemon: StartDaemon) -> Daemon:
    """A daemon with default settings for one test alone."""
    return start_daemon()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe: a command that reads it waits until the test has written to it and closed it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.fixture
def clock() -> Clock:
    """A clock that the test moves."""
    return Clock()


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new vault in SQLite with the key :data:`VAULT_KEY`, to be copied: making one runs all migrations."""
    import tests.compiled  # noqa: F401 - before a database is opened
    from connmgr.secrets.vault_key import VaultKey
    from connmgr.vault import Vault, open_database

    path = tmp_path_factory.mktemp("new") / "vault.db"
    Vault(open_database(f"sqlite:///{path}"), VaultKey(VAULT_KEY)).close()
    return path


@pytest.fixture
def vault(new_file: Path, tmp_path: Path) -> Iterator[Vault]:
    """An empty vault in a database of SQLite."""
    from connmgr.secrets.vault_key import VaultKey
    from connmgr.vault import Vault, open_database

    shutil.copy(new_file, tmp_path / "vault.db")
    opened = Vault(open_database(f"sqlite:///{tmp_path}/vault.db"), VaultKey(VAULT_KEY))
    yield opened
    opened.close()


@pytest.fixture
def ssh_home(tmp_path: Path) -> Iterator[Path]:
    """A home directory for whose SSH configuration every host is this machine."""
    from tests.transcripts import home_with_hosts

    with home_with_hosts(tmp_path / "home") as home:
        yield home


@pytest.fixture(scope="session")
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which nothing listens."""
    with reserved_port() as number:
        yield number


@pytest.fixture
def port() -> Iterator[str]:
    """A port for a daemon that starts more than once: ``start_daemon("--port", port)``. Ask for it first."""
    with reserved_port() as number:
        yield str(number)


MOST_RERUNS = 5
"""Most tests that ``make test`` may try twice (``--reruns 1``). One in thousands meets a moment of the machine that it
does not expect; it is told by its name. More are a fault."""

BEYOND_A_TRY = 6
"""Exit status where trying again what failed would not make the run whole; pytest itself has 0 to 5."""

WORKERS_PER_CORE = 2
NAMED_SKIPS = 20
"""Most tests skipped for one reason that are named one by one without ``-v``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here and not in tests/fuzz: pytest knows no options of conftest.py files below its testpaths.
    parser.addoption("--fuzz-seconds", type=float, default=0, help="how long each fuzzer of tests/fuzz runs")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers of ``-n auto``: more than cores, since many tests wait for deadlines."""
    return WORKERS_PER_CORE * len(os.sched_getaffinity(0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without garbage collection, and freeze them: they live as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow tests first: a slow test that starts last keeps only one core busy."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        reason = missing(marker.args)
        if reason:
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc,assignment]
    if report.failed:
        fixtures = getattr(item, "funcargs", {})
        for name, value in fixtures.items():
            # After a failed teardown the daemon's files may be gone.
            if isinstance(value, Daemon) and value.home.exists():
                report.sections.append((f"stderr of {name}", value.stderr()[-20_000:]))
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if len(terminalreporter.stats.get("rerun", [])) > MOST_RERUNS:
        terminalreporter.line(f"More than {MOST_RERUNS} tests needed a second try: this is a failure.", red=True)
    skipped = _skipped(terminalreporter)
    if not skipped:
        return
    count = sum(len(tests) for tests in skipped.values())
    terminalreporter.section(f"{count} tests did not run", yellow=True)
    for reason, tests in sorted(skipped.items()):
        terminalreporter.line(f"{len(tests):4} {reason}")
        for line in _listed(tests, whole=terminalreporter.verbosity > 0):
            terminalreporter.line(f"       {line}")
    if os.environ.get("CI") and not all(map(may_be_skipped, skipped)):
        terminalreporter.line("CI runs everything: this is a failure.", red=True)


def _listed(tests: Sequence[str], *, whole: bool) -> list[str]:
    """Return the names of tests; those of many tests as their files, unless ``whole`` is given."""
    if whole or len(tests) <= NAMED_SKIPS:
        return sorted(tests)
    files = Counter(test.partition("::")[0] for test in tests)
    return [f"{count:4} in {file}" for file, count in sorted(files.items())]


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    lacking = reporter is not None and not all(map(may_be_skipped, _skipped(reporter)))
    unsteady = reporter is not None and len(reporter.stats.get("rerun", [])) > MOST_RERUNS
    if (os.environ.get("CI") and lacking) or unsteady:
        session.exitstatus = BEYOND_A_TRY


def _skipped(reporter: pytest.TerminalReporter) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        by_reason[reason.removeprefix("Skipped: ")].append(report.nodeid)
    return by_reason
