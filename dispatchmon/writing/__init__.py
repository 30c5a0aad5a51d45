"""Packed batches to an Arrow file."""
