"""
Builds dispatchmon/statistics/_kernel.c with the address and undefined-behaviour sanitizers and runs its tests.

    python tests/judges/sanitize_kernel.py [pytest arguments]

Twice: with every instruction set that the processor offers, and with the compiler's default one alone, which is what
other compilers and processors run. The build in the source tree is left alone: a copy of the package is tested, under
LD_PRELOAD of libasan, which must be there before Python's own allocator. Leaks are not looked for: Python and torch
keep memory on purpose. Needs gcc with libasan, and takes some two minutes.
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
PYTHON = ["-DPy_LIMITED_API=0x030a0000", "-I" + sysconfig.get_paths()["include"]]
LIBRARIES = ["-lm", "-ldl", "-pthread"]


def run(folder, definitions, arguments):
    """Build in a copy of the package in this folder and test it; pytest's exit status."""
    package = Path(folder, "dispatchmon")
    shutil.copytree(ROOT / "dispatchmon", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    source, library = str(package / "statistics" / "_kernel.c"), str(package / "statistics" / "_kernel.abi3.so")
    subprocess.run(["cc", *FLAGS, *SANITIZE, *PYTHON, *definitions, source, "-o", library, *LIBRARIES], check=True)
    asan = subprocess.run(["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True).stdout
    environment = os.environ | {
        "LD_PRELOAD": asan.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": folder,
        "PYTHONMALLOC": "malloc",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    loaded = "from dispatchmon.statistics import _kernel as s; print(s.__file__, flush=True)"
    subprocess.run([sys.executable, "-c", loaded], check=True, env=environment, cwd=folder)
    pytest = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider"]
    tests = str(ROOT / "tests" / "test_statistics_kernel.py")
    return subprocess.run([*pytest, tests, *arguments], env=environment, cwd=folder, check=False).returncode


def main():
    """Both builds, the second also where the first fails."""
    status = 0
    for definitions in ([], ["-DDISPATCHMON_NO_CLONES"]):
        with tempfile.TemporaryDirectory() as folder:
            status |= run(folder, definitions, sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
