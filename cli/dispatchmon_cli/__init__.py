"""
The `dispatchmon` command. It reads traces and needs no torch.
"""

from dispatchmon_cli.group import main

__all__ = ["main"]
