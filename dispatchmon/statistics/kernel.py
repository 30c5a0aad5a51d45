"""The optional C kernel (`_kernel.c`): what it measures in one pass, torch's reductions measure in several."""

from __future__ import annotations

from typing import Any

native: Any
try:
    from dispatchmon.statistics import _kernel as native
except ImportError:  # no compiler when the package was built
    native = None
