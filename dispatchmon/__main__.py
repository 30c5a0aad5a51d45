"""`python -m dispatchmon`: the same as the `dispatchmon` command."""

from dispatchmon_cli import main

if __name__ == "__main__":
    main()
