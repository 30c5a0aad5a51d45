"""
Where the first NaN or Inf was born: from the rows of a trace to the operator, the chain that led there, and what it reached.

    answer = find_nonfinite(open_trace("trace.arrow"))
    print(answer.first.message)

How it works and how well: `docs/nonfinite.md`.
"""

from dispatchmon.analysis.nonfinite.answer import NonFinite
from dispatchmon.analysis.nonfinite.find import find_nonfinite
from dispatchmon.analysis.nonfinite.places import Origin

__all__ = ["NonFinite", "Origin", "find_nonfinite"]
