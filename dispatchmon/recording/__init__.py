"""
One stretch of recording: the dispatch mode, and how all other rooms are joined.

`DispatchMonitor` opens it and closes it; operators come in at `dispatch.py`, and batches go out at `handover.py` to the sink.
Imported by `mode.py` only.
"""
