"""Installs the clients of others that tests run, from PyPI and npm, before any test needs them."""

from __future__ import annotations

import sys

from tests.mcp import official
from tests.public_clients import installed


def main() -> None:
    """Install them; a client that cannot be installed now is tried again by its tests, which are skipped without it."""
    try:
        for version in installed.VERSIONS:
            installed.search_path(version)
        official.installed()
    except (installed.InstallationError, official.InstallationError) as error:
        print(f"Not installed, so that their tests will be skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
