"""Fixtures that the tests of rights share."""

from __future__ import annotations

from tests.vault.conftest import open_vault as open_vault
from tests.vault.conftest import postgres as postgres
from tests.vault.conftest import renewed as renewed
from tests.vault.conftest import url as url
from tests.vault.conftest import vault as vault
