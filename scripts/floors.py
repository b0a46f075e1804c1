"""Print the lowest version of each requirement in setup.cfg, as constraints for pip."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.cfg"
TOOLS = {"check", "bench", "screenshots"}
"""Extras that are not installed for the tests."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,]+\])? >= (?P<floor>[\d.]+), < [\d.]+(?P<marker>;.*)?")


def floors(text: str) -> list[str]:
    """Return ``name==version`` for each requirement of ``text``, the content of a setup.cfg, with its marker.

    :raises ValueError: a requirement has not both bounds.
    """
    config = configparser.ConfigParser()
    config.read_string(text)
    extras = config["options.extras_require"]
    groups = [config["options"]["install_requires"], *(extras[name] for name in extras if name not in TOOLS)]
    found = []
    for line in "\n".join(groups).splitlines():
        requirement = line.strip()
        if not requirement or requirement.startswith(("#", "connmgr[")):
            continue
        parts = _REQUIREMENT.fullmatch(requirement)
        if not parts:
            raise ValueError(f"setup.cfg: {requirement!r} is not written as 'name >= lowest, < breaking'.")
        found.append(f"{parts['name']}=={parts['floor']}{parts['marker'] or ''}")
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(floors(SETUP.read_text())) + "\n")
