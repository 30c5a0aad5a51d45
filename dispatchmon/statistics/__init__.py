"""The numbers of a value: one pass of the C kernel, or torch, on the device where it lies."""
