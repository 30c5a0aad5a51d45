"""
Which writes took a value from somebody who still needed it.

Writes, reads, module calls and autograd nodes come in, as they happen; findings go out, by `Hazards.add`. Each kind of finding
has a file of its own. Imported by `recording` only.
"""
