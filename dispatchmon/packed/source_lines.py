"""How a source line is written in the trace."""

from __future__ import annotations

import os
from types import CodeType


def described(code: CodeType, instruction: int) -> str:
    """`train.py:31 in forward`."""
    line = next(
        (at for start, end, at in code.co_lines() if start <= instruction < end and at is not None), code.co_firstlineno
    )
    return f"{os.path.basename(code.co_filename)}:{line} in {code.co_name}"
