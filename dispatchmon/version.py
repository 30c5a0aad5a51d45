"""The version of this package; that of the trace format is in schema.py."""

VERSION = "0.1.0"
