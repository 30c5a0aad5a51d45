"""
Which bytes of a memory a tensor covers, and which of its elements are not finite.

Shapes, strides and offsets come in as plain numbers; regions and small maps go out. Asked while recording and of a trace, so
everything may import it, and it imports nothing: neither torch nor another room.
"""
