"""
Measure `dispatchmon summarize` on a large trace against DuckDB alone.

    python benchmarks/reading.py TRACE [REPEATS]

DuckDB runs the same aggregation over the same file, which it scans by itself through pyarrow's data set, the only way in
which it reads Arrow files. Each run is a process of its own, the two in turn; the time is from the first line to the
answer, without the start of Python and imports. `make_large_trace.py` writes a trace to measure.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

OURS = """
from dispatchmon.analysis.summary import summarize
from dispatchmon.trace import open_trace
run = lambda path: summarize(open_trace(path), {by!r}, top=20).totals.rows
"""
DUCKDB = """
import duckdb
import pyarrow.dataset
from dispatchmon.analysis.summary.find import groups_sql

def run(path):
    trace = pyarrow.dataset.dataset(path, format="ipc")
    sql = groups_sql({by!r}, "calls")
    duckdb.execute("SET enable_progress_bar = false")
    return duckdb.execute(sql, {{"top": 20}}).fetchdf()["rows"][0].item()
"""
FRAME = """
import json, sys, time
{setup}
start, cpu = time.perf_counter(), time.process_time()
rows = run(sys.argv[1])
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({{"rows": rows, "seconds": seconds, "cpu": cpu, "peak_mb": peak / 1024}}))
"""


def measure(setup: str, path: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", FRAME.format(setup=setup), path], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def main(path: str, repeats: int) -> None:
    for by in ("op", "module", "phase", "step", "dtype", "source"):
        runs = {"dispatchmon": [], "DuckDB": []}
        for _ in range(repeats):
            for name, setup in (("dispatchmon", OURS), ("DuckDB", DUCKDB)):
                runs[name].append(measure(setup.format(by=by), path))
        seconds = {name: statistics.median(run["seconds"] for run in of) for name, of in runs.items()}
        cpu = {name: statistics.median(run["cpu"] for run in of) for name, of in runs.items()}
        peaks = {name: max(run["peak_mb"] for run in of) for name, of in runs.items()}
        print(
            f"--by {by:7} {runs['DuckDB'][0]['rows']:>9} rows  "
            + "  ".join(f"{name} {seconds[name]:.2f} s (CPU {cpu[name]:.2f} s), {peaks[name]:.0f} MB" for name in runs)
            + f"  ratio {seconds['dispatchmon'] / seconds['DuckDB']:.2f}"
            + f" (CPU {cpu['dispatchmon'] / cpu['DuckDB']:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) < 2:  # `make bench` runs every script
        raise SystemExit(0)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
