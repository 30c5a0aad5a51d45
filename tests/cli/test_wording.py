"""
How the command line says a number, a duration, a name.
"""

from dispatchmon.words.figures import count, counted, duration, figure, number, size
from dispatchmon.words.harmless import printable
from dispatchmon.words.names import in_module, module_name
from dispatchmon_cli.layout import cut_middle


def test_numbers_as_they_are_said():
    """Numbers are short, and whole ones exact."""
    assert [count(n) for n in (0, 999, 1240, 1234567)] == ["0", "999", "1 240", "1 234 567"]
    assert [counted(n, "write") for n in (0, 1, 1240)] == ["0 writes", "1 write", "1 240 writes"]
    assert [number(x) for x in (41.2, 3.1e-05, 65504.0, 0.0, 3.4028234e38, 1.23456, -2.0, 1e6)] == [
        *("41.2", "3.1e-05", "65504", "0", "3.403e+38", "1.235", "-2", "1e+06"),
    ]
    assert [(number(x), figure(x)) for x in (-0.0, -3.1e-09, -5e-324)] == [
        *(("0", "0"), ("-3.1e-09", "-3.1e-09"), ("-4.941e-324", "-4.941e-324")),
    ]
    assert [size(n) for n in (0, 850, 999, 1000, 12_345_678, 5 * 10**12)] == [
        *("0 B", "850 B", "999 B", "1.0 kB", "12.3 MB", "5000.0 GB"),
    ]


def test_durations_as_they_are_said():
    """Durations have two or three digits in the unit that suits them."""
    assert {ns: duration(ns) for ns in (0, 850, 1000, 1_234_567, 20_000, 9_960_000, 75 * 10**9)} == {
        0: "0 ns",
        850: "850 ns",
        1000: "1.0 µs",
        1_234_567: "1.2 ms",
        20_000: "20 µs",
        9_960_000: "10 ms",
        75 * 10**9: "75 s",
    }
    assert duration(200 * 10**9) == "3 min 20 s"
    assert duration(7500 * 10**9) == "2 h 5 min"


def test_names_as_they_are_said():
    """A name is cut in the middle; the model and the outside have names of their own."""
    assert cut_middle("encoder.layers.0.attention", 12) == "encod…ention"
    assert len(cut_middle("encoder.layers.0.attention", 11)) == 11
    assert cut_middle("short", 5) == "short"
    assert (module_name(""), module_name(None), module_name("head")) == ("(model)", "(outside)", "head")
    assert (in_module(""), in_module(None), in_module("head")) == (
        "in the model itself",
        "outside every module",
        "in head",
    )
    assert printable("größe\n\x1b") == "größe\\n\\x1b"
