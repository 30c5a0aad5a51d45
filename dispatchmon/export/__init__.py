"""
The rows of a trace in a foreign format.

The files of a trace and a place to write come in; a file or folder goes out. Imported by `trace.py` and the command line.
"""
