"""
Questions to a trace: a `Trace` in, plain frozen dataclasses out. Prints nothing, and needs no torch.
"""
