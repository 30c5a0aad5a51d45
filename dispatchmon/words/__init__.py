"""The sentences and figures that a run and its answers share. Without torch."""
