"""Where things are."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
CASES = TESTS / "cases"
GOLD = TESTS / "gold"
