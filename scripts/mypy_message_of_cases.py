"""What :mod:`mypy_message_of` must report, and what it must not: ``make check`` reads this, nobody runs it.

Each fault is ignored by its line. mypy reports an ignored fault that is none, so the plugin can neither be off nor
overlook one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from connmgr.contract.message import Message, message_of


class Short(Message):
    name: str
    size: int | None


class Long(Short):
    """A message that has its parent's fields, too."""

    is_new: bool


@dataclass
class Source:
    name: str
    size: int


@dataclass
class Renamed:
    title: str
    size: int


@dataclass
class Retyped:
    name: str
    size: str


def right(source: Source, renamed: Renamed, retyped: Retyped) -> list[Short]:
    """Fill each field by an attribute of its name and type, or by an argument."""
    return [
        message_of(Short, source),
        message_of(Short, renamed, name=renamed.title),
        message_of(Short, retyped, size=None),
        message_of(Long, source, is_new=True),
    ]


def wrong(source: Source, renamed: Renamed, retyped: Retyped, anything: Any) -> None:
    """Leave a field empty, fill it by another type, and other faults."""
    message_of(Short, renamed)  # type: ignore[attr-defined]
    message_of(Long, source)  # type: ignore[attr-defined]
    message_of(Short, retyped)  # type: ignore[misc]
    message_of(Long, retyped, is_new=True)  # type: ignore[misc]
    message_of(Short, source, size="large")  # type: ignore[misc]
    message_of(Short, source, length=1)  # type: ignore[misc]
    message_of(Short, anything)  # type: ignore[misc]
