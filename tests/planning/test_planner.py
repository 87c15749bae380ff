"""Plans of a tiny model on eight fake devices, and their reports."""

import dataclasses
import functools

import pytest
from jax.sharding import Mesh

from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    MeshConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.planning import planner
from t2t.planning.chips import CHIPS
from t2t.planning.compile_step import CompiledStep, DeviceMemory, OutOfMemoryError
from t2t.planning.plan_report import describe, describe_meshes, to_json
from t2t.planning.planner import MeshPlan, list_meshes, plan_mesh, search_meshes
from t2t.planning.roofline import Roofline
from t2t.planning.topology import Topology, open_topology

CONFIG = Config(
    model=ModelConfig(num_layers=1, d_model=32, d_ff=64, num_heads=4, dropout=0.0),
    data=DataConfig(max_length=16, batch_tokens=256, num_shapes=2, length_multiple=8),
    tokenizer=TokenizerConfig(vocab_size=128),
    training=TrainingConfig(steps=3600),
)


@functools.cache
def plan(fsdp: int) -> MeshPlan:
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(data=-1, fsdp=fsdp))
    return plan_mesh(config, open_topology("cpu:8"), mean_length=8)


def read_roofline(found: MeshPlan) -> Roofline:
    """The roofline of the heaviest shape, which alone is compiled."""
    assert found.heaviest.roofline
    return found.heaviest.roofline


def test_parameters_are_sharded_over_fsdp_and_the_optimizer_over_data_too() -> None:
    whole, cut = (read_roofline(plan(fsdp)) for fsdp in (1, 8))
    parameters = whole.memory.parameters
    for part in (cut.memory.parameters, whole.memory.optimizer / 2, cut.memory.optimizer / 2):
        assert parameters / 8 < part < 1.3 * parameters / 8  # norms and biases are not sharded
    assert cut.memory.total < whole.memory.total


def test_collectives_are_those_of_the_mesh() -> None:
    whole, cut = (read_roofline(plan(fsdp)) for fsdp in (1, 8))
    parameters = whole.memory.parameters
    sums, gathers = (whole.collectives[f"all-{x} (data, network)"] for x in ("reduce", "gather"))
    assert len(whole.collectives) == 2  # of gradients, of new parameters
    assert parameters <= sums["bytes"] < 1.5 * parameters
    assert 0.8 * parameters < gathers["bytes"] <= parameters
    assert "all-gather (fsdp, network)" in cut.collectives


@pytest.mark.slow
def test_recurrence_sends_the_gradients_of_its_loops_once() -> None:
    """Checks that the loops do not send them in each iteration."""
    model = ModelConfig(kind="rnn", num_layers=1, d_model=32, dropout=0.0)
    config = dataclasses.replace(CONFIG, model=model)
    own = read_roofline(plan_mesh(config, open_topology("cpu:8"), mean_length=8))
    gradients = own.memory.parameters
    assert gradients <= own.collectives["all-reduce (data, network)"]["bytes"] < 1.5 * gradients
    assert not any("unknown" in remark for remark in own.remarks)  # loops of unknown length


def test_whole_training_takes_at_least_the_bounds_of_its_steps() -> None:
    """The shape that is not compiled counts with its FLOPs alone."""
    found = plan(1)
    own, recipe = read_roofline(found), found.recipe
    assert recipe
    compiled, other = found.shapes
    seconds = compiled.share * own.step_seconds_lower_bound
    seconds += other.share * other.padded_flops / (8 * 100e9)
    assert recipe.hours_lower_bound == pytest.approx(seconds)  # of 3,600 steps
    assert recipe.accelerator_hours_lower_bound == pytest.approx(8 * seconds)
    assert recipe.tokens_per_second_upper_bound * seconds == pytest.approx(recipe.tokens_per_step)
    assert recipe.bound_by == own.bound_by


def test_json_has_what_bounds_the_step_and_what_memory_is_for() -> None:
    result = to_json(plan(1), open_topology("cpu:8"))
    assert (result["fits"], result["mesh"]) == (True, {"data": 8, "fsdp": 1, "tensor": 1})
    assert result["step_seconds_lower_bound"] == result["seconds"][result["bound_by"]] > 0
    assert sum(result["memory"].values()) == result["memory_bytes"]


