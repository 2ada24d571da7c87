"""The page about security tells of every limit, with the values that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from pptrace.config import limits
from pptrace.plugins.guards import MOST_OFFERS
from pptrace.run.preparation import ACTION_BYTES, RECEIVING_BYTES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text("utf-8")


def test_every_limit_is_on_the_page() -> None:
    documented = dict(re.findall(r"\| `(PPTRACE_\w+)` \| ([^|]+?) \|", PAGE))

    assert set(documented) == {limits.UNPACKED, limits.EVENTS, limits.MEMORY}
    assert documented[limits.UNPACKED] == f"{limits.most_unpacked() >> 30} GiB"
    assert documented[limits.EVENTS] == str(limits.most_events())


def test_the_page_has_the_numbers_of_the_code() -> None:
    text = " ".join(PAGE.split())
    assert f"more than {limits.MOST_RATIO} times" in text
    assert f"The estimate is {ACTION_BYTES} bytes per action. It is {RECEIVING_BYTES} bytes with policies" in text
    assert f"more than {MOST_OFFERS:,} offers" in text


def test_the_page_is_found() -> None:
    assert "docs/security.md" in (ROOT / "README.md").read_text("utf-8")
    assert "(docs/security.md)" in (ROOT / "SECURITY.md").read_text("utf-8")
    assert "(../SECURITY.md)" in PAGE
    assert "(security.md)" in (ROOT / "docs/stability.md").read_text("utf-8")
