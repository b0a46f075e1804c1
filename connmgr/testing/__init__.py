"""For the tests of a connection type: a suite that checks it against the contract, and one that needs no machine.

A test class inherits :class:`ConnectionConformance`, or :class:`WrapperConformance` for a wrapper, and says in two
fixtures what is tested: ``kind``, the connection type, and ``data``, valid data for a far side that can be reached.
That far side needs ``/bin/sh``, ``cat``, ``head`` and ``sleep``; this package, unlike the rest of connmgr, needs pytest
(the extra ``connmgr[testing]``).
"""

import pytest

# The tests of the suite are to explain themselves as a test module's own do.
_SUITE = ("channel", "conformance", "schema", "session", "stream")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _SUITE))

from connmgr.testing.conformance import ConnectionConformance, WrapperConformance  # noqa: E402
from connmgr.testing.link import WAIT, Outcome, connect, local, run  # noqa: E402
from connmgr.testing.memory import InMemory, MemoryTransport, Process  # noqa: E402
from connmgr.testing.schema import SchemaConformance  # noqa: E402
from connmgr.testing.stream import StreamConformance  # noqa: E402

__all__ = [
    "WAIT",
    "ConnectionConformance",
    "InMemory",
    "MemoryTransport",
    "Outcome",
    "Process",
    "SchemaConformance",
    "StreamConformance",
    "WrapperConformance",
    "connect",
    "local",
    "run",
]