def test_report_says_what_is_assumed_of_several_tasks() -> None:
    mixture = ("translate: prefix=<2de>", "mend: objective=denoising prefix=<mend>")
    data = dataclasses.replace(CONFIG.data, mixture=mixture, train_weights=(1.0, 0.25))
    tokenizer = TokenizerConfig(vocab_size=128, sentinels=1)
    config = dataclasses.replace(CONFIG, data=data, tokenizer=tokenizer)
    topology = open_topology("cpu:8")
    found = plan_mesh(config, topology, mean_length=8)
    assert to_json(found, topology)["tasks"] == pytest.approx({"translate": 0.8, "mend": 0.2})
    assert (
        "examples of tasks: translate 80.0%, mend 20.0%, as if all corpora were equally large and "
        "all texts equally long\n"
    ) in describe(found, topology)
    assert "examples of tasks" not in describe(plan(1), topology)


def test_search_without_a_valid_mesh_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **_options: object) -> None:
        raise ConfigError("batches are too small")

    monkeypatch.setattr(planner, "plan_mesh", refuse)
    with pytest.raises(ConfigError, match=r"none of the 10 meshes is valid; data 8.*: batches are"):
        search_meshes(CONFIG, open_topology("cpu:8"), mean_length=8)


def test_search_sorts_what_fits_and_names_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a compiler: below fsdp 4 nothing fits, and each further split moves more bytes."""

    def compile_step(config: Config, mesh: Mesh, *_: object) -> CompiledStep:
        if config.mesh.fsdp < 4:
            raise OutOfMemoryError("RESOURCE_EXHAUSTED: Used 20.5G of 15.75G hbm.")
        count = 10**6 * (10 * config.mesh.fsdp + config.mesh.tensor)
        text = f"HloModule m\nENTRY %m () -> f32[] {{\n  ROOT %b = f32[{count}] copy()\n"
        return CompiledStep(text, DeviceMemory(1, 2, 3, 4, 5, 6), mesh.shape, [0] * 8)

    monkeypatch.setattr(planner, "compile_step", compile_step)
    topology = open_topology("cpu:8")
    plans, refused = search_meshes(CONFIG, topology, mean_length=8)
    assert {mesh.data for mesh in list_meshes(12)} == {3, 6, 12}
    order = [(found.mesh["fsdp"], found.mesh["tensor"]) for found in plans]
    assert order[:3] == [(4, 1), (4, 2), (8, 1)]
    assert [found.fits for found in plans] == [True] * 3 + [False] * 6
    assert plans[-1].heaviest.memory_bytes == round(20.5 * 2**30)
    assert plans[-1].recipe is None
    assert list(refused) == ["data 1, fsdp 1, tensor 8"]  # the model has four heads
    assert "model.num_heads=4" in refused["data 1, fsdp 1, tensor 8"]
    header, _, first, *lines, note, _ = describe_meshes(plans).splitlines()
    assert header.split() == "data fsdp tensor memory sent lower bound bound by hours".split()
    assert first.split()[-2] == "memory"
    assert lines[-1].split()[3:] == "22.01 GB DOES NOT FIT".split()
    assert note.startswith("Sorted by the lower bound, ")
    entry = to_json(plans[-1], topology)
    assert (entry["fits"], entry["flops"], entry["recipe"]) == (False, None, None)
    assert "does not fit" in describe(plans[-1], topology)


def test_plan_for_gpus_counts_kernels_and_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a compiler for two hosts of four GPUs."""
    text = """HloModule m
ENTRY %m () -> f32[] {
  %a = f32[9] parameter(0)
  %b = f32[18] all-gather(%a), replica_groups={{0,1},{2,3},{4,5},{6,7}}
  ROOT %c = f32[1000000] copy(%a)
"""

    def compile_step(_: Config, mesh: Mesh, *_sizes: object) -> CompiledStep:
        return CompiledStep(text, DeviceMemory(1, 2, 3, 4, 5, 6), mesh.shape, [0] * 4 + [1] * 4)

    monkeypatch.setattr(planner, "compile_step", compile_step)
    topology = Topology("h100:4x2", CHIPS["h100"], open_topology("cpu:8").devices)
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(4, 2, 1))
    plan = plan_mesh(config, topology, mean_length=8)
    assert list(read_roofline(plan).collectives) == ["all-gather (fsdp, NVLink)"]
    printed, result = describe(plan, topology), to_json(plan, topology)
    for words in ("that JAX takes", "kernels", "NVLink", "memory time", "states no time"):
        assert words in printed
    assert result["chip"]["host_bandwidth"] == 50e9
