"""
The sentences and figures that a run and its answers share.

Numbers and names come in, text goes out: what is said of a hazard while the program runs and what `dispatchmon audit` says of
it later is one sentence, from one place. Everything may import it; it imports nothing.
"""
