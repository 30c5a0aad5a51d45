"""
The numbers of a value.

A tensor and the layout of its elements come in; a row of ten float64 in a table comes out, by the C kernel in one pass, by
torch's reductions, or on the device where the value lies. Imported by `values` and those above.
"""
