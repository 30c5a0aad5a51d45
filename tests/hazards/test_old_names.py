"""
The rules that read a code object, on programs that each Python packs in its own way; what is right does not depend on it.

In each program the call `self.act(x)` writes over x; the lines marked `# old` use what x was, and no other does.
"""

from __future__ import annotations

import ast
import dis
import importlib
import inspect
import subprocess
import sys
import textwrap
import types

import pytest

from dispatchmon.hazards.bytecode import at, steps_of
from dispatchmon.hazards.old_names import calls_method, later_loads, lines_of, loads_after, method_called

PROGRAMS = {
    "a later line": """
        def f(self, x):
            y = self.act(x)
            return self.lin(y) + x  # old
        """,
    "the same name": """
        def f(self, x):
            x = self.act(x)
            return self.lin(x) + x
        """,
    "a result that nobody takes": """
        def f(self, x):
            self.act(x)
            return self.lin(x) + x
        """,
    "a skip on the stack": """
        def f(self, x):
            return x + self.lin(self.act(x))  # old
        """,
    "a skip on the stack, several lines": """
        def f(self, x):
            return self.norm(
                x  # old
                + self.lin(
                    self.act(x)
                )
            )
        """,
    "a skip on the stack after a loop": """
        def f(self, x):
            for layer in self.layers:
                x = layer(x)
            return x + self.lin(self.act(x))  # old
        """,
    "a skip on the stack after a branch": """
        def f(self, x):
            if self.first is not None:
                x = self.first(x)
            return x * 2 + self.lin(x, self.act(x))  # old
        """,
    "a skip on the stack after an exception": """
        def f(self, x):
            try:
                self.check(x)
            except ValueError:
                pass
            return x + self.lin(self.act(x))  # old
        """,
    "another value on the stack": """
        def f(self, x, y):
            return y + self.lin(self.act(x))
        """,
    "an argument beside it": """
        def f(self, x):
            return torch.cat([x, self.act(x)], 1)  # old
        """,
    "two names at once": """
        def f(self, x, y):
            z = self.act(x)
            return self.lin(y, x) + z  # old
        """,
    "behind the second of two names": """
        def f(self, x, y):
            z = self.act(x)
            return self.both(x, y, z)  # old
        """,
    "a keyword": """
        def f(self, x):
            z = self.act(x)
            return self.lin(z, skip=x)  # old
        """,
    "the argument by keyword": """
        def f(self, x):
            z = self.act(x=x)
            return z + x
        """,
    "an old name from before": """
        def f(self, x):
            skip = x
            x = self.act(x)
            return self.lin(x) + skip  # old
        """,
    "an old name from after": """
        def f(self, x):
            y = self.act(x)
            skip = x
            x = self.lin(y)
            return x + skip  # old
        """,
    "two old names in one assignment": """
        def f(self, x):
            skip, n = x, self.n
            x = self.act(x)
            return self.lin(x, n) + x
        """,
    "bound again at once": """
        def f(self, x):
            y = self.act(x)
            x = y * 2
            return x + y
        """,
    "bound again together with another": """
        def f(self, x):
            y = self.act(x)
            x, z = self.split(y)
            return x + z
        """,
    "bound again on one way": """
        def f(self, x):
            y = self.act(x)
            if self.training:
                x = y
            return y + x  # old
        """,
    "used on one way": """
        def f(self, x):
            y = self.act(x)
            if self.training:
                return y
            return y + x  # old
        """,
    "bound and used at once": """
        def f(self, x):
            y = self.act(x)
            for x in y: x.add(x)
            return y
        """,
    "deleted": """
        def f(self, x):
            y = self.act(x)
            del x
            return y
        """,
    "asked for its shape": """
        def f(self, x):
            y = self.act(x)
            return y.view(x.shape[0], x.size(1))
        """,
    "a comprehension's own name": """
        def f(self, x):
            y = self.act(x)
            return [x + 1 for x in y]
        """,
    "a comprehension's own name, and the old one after it": """
        def f(self, x):
            y = self.act(x)
            z = [x + 1 for x in y]
            return self.lin(*z) + x  # old
        """,
    "a comprehension in a comprehension": """
        def f(self, x):
            y = self.act(x)
            z = [[x + a for x in a] for a, x in y]
            w = {a: x for a, x in y}
            return self.lin(z, w) + x  # old
        """,
    "a comprehension before it": """
        def f(self, x):
            sizes = [x.shape for x in self.last]
            y = self.act(x)
            return self.lin(y, sizes) + x  # old
        """,
    "in a loop": """
        def f(self, x):
            for k in range(3):
                y = self.act(x)
                z = self.lin(y) + x  # old
                x = z
            return x
        """,
    "in a with block": """
        def f(self, x):
            with self.autocast():
                y = self.act(x)
                y = self.lin(y) + x  # old
            return y
        """,
    "a check of None": """
        def f(self, x, mask=None):
            y = self.act(x)
            if mask is not None and mask.any():
                y = y.masked_fill(mask, 0)
            return y - x  # old
        """,
    "an attribute in place": """
        def f(self, x):
            y = self.act(x)
            self.total += x  # old
            return y
        """,
}  # fmt: skip


