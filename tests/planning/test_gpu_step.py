"""The train steps of base and big, compiled for H100s: what kernels compute, move and send.

A step that takes more bytes, kernels or memory than it did is noticed here; no GPU is needed. The
limits are 2% above the figures of jax 0.11.2 with CUDA 12 (docs/gpu.md). If a newer compiler or a
deliberate change exceeds one, measure what it costs before you raise the limit.
"""

import functools
import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.gpu_steps.first import VARIANTS, trace_variant
from benchmarks.gpu_steps.training import BASE
from t2t.config.fields import Config, MeshConfig
from t2t.planning.compile_step import CompiledStep, compile_step, lower_step
from t2t.planning.hlo_parser import HloModule, Instruction, parse_module
from t2t.planning.hlo_traffic import measure_cost
from t2t.planning.topology import open_topology
from t2t.runtime.jax_settings import list_plugins
from t2t.runtime.mesh import make_mesh
from tests.tiny_training import change

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(name.startswith("xla_cuda") for name in list_plugins()),
        reason="the extra cuda is not installed",
    ),
    pytest.mark.usefixtures("nothing_cached"),
]
POSITIONS = 32_768  # of the source on each GPU, and as many of the target
LAYERS, VOCABULARY = 12, 37_000
NORMS = 6 * 2 + 6 * 3  # one after each sub-layer


@functools.cache
def compile_recipe(
    recipe: str, gpus: int, kernels: str = "auto", axis: str = "data"
) -> CompiledStep:
    """The GPUs are all on one axis of the mesh."""
    config: Config = importlib.import_module(f"configs.{recipe}").get_config()
    config.data.batch_tokens = gpus * POSITIONS
    config.model.kernels = kernels
    length = config.data.packed_length
    sizes = MeshConfig(**{"data": 1, axis: gpus})
    mesh = make_mesh(sizes, open_topology(f"h100:{gpus}").devices)
    return compile_step(config, mesh, gpus * POSITIONS // length, length, length)


def compile_base() -> CompiledStep:
    return compile_recipe("base", 1)


def list_products(module: HloModule) -> Iterator[tuple[Instruction, set[str]]]:
    """The kernels that multiply, with the opcodes of all that they compute."""
    for kernel in module.computations[module.entry].values():
        opcodes, inside = set(), [kernel]
        while inside:
            one = inside.pop()
            opcodes.add(one.opcode)
            if one.opcode == "fusion":
                for called in one.called("calls"):
                    inside += module.computations[called].values()
        if "dot" in opcodes:
            yield kernel, opcodes


def test_exp_and_biases_are_computed_inside_of_products() -> None:
    """Outside of them they would read and write whole activations, or the logits."""
    products = [*list_products(parse_module(compile_base().text))]
    logits = [own for kernel, own in products if f"bf16[{POSITIONS},{VOCABULARY}]" in kernel.type]
    assert ["exponential" in opcodes for opcodes in logits] == [True]
    biased = [kernel.type for kernel, opcodes in products if {"dot", "add"} <= opcodes]
    for width in (2048, 512):
        assert sum(f"bf16[{POSITIONS},{width}]" in kind for kind in biased) == LAYERS


def test_attention_is_cudnns_and_causal_in_the_decoder() -> None:
    text = compile_base().text
    assert text.count('"mask_type": "CAUSAL"') == LAYERS  # six layers, forward and backward
    assert text.count('custom_call_target="__cudnn$fmhaScaleBiasSoftmaxBackward"') == 18


def test_step_takes_no_more_bytes_kernels_and_memory_than_before() -> None:
    cost, memory = measure_cost(compile_base().text), compile_base().memory
    assert cost.hbm_bytes < 1.02 * 69.71e9
    assert sum(kind.count for kind in cost.kernels.values()) < 1.02 * 1030
    assert memory.total < 1.02 * 9.974e9


@pytest.mark.parametrize(
    ("recipe", "axis", "megabytes"),
    [
        ("base", "data", 518.6),
        ("base", "fsdp", 527.4),
        ("big", "data", 1807.9),
    ],
)
def test_step_on_eight_gpus_sends_no_more_bytes_than_before(
    recipe: str, axis: str, megabytes: float
) -> None:
    collectives = measure_cost(compile_recipe(recipe, 8, axis=axis).text).collectives
    assert sum(one.times * one.sent_bytes for one in collectives) < 1.02e6 * megabytes


# GB that kernels move, kernels, GB of memory, MB sent by each GPU.
WITH_FUSED_NORM: dict[tuple[str, int, str], tuple[float, int, float, float]] = {
    ("base", 1, "data"): (64.64, 893, 9.658, 0),
    ("big", 1, "data"): (124.02, 869, 18.072, 0),
    ("base", 8, "data"): (64.20, 1209, 9.142, 518.6),
}


@pytest.mark.parametrize(("recipe", "gpus", "axis"), WITH_FUSED_NORM)
def test_norm_in_one_kernel_takes_no_more_than_before(recipe: str, gpus: int, axis: str) -> None:
    """Operands and results of the kernel count, as those of any other kernel."""
    step = compile_recipe(recipe, gpus, "fused_norm", axis)
    cost = measure_cost(step.text)
    sent = sum(one.times * one.sent_bytes for one in cost.collectives)
    found = cost.hbm_bytes / 1e9, sum(kind.count for kind in cost.kernels.values())
    figures = *found, step.memory.total / 1e9, sent / 1e6
    before = WITH_FUSED_NORM[recipe, gpus, axis]
    assert all(own <= 1.02 * one for own, one in zip(figures, before, strict=True))
    calls = re.findall(
        r'custom_call_target="__gpu[$]xla.gpu.triton".*?op_name="([^"]*)"', step.text
    )
    assert len([name for name in calls if "add_and_norm" in name]) == 2 * NORMS


def test_measurements_on_a_gpu_can_leave_out_each_change_and_add_the_norm() -> None:
    config = BASE.config(dry_run=True)
    mesh = make_mesh(config.mesh, open_topology("h100:1").devices)

    def trace(**fields: Any) -> str:
        return lower_step(change(config, model=fields), mesh, 4, 32, 32)[0].as_text()

    programs = [trace()]
    for name in VARIANTS:
        with trace_variant(name) as fields:
            programs.append(trace(**fields))
    assert trace() == programs[0]
    assert len(set(programs)) == 1 + len(VARIANTS)
