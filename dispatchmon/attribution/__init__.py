"""Where an operator belongs: module, step, phase, line."""