def compiled(program: str) -> tuple[types.CodeType, str]:
    """The function of a program, and its text."""
    text = textwrap.dedent(program)
    (code,) = (each for each in compile(text, "program", "exec").co_consts if isinstance(each, types.CodeType))
    return code, text


def call_of(code: types.CodeType, text: str, words: str) -> int:
    """Offset of the instruction that makes the call of these words, by its place in the text."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    (node,) = (node for node in calls if ast.unparse(node.func) == words)
    place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
    return next(
        i.offset for i in dis.get_instructions(code) if i.opname in ("CALL", "CALL_KW") and i.positions == place
    )


def old_lines(text: str) -> list[int]:
    """The lines that are marked."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# old")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_where_the_old_value_is_used(name):
    """Exactly the marked lines load the old value, or use what was loaded; an instruction's cache belongs to it."""
    code, text = compiled(PROGRAMS[name])
    call = call_of(code, text, "self.act")
    want = old_lines(text)
    for offset in (call, call + 2):
        found = later_loads(code, offset)
        spans = [
            lines_of(code, load if any(s.offset == load for s in steps_of(code)) else load + 1) for load, _ in found
        ]
        assert all(load > call for load, _ in found)
        assert len(want) == len({line for _, line in found})
        assert all(any(first <= line <= last for line in want) for first, last in spans)


WITHOUT_COLUMNS = """
import dis, sys
from dispatchmon.hazards.old_names import later_loads
def f(self, x):
    y = self.act(x)
    return [x + 1 for x in y]
calls = [i for i in dis.get_instructions(f) if i.opname == "CALL"]
assert calls[0].positions.col_offset is None and not any(later_loads(f.__code__, i.offset) for i in calls)
"""


def test_without_columns_a_comprehensions_name_is_not_taken_for_the_old_one():
    """Where it ends is not known then: better no finding than a wrong one."""
    subprocess.run([sys.executable, "-X", "no_debug_ranges", "-c", WITHOUT_COLUMNS], check=True)


def test_where_names_of_a_caller_are_loaded():
    """Up to the next binding of each, in the order of the text, and not for a shape."""
    code, text = compiled("""
        def f(self, scores, kept):
            new = self.ban(scores)
            n = scores.shape[0]
            kept.append(new)
            if n:
                self.log(new, scores)
            scores = new
            return scores, kept
        """)
    call = call_of(code, text, "self.ban")
    assert [line for _, line in loads_after(code, call, ("scores", "kept"))] == [5, 7, 9]


@pytest.mark.parametrize(("words", "detach", "ends_in_"), [
    ("x.detach", True, None),
    ("x.add_", False, "add_"),
    ("torch.relu_", False, "relu_"),
    ("relu_", False, "relu_"),
    ("f", False, None),
])  # fmt: skip
def test_what_a_call_calls(words, detach, ends_in_):
    """By method, by function, by a global name."""
    argument = "" if detach else "x"
    code, text = compiled(f"""
        def g(x, f):
            y = {words}({argument})
            return y
        """)
    call = call_of(code, text, words)
    assert calls_method(code, call, "detach") == detach
    assert method_called(code, call) == ends_in_


def test_no_line_calls_what_is_an_operator():
    """`x += y` calls no method."""
    code, _ = compiled("""
        def f(x, y):
            x += y
            return x
        """)
    offset = next(i.offset for i in dis.get_instructions(code) if i.opname == "BINARY_OP")
    assert method_called(code, offset) is None


def codes(code):
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


@pytest.mark.parametrize(
    "name", ["ast", "argparse", "asyncio.tasks", "dataclasses", "inspect", "torch.nn.modules.activation"]
)
def test_the_steps_of_real_modules(name):
    """
    Every name that a function loads or stores by a fast instruction is one of its own; steps grow the stack as their
    instructions do, one by one; no call makes a question fail.
    """
    module = importlib.import_module(name)
    for code in codes(compile(inspect.getsource(module), module.__file__, "exec")):
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        steps = steps_of(code)
        for step in steps:
            if step.op in ("LOAD_FAST", "STORE_FAST", "DELETE_FAST"):
                assert step.name.removesuffix(" of a comprehension").removesuffix(" of a comprehension") in own
        grown = {offset: sum(s.grows for s in steps if s.offset == offset) for offset in {s.offset for s in steps}}
        for i in dis.get_instructions(code):
            if i.offset in grown and not (i.opname == "CALL" and sys.version_info < (3, 12)):
                assert grown[i.offset] == dis.stack_effect(i.opcode, i.arg, jump=False)
            if i.opname.startswith("CALL"):
                assert steps[at(steps, i.offset)].offset == i.offset
                later_loads(code, i.offset)
                loads_after(code, i.offset, code.co_varnames)
                method_called(code, i.offset)
