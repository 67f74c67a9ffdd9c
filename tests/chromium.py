"""Chromium for tests that show pages: where it is, and started without a window."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from harness.report.pictures import BROWSERS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(BROWSERS)} is installed")
# Much longer than anything takes on a busy machine.
PATIENCE_MILLISECONDS = 300_000


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A browser that ends with the context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MILLISECONDS
        )
        yield browser
        browser.close()
