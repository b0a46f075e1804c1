"""The caller's environment, without what would change the outcome of tests and measurements.

As a program: run a command in it, as in ``python3 -I scripts/clean.py make check``. The tests and the benchmarks clean
their own environment when they are imported, for those who start them in another way; but what an interpreter reads at
its start (``PYTHONPATH``, ``LC_ALL``) is read by then.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping

KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TERM", "CI"),
        # Which Python `python3` is, where pyenv decides.
        *("PYENV_ROOT", "PYENV_VERSION"),
        # The way to the package registries, not how packages are installed.
        *("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT"),
        *("PIP_CLIENT_CERT", "PIP_PROXY", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES", "PIP_CACHE_DIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("NPM_CONFIG_REGISTRY", "NPM_CONFIG_USERCONFIG", "NPM_CONFIG_CAFILE", "NPM_CONFIG_CACHE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    }
)
"""Variables that stay, in capitals or small letters. pytest's own (``PYTEST_ADDOPTS``) stay, too."""

LOOPBACK = "127.0.0.1,localhost,::1"
"""Where no proxy is asked: there the tests have their servers."""


def cleaned(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a command may see of ``environment``."""
    kept = {name: value for name, value in environment.items() if name.upper() in KEPT or name.startswith("PYTEST_")}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(filter(None, (kept.get(name), LOOPBACK)))
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        # A user of a container may have no entry, and then is who the caller says.
        named = {}
    else:
        named = {"HOME": kept.get("HOME", user.pw_dir), "USER": user.pw_name, "LOGNAME": user.pw_name}
    return {**kept, **named, "LANG": "C.UTF-8"}


def clean() -> None:
    """Clean this process's environment; new files are readable by all, as most systems have it."""
    environment = cleaned(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    os.umask(0o022)


if __name__ == "__main__":
    clean()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
