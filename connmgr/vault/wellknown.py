"""The entries of every vault, by ids that clients know."""

from __future__ import annotations

ALL_CONNECTIONS = "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"
"""The root of the categories."""

DEFAULT = "97458c07-75c0-4f9d-a06e-92d8cdf67c40"
"""The default category of connections."""

LOCAL = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The connection to the machine that the daemon runs on."""
