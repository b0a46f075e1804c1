"""The public clients of the XPipe API, each version in its own directory, since their import names are the same."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent.parent.parent / ".venv" / "public-clients" / f"python{sys.version_info[1]}"
LIBRARIES = ("aiohttp-requests>=0.2.4,<0.3", "packaging>=24.1,<25", "requests>=2.32.3,<3")
"""Requirements of every version, installed once."""

INSTALL_SECONDS = 400


@dataclass(frozen=True)
class Version:
    """A release of a public client; ``store`` says whether it speaks the second vocabulary."""

    distribution: str
    number: str
    auth_file: str
    store: bool = False

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.number}"

    def __str__(self) -> str:
        return f"{self.distribution}-{self.number}"


OLD_PLACE = "xpipe_auth"
NEW_PLACE = "xpipe/{user}/beacon-auth"
"""Path of the auth file below the directory in ``TEMP`` or ``TMPDIR``, or ``/tmp``."""

VERSIONS = (
    Version("xpipe-client", "0.1.26", OLD_PLACE),
    Version("xpipe-api", "0.1.29", OLD_PLACE),
    Version("xpipe-api", "0.1.33", NEW_PLACE),
    Version("xpipe-api", "0.1.34", NEW_PLACE, store=True),
    Version("xpipe-api", "0.1.35", NEW_PLACE, store=True),
)


class InstallationError(Exception):
    """pip could not install something; the message ends with what it printed."""


def search_path(version: Version) -> list[Path]:
    """Install ``version`` if it is missing, and return the directories to import it from.

    :raises InstallationError: pip failed.
    """
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return [
            _install(DIRECTORY / str(version), "--no-deps", version.requirement),
            _install(DIRECTORY / "libraries", *LIBRARIES),
        ]


def _install(target: Path, *arguments: str) -> Path:
    if target.exists():
        return target
    # Renamed only when it is complete.
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    command = [*pip, "--target", str(unfinished), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        raise InstallationError(
            f"pip exited with {done.returncode}, installing {' '.join(arguments)}: {done.stderr[-2000:]}"
        )
    return unfinished.rename(target)
