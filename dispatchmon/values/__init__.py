"""Which value a tensor holds: the identity of memory, its geometry, its name, and a row for each sight of it."""
