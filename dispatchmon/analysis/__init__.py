"""
Questions to a trace, and their answers.

The files of a trace come in, plain frozen dataclasses go out. Imported by `trace.py` and the command line; prints nothing, and
needs no torch.
"""
