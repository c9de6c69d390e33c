"""The browser in which pages are tested, and the skip where it cannot be had."""

import os
import shutil
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"}


def require(there: Any, what: str) -> None:
    """Skip, and under CI=true fail, unless ``there``."""
    if there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)
