"""Instructions, types and sizes that are parsed from HLO text."""

import pytest

from t2t.planning.hlo_parser import HloArray, count_bits, find_root, parse_module

TEXT = """\
HloModule jit_step, is_scheduled=true, replica_count=1, num_partitions=4

%body.1 (arg.1: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %arg.1 = (s32[]{:T(128)}, f32[2,3]{1,0:T(8,128)S(1)}) parameter(0)
  ROOT %copy.2 = (s32[], /*index=1*/f32[2,3]{1,0}) copy(%arg.1)
}

ENTRY %main.7_spmd (p.0: f32[2,3], p.1: bf16[4]) -> f32[2,3] {
  %p.0 = f32[2,3]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %p.1 = bf16[4]{0:T(256)(128)(2,1)} parameter(1)
  %wide-add.3 = f32[2,3]{1,0} add(%p.0, /*index=1*/%p.0), metadata={op_name="jit(step)/add"}
  ROOT %choice = f32[2,3]{1,0} conditional(%p.1, %p.0, %p.0), branch_computations={%a.1, %b.2}
}
"""


def test_computations_and_their_instructions_are_found() -> None:
    module = parse_module(TEXT)
    assert module.entry == "main.7_spmd"
    assert module.num_devices == 4
    assert list(module.computations) == ["body.1", "main.7_spmd"]
    assert list(module.computations["main.7_spmd"]) == ["p.0", "p.1", "wide-add.3", "choice"]
    assert find_root(module.computations["body.1"]).name == "copy.2"


def test_instruction_knows_its_operands_and_calls() -> None:
    scope = parse_module(TEXT).computations["main.7_spmd"]
    add, choice = scope["wide-add.3"], scope["choice"]
    assert (add.opcode, add.operands) == ("add", ("p.0", "p.0"))
    assert add.attribute(r'op_name="([^"]*)"') == "jit(step)/add"
    assert scope["p.1"].arguments == "1"
    assert choice.called("branch_computations", "calls") == ["a.1", "b.2"]
    assert choice.called("calls") == []


def test_types_are_read_with_their_memory() -> None:
    scope = parse_module(TEXT).computations["body.1"]
    counter, table = scope["arg.1"].arrays
    assert (counter, counter.num_bytes) == (HloArray("s32", 1, in_hbm=True), 4)
    assert (table, table.num_bytes) == (HloArray("f32", 6, in_hbm=False), 24)


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
