"""Third-party plugins, installed where a registry or a daemon finds them."""

from __future__ import annotations

import itertools
from pathlib import Path

SOUND = """
from connmgr.plugin import ConnectionType, Reference, Schema, Wrapper, hookimpl

class Sound(ConnectionType):
    name = "NAME"
    description = "A sound type."
    schema = Schema

    def open(self, data, via, *, timeout):
        raise NotImplementedError

@hookimpl
def connmgr_connection_types():
    return [Sound()]
"""
"""The source of a valid plugin."""

_numbers = itertools.count()


def install(site: Path, source: str | None, distribution: str, version: str = "1.2", entry: str = "plugin") -> None:
    """Install a distribution with one module, ``source``, into the directory ``site`` as pip does."""
    module = f"connmgr_stranger{next(_numbers)}"
    site.mkdir(parents=True, exist_ok=True)
    if source is not None:
        (site / f"{module}.py").write_text(source)
    metadata = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[connmgr]\n{entry} = {module}\n")
