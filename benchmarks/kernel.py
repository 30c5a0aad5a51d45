"""
The statistics kernel beside `x.sum()` of the same values with the same threads: the floor is one read of each value.

    python benchmarks/kernel.py [--write docs/performance.md]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from overhead import machine, replaced

from dispatchmon.memory.cells import runs_of
from dispatchmon.statistics.layout import layout_of
from dispatchmon.statistics.table import Statistics
from dispatchmon.torch_internals import address_of

SIZES = {16: 20_000, 100_000: 2_000, 1_000_000: 200, 20_000_000: 8}  # elements, and calls per measurement


def best(call: Callable[[], object], calls: int) -> float:
    """Seconds per call: the fastest of five series."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def measured(dtype: str, n: int, threads: int) -> str:
    """A cell of the table: microseconds, and times `x.sum()`."""
    torch.set_num_threads(threads)
    x = torch.randn(n).to(getattr(torch, dtype))
    statistics = Statistics(1, "native")
    layout = layout_of(*runs_of(x.shape, x.stride()), 0, x.dtype)
    assert layout is not None
    memory = address_of(x) + layout.start
    kernel = best(lambda: statistics.kernel(statistics.address, memory, layout.packed, threads), SIZES[n])
    floor = best(x.sum, SIZES[n])
    return f"{kernel * 1e6:,.{1 if kernel < 1e-3 else 0}f} µs ({kernel / floor:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="replace this section of a Markdown file")
    options = parser.parse_args()
    lines = [f"{machine()}.", "", "| | threads |" + "".join(f" {n:,} elements |" for n in SIZES)]
    lines.append("|---|---:|" + "---:|" * len(SIZES))
    for dtype in ("float32", "float16", "bfloat16"):
        for threads in (1, 2):
            cells = [measured(dtype, n, threads) for n in SIZES]
            lines.append(f"| {dtype} | {threads} | " + " | ".join(cells) + " |")
    print("\n".join(lines))
    if options.write is not None:
        replaced(options.write, "kernel", "\n".join(lines))


if __name__ == "__main__":
    main()
