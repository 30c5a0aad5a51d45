"""
Builds dispatchmon/statistics/_kernel.c with the address and undefined-behaviour sanitizers and runs its tests: strided,
overlapping, unaligned and empty memory of every dtype.

    python tests/judges/sanitize_kernel.py [pytest arguments]

Twice, at once: with every instruction set that the processor offers, and with the compiler's default one alone, which is what
other compilers and processors run. The build in the source tree is left alone: a copy of the package is tested, under
LD_PRELOAD of libasan, which must be there before Python's own allocator. First it is asked for an element too many, which
must be noticed. Leaks are not looked for: Python and torch keep memory on purpose. Needs gcc with libasan, and says so where
there is none; takes some 80 seconds of one processor.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-g", "-O3", "-fno-trapping-math", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
PYTHON = ["-DPy_LIMITED_API=0x030b0000", "-I" + sysconfig.get_paths()["include"]]
LIBRARIES = ["-lm", "-ldl", "-pthread"]


TOO_FAR = """
import ctypes, struct
from dispatchmon.statistics import _kernel
data, row = ctypes.create_string_buffer(4096), (ctypes.c_double * _kernel.TOTALS)()
layout = struct.pack(_kernel.LAYOUT_FORMAT, _kernel.DTYPES["float32"], 1025, 1, 0, 1, *[0] * 16)
_kernel.measure(ctypes.addressof(row), ctypes.addressof(data), layout, 1)
"""


def libasan():
    """The library to load before Python; None where the compiler has none."""
    try:
        found = subprocess.run(
            ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return found if os.path.isabs(found) else None


def build(folder, definitions):
    """A copy of the package in this folder, with a kernel that watches itself."""
    package = Path(folder, "dispatchmon")
    shutil.copytree(ROOT / "dispatchmon", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    source, library = str(package / "statistics" / "_kernel.c"), str(package / "statistics" / "_kernel.abi3.so")
    subprocess.run(["cc", *FLAGS, *SANITIZE, *PYTHON, *definitions, source, "-o", library, *LIBRARIES], check=True)


def start(folder, asan, arguments):
    """Begin to test that copy."""
    environment = os.environ | {
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": folder,
        "PYTHONMALLOC": "malloc",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "2",
    }
    probe = [sys.executable, "-c", TOO_FAR]
    done = subprocess.run(probe, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if "AddressSanitizer: heap-buffer-overflow" not in done.stderr:
        sys.exit(f"an element too many was not noticed:\n{done.stdout}{done.stderr}")
    pytest = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider"]
    pytest += ["-o", "markers=slow", str(ROOT / "tests" / "statistics" / "test_statistics_kernel.py"), *arguments]
    return subprocess.Popen(pytest, env=environment, cwd=folder)


def main():
    """Both builds; the status of the first that fails."""
    if (asan := libasan()) is None:
        print("not run: the compiler `cc` has no libasan")
        return 0
    with tempfile.TemporaryDirectory() as every, tempfile.TemporaryDirectory() as plain:
        build(every, [])
        build(plain, ["-DDISPATCHMON_NO_CLONES"])
        runs = [start(folder, asan, sys.argv[1:]) for folder in (every, plain)]
        return max(run.wait() for run in runs)


if __name__ == "__main__":
    sys.exit(main())
