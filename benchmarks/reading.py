"""
Measure what answers over a large trace cost, against DuckDB alone.

    python benchmarks/reading.py TRACE [REPEATS]

DuckDB takes the largest value of each column that the answer needs, in one plain statement over the same file, which it
scans by itself through pyarrow's data set, the only way in which it reads Arrow files; the other columns are not read. All
cores are allowed to both. Each run is a process of its own, the two in turn; the time is from the first line to the answer,
without the start of Python and imports. `make_large_trace.py` writes a trace to measure.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

OURS = """
from dispatchmon.trace import open_trace
run = lambda path: open_trace(path).{answer}
"""
DUCKDB = """
import duckdb
import pyarrow.dataset

def run(path):
    trace = pyarrow.dataset.dataset(path, format="ipc")
    duckdb.execute("SET enable_progress_bar = false")
    duckdb.execute("SELECT {columns} FROM trace WHERE {where}").fetchall()
"""
SUMMED = "kind op arguments mutation duration_ns step rank dtype role written min max nan inf"
PLACED = (
    "kind op module mutation phase arguments step source event written role arg name shape stride offset storage dtype rank"
)
SEARCHED = "kind event op phase role storage version dtype nan inf min max written"
ANSWERS = {  # by what is said of it: the call, and the columns and rows that it needs
    "summarize": ("summarize(top=20)", SUMMED, "true"),
    "summarize --by module": ("summarize(by='module', top=20)", f"{SUMMED} module", "true"),
    "audit": ("audit()", PLACED, "kind = 'op' AND mutation <> 'none'"),
    "nonfinite": ("nonfinite()", SEARCHED, "kind = 'op'"),
}
FRAME = """
import json, sys, time
{setup}
start, cpu = time.perf_counter(), time.process_time()
run(sys.argv[1])
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({{"seconds": seconds, "cpu": cpu, "peak_mb": peak / 1024}}))
"""


def measure(setup: str, path: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", FRAME.format(setup=setup), path], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def main(path: str, repeats: int) -> None:
    print("| | dispatchmon | DuckDB alone | CPU, ratio |\n|---|---|---|---:|")
    for name, (answer, columns, where) in ANSWERS.items():
        largest = ", ".join(f"max({column})" for column in columns.replace("offset", "trace.offset").split())
        setups = {"dispatchmon": OURS.format(answer=answer), "DuckDB": DUCKDB.format(columns=largest, where=where)}
        runs = {of: [] for of in setups}
        for _ in range(repeats):
            for of, setup in setups.items():
                runs[of].append(measure(setup, path))
        said, cpu = {}, {}
        for of, measured in runs.items():
            seconds, cpu[of] = (statistics.median(run[unit] for run in measured) for unit in ("seconds", "cpu"))
            said[of] = f"CPU {cpu[of]:.1f} s ({seconds:.1f} s), {max(run['peak_mb'] for run in measured):.0f} MB"
        print(
            f"| `{name}` | {said['dispatchmon']} | {said['DuckDB']} | {cpu['dispatchmon'] / cpu['DuckDB']:.2f} |", flush=True
        )


if __name__ == "__main__":
    if len(sys.argv) < 2:  # `make bench` runs every script
        raise SystemExit(0)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
