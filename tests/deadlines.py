"""How long tests wait for what must happen; only a failing test waits that long."""

from __future__ import annotations

DEADLINE_SECONDS = 60.0
