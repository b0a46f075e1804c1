"""Installs the man page where ``man connmgr`` finds it."""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = "connmgr.1"
_PLACES = (
    # In an installed wheel, and in a clone.
    Path(sys.prefix) / "share" / "man" / "man1" / PAGE,
    Path(__file__).resolve().parents[3] / "docs" / PAGE,
)


def link() -> None:
    """Link this installation's man page below ``~/.local``, unless a page is there already."""
    target, link = _installed(), _link()
    if target is None or link.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    # A dead link is left from a removed installation.
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def unlink() -> None:
    """Remove the link if it leads to this installation's page."""
    if _link().is_symlink() and _link().readlink() == _installed():
        _link().unlink()


def _installed() -> Path | None:
    return next((path for path in _PLACES if path.is_file()), None)


def _link() -> Path:
    return Path.home() / ".local" / "share" / "man" / "man1" / PAGE
