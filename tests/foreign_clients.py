"""Installs the programs of others that tests run, from PyPI and npm, before any test needs them."""

from __future__ import annotations

import sys
from functools import partial

from scripts import page_libraries
from tests.mcp import official
from tests.public_clients import installed


def main() -> None:
    """Install them; a client that cannot be installed now is tried again by its tests, which are skipped without it."""
    clients = (*(partial(installed.search_path, version) for version in installed.VERSIONS), official.installed)
    for install in (*clients, page_libraries.tools):
        try:
            install()
        except (installed.InstallationError, official.InstallationError, page_libraries.NpmError) as error:
            print(f"Not installed, so its tests will try again, and be skipped if that fails: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
