"""Instructions, types and sizes that are parsed from HLO text."""

import pytest

from t2t.planning.hlo_parser import count_bits, parse_module


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("pred[3]{0}", 3),
        ("bf16[2,5]{1,0:T(8,128)(2,1)}", 20),
        ("f8e4m3fn[7]", 7),
        ("f4e2m1fn[10]", 5),
        ("f8e8m0fnu[7]", 7),
        ("s4[10]", 5),
        ("u1[16]", 2),
        ("c64[2]", 16),
        ("f32[<=6,2]", 48),
        ("token[]", 0),
        ("f32[0,4]", 0),
    ],
)
def test_size_of_an_array(text: str, num_bytes: int) -> None:
    line = f"  %p.1 = {text} parameter(1)"
    module = parse_module("ENTRY %m () -> f32[] {\n" + line + "\n}")
    assert module.computations["m"]["p.1"].num_bytes == num_bytes


def test_unknown_dtype_has_no_size() -> None:
    assert count_bits("q9") is None
