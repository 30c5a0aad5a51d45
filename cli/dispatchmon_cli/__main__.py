"""
`python -m dispatchmon_cli` is `dispatchmon`.
"""

import sys

from dispatchmon_cli import main

sys.exit(main())
