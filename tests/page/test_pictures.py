"""The pictures of the page in the documentation: each is shown, and together they are small."""

from __future__ import annotations

import re

from tests.page.wire import VIEWS
from tests.test_layering import ROOT

MOST_BYTES = 1_100_000
LOOKS = ("desktop-light", "desktop-dark", "phone-light", "phone-dark")
PICTURES = sorted((ROOT / "docs" / "screenshots").iterdir())


def test_every_picture_is_shown_and_taken_by_the_script() -> None:
    shown = set(re.findall(r"!\[[^]]+\]\(screenshots/([\w-]+)\.png\)", (ROOT / "docs" / "WEB.md").read_text()))
    taken = {f"{view}-{look}" for view in VIEWS for look in LOOKS}
    assert {picture.name for picture in PICTURES} == {f"{name}.png" for name in shown}
    assert taken == shown
    script = (ROOT / "scripts" / "screenshots.py").read_text()
    assert set(re.findall(r'^        "([\w-]+)": f?"#/', script, re.MULTILINE)) == set(VIEWS)
    assert "](docs/screenshots/hub-desktop-light.png)" in (ROOT / "README.md").read_text()


def test_the_pictures_are_small() -> None:
    sizes = {picture.name: picture.stat().st_size for picture in PICTURES}
    assert sum(sizes.values()) <= MOST_BYTES, sizes
