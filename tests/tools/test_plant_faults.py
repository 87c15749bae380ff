"""Faults of a function, and the tree that has one."""

import dataclasses

from scripts.plant_faults import find_faults, plant

SOURCE = '''
LIMIT = 3

def f(x: int = 1) -> int:
    """Adds 1."""
    assert x > 0
    if x < LIMIT:  # in range
        log(f"{x + 1}", 7)
        g(x, y)
        raise ValueError("of 9")
    return x + 2 * k(a, b)
'''


def test_faults_are_in_code_alone_and_not_in_messages() -> None:
    found = [(fault.line, fault.before, fault.after) for fault in find_faults(SOURCE, "f.py")]
    assert found == [
        (7, "x < LIMIT", "(not (x < LIMIT))"), (7, "<", "<="), (9, "g(x, y)", "pass"),
        (9, "x, y", "y, x"), (10, 'raise ValueError("of 9")', "pass"), (11, "+", "-"),
        (11, "*", "/"), (11, "2", "3"), (11, "a, b", "b, a"),
    ]  # fmt: skip


def test_fault_is_found_again_by_its_statement() -> None:
    *_, fault = find_faults(SOURCE, "f.py")
    moved = SOURCE.replace("LIMIT = 3", "LIMIT = 3\n\n")
    assert plant(moved, fault) == (moved.replace("a, b", "b, a"), fault.line + 2)
    assert plant(moved.replace("2 *", "3 *"), dataclasses.replace(fault, line=1)) is None
