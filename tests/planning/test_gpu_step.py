"""The train steps of base and big, compiled for H100s: what kernels compute, move and send.

A step that takes more bytes, kernels or memory than it did is noticed here; no GPU is needed. The
limits are 2% above the figures of jax 0.11.2 with CUDA 12 (docs/gpu.md). If a newer compiler or a
deliberate change exceeds one, measure what it costs before you raise the limit.
"""

import functools
from collections.abc import Iterator

import pytest

from benchmarks.gpu_steps.first import CHANGES, leaving_out
from benchmarks.gpu_steps.training import BASE
from configs import base, big
from t2t.planning.compile_step import CompiledStep, compile_step, lower_step
from t2t.planning.hlo_parser import HloModule, Instruction, parse_module
from t2t.planning.hlo_traffic import measure_cost
from t2t.planning.topology import open_topology
from t2t.runtime.jax_settings import list_plugins
from t2t.runtime.mesh import make_mesh

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


def compile_model(model: str, gpus: int, fsdp: int = 1) -> CompiledStep:
    config = {"base": base, "big": big}[model].get_config()
    config.data.batch_tokens, config.mesh.fsdp = gpus * POSITIONS, fsdp
    length = config.data.packed_length
    mesh = make_mesh(config.mesh, open_topology(f"h100:{gpus}").devices)
    return compile_step(config, mesh, gpus * POSITIONS // length, length, length)


@functools.cache
def compile_base() -> CompiledStep:
    return compile_model("base", 1)


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
    ("model", "fsdp", "megabytes"),
    [("base", 1, 518.6), ("base", 8, 527.4), ("big", 1, 1807.9), ("big", 8, 1669.6)],
)
def test_step_on_eight_gpus_sends_no_more_bytes_than_before(
    model: str, fsdp: int, megabytes: float
) -> None:
    collectives = measure_cost(compile_model(model, 8, fsdp).text).collectives
    assert sum(one.times * one.sent_bytes for one in collectives) < 1.02e6 * megabytes


def test_measurements_on_a_gpu_can_leave_out_each_change() -> None:
    config = BASE.config(dry_run=True)
    mesh = make_mesh(config.mesh, open_topology("h100:1").devices)

    def trace() -> str:
        return lower_step(config, mesh, 4, 32, 32)[0].as_text()

    programs = [trace()]
    for name in CHANGES:
        with leaving_out(name):
            programs.append(trace())
    assert trace() == programs[0]
    assert len(set(programs)) == 1 + len(CHANGES)
