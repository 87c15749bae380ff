"""FLOPs of the products and convolutions in optimised HLO; nothing elementwise."""

import math
import re

import numpy as np

from t2t.planning.hlo import Instruction, Scope


def count_flops(instruction: Instruction, scope: Scope) -> int:
    """Of a product or a convolution, a multiplication and an addition being two; else none."""
    if instruction.opcode == "dot":
        left = scope[instruction.operands[0]].arrays[0].shape
        contracted = instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}") or ""
        inner = math.prod(left[int(i)] for i in contracted.split(",") if i)
        return 2 * math.prod(instruction.arrays[0].shape) * inner
    if instruction.opcode == "convolution":
        return _count_convolution(instruction, scope)
    return 0


def _count_convolution(own: Instruction, scope: Scope) -> int:
    """The TPU compiler writes all products as convolutions, batches as spatial dimensions.

    Multiplications with the zeros of padding and dilation are not counted.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", own.attributes)
    assert labels is not None
    shapes = [scope[name].arrays[0].shape for name in own.operands[:2]] + [own.arrays[0].shape]
    image, kernel, result = (
        dict(zip(names, shape, strict=True))
        for names, shape in zip(labels.groups(), shapes, strict=True)
    )
    products: int = kernel["i"] * result["f"] * image["b"]
    products //= int(own.attribute(r"batch_group_count=(\d+)") or 1)
    window = dict(re.findall(r"(\w+)=([\dx_\-]+)", own.attribute(r"window=\{([^}]*)\}") or ""))
    for axis in (name for name in result if name.isdigit()):
        number = int(axis)

        def choose(field: str, number: int = number) -> int:
            return int(window[field].split("x")[number]) if field in window else 1

        before = int(window["pad"].split("x")[number].split("_")[0]) if "pad" in window else 0
        positions = (
            np.arange(result[axis])[:, None] * choose("stride")
            + np.arange(kernel[axis]) * choose("rhs_dilate")
            - before
        )
        inside = (positions >= 0) & (positions < image[axis] * choose("lhs_dilate"))
        products *= int(np.sum(inside & (positions % choose("lhs_dilate") == 0)))
    return 2 * products
