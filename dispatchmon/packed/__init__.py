"""
What the hot path hands over: integers, and the tables of what they stand for.

The thread that records appends to these buffers; the thread that writes reads them as numpy arrays. Both halves of a recording
import this room, which knows neither of them, and no torch.
"""
