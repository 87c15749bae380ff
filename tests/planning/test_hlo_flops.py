"""Products as the two compilers write them: TPU's are convolutions, batches spatial dimensions."""

import math

import pytest

from t2t.planning.hlo import parse_module
from t2t.planning.hlo_flops import count_flops


def count(left: str, right: str, result: str, opcode: str, attributes: str) -> int:
    text = f"""HloModule test, num_partitions=1

ENTRY %main (a: {left}, b: {right}) -> {result} {{
  %a = {left}{{1,0}} parameter(0)
  %b = {right}{{1,0}} parameter(1)
  ROOT %out = {result}{{1,0}} {opcode}(%a, %b), {attributes}
}}
"""
    scope = parse_module(text).computations["main"]
    return count_flops(scope["out"], scope)


def test_product_of_matrices() -> None:
    attributes = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    assert count("f32[5,7]", "f32[7,3]", "f32[5,3]", "dot", attributes) == 2 * 5 * 7 * 3


def test_product_of_batches_with_two_contracted_dimensions() -> None:
    attributes = (
        "lhs_batch_dims={0}, lhs_contracting_dims={1,3}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={2,1}"
    )
    found = count("f32[4,5,6,7]", "f32[4,7,5,9]", "f32[4,6,9]", "dot", attributes)
    assert found == 2 * 4 * 5 * 6 * 7 * 9


@pytest.mark.parametrize(
    ("left", "right", "result", "attributes", "product"),
    [
        ("64,256", "256,512", "64,512", "dim_labels=bf_io->bf", (64, 256, 512)),
        (
            "64,32,256", "1,256,512", "64,32,512",
            "window={size=1}, dim_labels=0bf_0io->0bf", (64, 32, 256, 512),
        ),
        (  # BTD,DGE->BTGE: the groups G slide over the kernel
            "64,32,256,1", "256,4,192,1", "64,32,4,192",
            "window={size=1x4 pad=0_0x3_3 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f",
            (64, 32, 256, 4, 192),
        ),
        (  # BTHE,HED->BTD: heads are summed over
            "64,32,4,64", "4,64,256,1", "64,32,256,1",
            "window={size=1x4}, dim_labels=0b1f_1io0->0bf1", (64, 32, 4, 64, 256),
        ),
        (  # BTGK,BSGK->BGTS: both batch dimensions as dilated windows
            "16,32,4,64", "16,24,4,64", "16,4,32,24",
            "window={size=16x4 stride=15x3 lhs_dilate=16x4}, dim_labels=0b1f_0o1i->01bf",
            (16, 4, 32, 24, 64),
        ),
        (  # a sum over batch and positions: the weights' gradient
            "8,32,256", "8,32,512", "1,256,512",
            "window={size=8}, dim_labels=0fb_0io->0bf", (8, 32, 256, 512),
        ),
    ],
)  # fmt: skip
def test_products_written_as_convolutions(
    left: str, right: str, result: str, attributes: str, product: tuple[int, ...]
) -> None:
    left, right, result = (f"bf16[{sizes}]" for sizes in (left, right, result))
    assert count(left, right, result, "convolution", attributes) == 2 * math.prod(product)


def test_padding_is_not_multiplied() -> None:
    """A window of three over five positions with one zero on each side: 3 * 5 - 2 places."""
    attributes = "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f"
    found = count("f32[2,5,6]", "f32[3,6,7]", "f32[2,5,7]", "convolution", attributes)
    assert found == 2 * 2 * 6 * 7 * (3 * 5 - 2)


def test_groups_of_features_meet_their_own_inputs_only() -> None:
    attributes = "window={size=1}, dim_labels=b0f_0io->b0f, feature_group_count=3"
    found = count("f32[2,5,6]", "f32[1,2,9]", "f32[2,5,9]", "convolution", attributes)
    assert found == 2 * (2 * 5) * 2 * 9


def test_elementwise_operations_are_not_counted() -> None:
    assert count("f32[5,7]", "f32[5,7]", "f32[5,7]", "multiply", "metadata={}") == 0
