"""
Every in-place write of a run, and which of them are hazards.
"""

from dispatchmon.analysis.audit.answer import Audit, Finding, Victim, Writes
from dispatchmon.analysis.audit.find import all_writes, audit

__all__ = ["Audit", "Finding", "Victim", "Writes", "all_writes", "audit"]
