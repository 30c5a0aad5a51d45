"""
Where an operator belongs: module and call, step, phase, forward operator, line.

Module calls, optimizer steps, autograd nodes and frames come in; numbers of contexts, nodes and source lines go out.
`module_tracker.py` puts these parts together and is the only one that knows all of them; those above import either.
"""
