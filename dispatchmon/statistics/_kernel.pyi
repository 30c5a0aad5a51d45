from typing import Final

COLUMNS: Final[tuple[str, ...]]
DTYPES: Final[dict[str, int]]
LAYOUT_FORMAT: Final[str]
TOTALS: Final[int]

def measure(row_address: int, pointer: int, layout: bytes, threads: int, /) -> int: ...
