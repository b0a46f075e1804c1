"""What a plugin tells about machines beyond the facts of the system."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FactProgram:
    """A program in the language of ``sh`` that prints facts about the machine on which it runs.

    It runs in ``/bin/sh -c`` as the connection's user, and needs only what POSIX has. Each line of its output is
    ``NAME=VALUE``, and makes the fact ``prefix.NAME``; a value of digits alone is a number. It is ended when it prints
    more than 1 MiB, or when the request's ``timeout`` is over.
    """

    prefix: str
    """The first word of its facts: a small letter, then small letters, digits, ``_`` and ``-``."""

    script: str
