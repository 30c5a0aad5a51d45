"""
The module tree of a model, with what went into each module and came out: shapes and dtypes.
"""

from dispatchmon.analysis.structure.answer import ModuleShape, Port, Structure
from dispatchmon.analysis.structure.find import structure

__all__ = ["ModuleShape", "Port", "Structure", "structure"]
