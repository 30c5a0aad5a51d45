"""
What is recorded besides operators, and what is said while the program runs.

Calls of modules, steps of parameters and the NaN and Inf that were measured come in; events, warnings and exceptions go out.
Imported by `recording`, and `rules.py` by the settings.
"""
