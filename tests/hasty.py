"""The program with other constants, for tests that would only wait: ``hasty.py MODULE.NAME=NUMBER … serve``."""

from __future__ import annotations

import importlib
import sys


def hasty(*constants: str) -> tuple[str, ...]:
    """Return the words that run the program with ``constants``, each like ``connmgr.engine.running.KILL_SECONDS=5``."""
    return (sys.executable, "-I", __file__, *constants)


def main() -> None:
    """Set the constants of the command line before other modules import them, and run the program with the rest."""
    while "=" in sys.argv[1]:
        place, _, number = sys.argv.pop(1).partition("=")
        module, _, name = place.rpartition(".")
        found = importlib.import_module(module)
        kind = type(getattr(found, name))
        if kind not in (int, float):
            raise TypeError(f"{place} is not a number.")
        setattr(found, name, kind(number))
    from connmgr.__main__ import main as program

    program()


if __name__ == "__main__":
    main()
