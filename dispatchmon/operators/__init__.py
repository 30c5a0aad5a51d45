"""
What each operator overload reads, writes, and does to memory.

A schema comes in, once; a `Plan` goes out, which the hot path looks up for every operator. Imported by all that record.
A new rule about an operator goes into `schemas.py` (what it writes) or `effects.py` (what that does to others).
"""
