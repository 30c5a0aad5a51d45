"""`make test` tests the wheel as a user installs it, not the checkout."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import dispatchmon
import dispatchmon_cli

pytestmark = pytest.mark.skipif(
    os.environ.get("DISPATCHMON_TEST_INSTALLED") != "1", reason="the checkout may be tested: not started by make"
)
SITE_PACKAGES = Path(sysconfig.get_path("platlib"))
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("package", [dispatchmon, dispatchmon_cli])
def test_imported_from_site_packages(package):
    """Both packages come from site-packages."""
    assert Path(package.__file__).parent.parent == SITE_PACKAGES


def test_version():
    """`__version__` is the version that the wheel is installed as."""
    assert dispatchmon.__version__ == importlib.metadata.version("dispatchmon")


def test_child_processes_import_from_site_packages():
    """A Python started in the checkout's folder imports the installed package too."""
    command = [sys.executable, "-c", "import dispatchmon; print(dispatchmon.__file__)"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert Path(printed.strip()).parent.parent == SITE_PACKAGES


def test_wheel_holds_the_packages_and_nothing_else():
    """The wheel installs two packages, their metadata and one command."""
    files = importlib.metadata.files("dispatchmon") or []
    tops = {file.parts[0] for file in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dispatchmon", "dispatchmon_cli", ".."}
    assert [file.name for file in files if file.parts[0] == ".."] == ["dispatchmon"]


def test_wheel_holds_every_source_file():
    """Every Python file and stub of the checkout's two packages is in the wheel, and no other."""
    sources = {path.relative_to(root) for root in (ROOT, ROOT / "cli") for path in root.glob("dispatchmon*/**/*.py*")}
    installed = {Path(file) for file in importlib.metadata.files("dispatchmon") or []}
    sources, installed = ({path for path in paths if path.suffix in (".py", ".pyi")} for paths in (sources, installed))
    assert installed == sources


def test_every_import_is_a_dependency():
    """The wheel asks for the packages that its files import, and for no others."""
    imported = set()
    for path in (*(ROOT / "dispatchmon").rglob("*.py"), *(ROOT / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    required = {line for line in importlib.metadata.requires("dispatchmon") or [] if "extra ==" not in line}
    assert {re.match(r"[\w-]+", line)[0] for line in required} == (
        imported - sys.stdlib_module_names - {"dispatchmon", "dispatchmon_cli"}
    )


def test_wheel_is_typed():
    """Type checkers read the packages' annotations."""
    assert (SITE_PACKAGES / "dispatchmon" / "py.typed").is_file()


@pytest.mark.skipif(
    shutil.which("cc") is None or bool(os.environ.get("DISPATCHMON_NO_EXTENSION")), reason="nothing can compile it"
)
def test_extension_was_built():
    """With a compiler the wheel holds the C extension, for any Python from 3.11 on."""
    assert list((SITE_PACKAGES / "dispatchmon" / "statistics").glob("_kernel.abi3.*"))


def test_command_is_installed():
    """The `dispatchmon` command answers, as does `python -m dispatchmon`, with the same help."""
    command = Path(sysconfig.get_path("scripts")) / "dispatchmon"
    by_name = subprocess.run([command, "--help"], check=True, capture_output=True, text=True).stdout
    by_module = subprocess.run(
        [sys.executable, "-m", "dispatchmon", "--help"], check=True, capture_output=True, text=True
    ).stdout
    assert by_name.startswith("Usage: dispatchmon ")
    assert by_module == by_name
