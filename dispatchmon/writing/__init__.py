"""
From packed batches to an Arrow file.

A `Batch` of integers comes in, in the sink's own thread; record batches in a file go out, which is readable up to its last
batch at any moment. Imported by the sink and by `recording`. Needs no torch.
"""
