"""
Questions to a trace: `TraceFiles` in, plain frozen dataclasses out. Prints nothing, and needs no torch.
"""
