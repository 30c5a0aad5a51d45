"""`python -m dispatchmon`: the same as the `dispatchmon` command."""

import sys

from dispatchmon_cli import main

if __name__ == "__main__":
    sys.exit(main())
