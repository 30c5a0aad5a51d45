"""
What ran, what it wrote, and what stands out: the first look at a trace.
"""

from dispatchmon.analysis.summary.answer import Group, Sighting, StandsOut, Summary, Totals, Writes
from dispatchmon.analysis.summary.find import BY, SORTS, By, Sort, summarize

__all__ = [
    "BY",
    "SORTS",
    "By",
    "Group",
    "Sighting",
    "Sort",
    "StandsOut",
    "Summary",
    "Totals",
    "Writes",
    "summarize",
]
