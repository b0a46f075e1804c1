"""Runs every benchmark: each module of this package that has a ``main()``."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]
    unknown = set(sys.argv[1:]) - set(names)
    if unknown:
        sys.exit(f"No such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names)}.")
    for name in sys.argv[1:] or names:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "main"):
            module.main()


if __name__ == "__main__":
    main()
