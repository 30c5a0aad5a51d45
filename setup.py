"""The optional C extension; everything else is in pyproject.toml."""

import os
import sys
import sysconfig

from setuptools import Extension, setup

kernel = Extension(
    "dispatchmon.statistics._kernel",
    ["dispatchmon/statistics/_kernel.c"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")],
    py_limited_api=True,
    # NaN and Inf keep their meaning: only the traps and errno, which nobody reads, are given up.
    extra_compile_args=["-O3", "-fno-trapping-math", "-fno-math-errno"],
    libraries=["m", "pthread", "dl"],
    optional=True,  # without a compiler the same numbers are computed by torch
)

wanted = (
    not os.environ.get("DISPATCHMON_NO_EXTENSION")
    and sys.platform != "win32"  # it uses pthreads
    and not sysconfig.get_config_var("Py_GIL_DISABLED")  # free-threaded Python has no limited API
)

setup(
    ext_modules=[kernel] if wanted else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if wanted else {},
)
