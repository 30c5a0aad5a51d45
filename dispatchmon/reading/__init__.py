"""
From an Arrow file to rows, and SQL over them.

Paths come in; record batches and the answers of single questions go out. Nothing that stands in a file is trusted. Imported by
`analysis`, `export` and `trace.py`. Needs no torch.
"""
