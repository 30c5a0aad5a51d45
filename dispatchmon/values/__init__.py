"""
Which value a tensor holds.

A tensor comes in; a row goes out, with the identity of its memory (a tag on the storage), its geometry, its name and the slot
of its statistics. Imported by `attribution` and those above.
"""
