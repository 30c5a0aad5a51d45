"""
What JSON can hold: the documents that commands print and answers give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def document(of: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON document of these keys."""
    return {key: plain(value) for key, value in of.items()}


def plain(value: Any) -> Any:
    """The value in lists and dicts; a number that is not finite, which JSON lacks, is the text `nan`, `inf` or `-inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
