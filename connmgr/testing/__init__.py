"""Test suites for connection types, and a type that needs no machine.

A test class inherits :class:`ConnectionConformance`, or :class:`WrapperConformance` for a wrapper, and defines two
fixtures: ``kind``, the connection type, and ``data``, valid data of a reachable remote host. The remote host needs
``/bin/sh``, ``cat``, ``head`` and ``sleep``. Unlike the rest of connmgr, this package needs pytest (the extra
``connmgr[testing]``).
"""

import pytest

# pytest explains the suite's assertions like those of a test module.
pytest.register_assert_rewrite(f"{__name__}.conformance")

from connmgr.testing.conformance import (  # noqa: E402
    ConnectionConformance,
    SchemaConformance,
    StreamConformance,
    UnixStreamConformance,
    WrapperConformance,
)
from connmgr.testing.link import WAIT_SECONDS, Outcome, connect, local, run  # noqa: E402
from connmgr.testing.memory import InMemory, MemoryTransport, Process  # noqa: E402

__all__ = [
    "WAIT_SECONDS",
    "ConnectionConformance",
    "InMemory",
    "MemoryTransport",
    "Outcome",
    "Process",
    "SchemaConformance",
    "StreamConformance",
    "UnixStreamConformance",
    "WrapperConformance",
    "connect",
    "local",
    "run",
]
