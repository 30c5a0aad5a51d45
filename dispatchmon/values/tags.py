"""
The tag on a storage: what is remembered of its memory.

A storage's Python object lives exactly as long as its memory, so a tag set on it as an attribute is an identity that needs
no table, keeps nothing alive and cannot be confused by an allocator that hands out the same address again. It is a plain
list, for it is read for every tensor of every operator.
"""

from __future__ import annotations

from itertools import count

SERIALS = count(1)  # of storages, unique in the process
EPOCHS = count(1)  # one per stretch that was seen without a gap: what happened between two of them was not seen

# The fields of a tag.
VALUE = 0  # serial of the storage << VERSION_BITS | version, the number of writes that were seen
LABEL = 1  # device and names, see labels.py
MEMORY = 2  # number of the elements that were measured last, see geometries.py; -1: none since the last write
SLOT = 3  # where their statistics are
SLOTS = 4  # {memory: slot} once several views of the value were measured
EPOCH = 5  # in which it was seen last; inverted while reads of the memory matter to hazards/
OWNER = 6  # the recording that made it
DIGESTS = 7  # of the bytes, with verify_values
WRITES = 8  # the newest writes, see hazards/saved_values.py
HISTORY = 9  # what hazards/histories.py knows of it

MOST_WRITES = 32  # kept of each storage
CPU = 0  # label of unnamed CPU memory
