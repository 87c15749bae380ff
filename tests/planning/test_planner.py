"""Plans of a tiny model on eight fake devices, and their reports."""

import dataclasses
import functools

import pytest

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
from t2t.planning.plan_report import describe, to_json
from t2t.planning.planner import MeshPlan, list_meshes, plan_mesh, rank_plans, search_meshes
from t2t.planning.search_report import describe_search, to_search_json
from t2t.planning.topology import Topology, open_topology

CONFIG = Config(
    model=ModelConfig(num_layers=1, d_model=32, d_ff=64, num_heads=4, dropout=0.0),
    data=DataConfig(max_length=16, batch_tokens=256, num_shapes=2, length_multiple=8),
    tokenizer=TokenizerConfig(vocab_size=128),
    training=TrainingConfig(steps=3600),
)
KEYS = """
    fits memory_bytes flops model_flops hbm_bytes estimated_cycles collectives
    step_seconds_lower_bound step_seconds_estimate step_seconds_range
""".split()


@functools.cache
def plan(fsdp: int) -> MeshPlan:
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(data=-1, fsdp=fsdp))
    return plan_mesh(config, open_topology("cpu:8"), mean_length=8)


@pytest.mark.slow
def test_compiler_counts_the_flops_of_the_closed_form() -> None:
    """Uses a wide model: the compiler also counts elementwise operations, few in a wide one."""
    model = dataclasses.replace(CONFIG.model, d_model=512, d_ff=2048)
    config = dataclasses.replace(CONFIG, model=model)
    heaviest = plan_mesh(config, open_topology("cpu:8"), mean_length=8).heaviest
    assert heaviest.estimate is not None
    assert heaviest.estimate.compiled_flops == pytest.approx(heaviest.estimate.flops, rel=0.03)
    assert heaviest.model_flops < heaviest.estimate.flops


def test_parameters_are_sharded_over_fsdp_and_the_optimizer_over_data_too() -> None:
    whole, cut = (plan(fsdp).heaviest.estimate for fsdp in (1, 8))
    assert whole is not None
    assert cut is not None
    parameters = whole.memory.parameters
    for part in (cut.memory.parameters, whole.memory.optimizer / 2, cut.memory.optimizer / 2):
        assert parameters / 8 < part < 1.3 * parameters / 8  # norms and biases are not sharded
    assert cut.memory.total < whole.memory.total


def test_collectives_are_those_of_the_mesh() -> None:
    whole, cut = (plan(fsdp).heaviest.estimate for fsdp in (1, 8))
    assert whole is not None
    assert cut is not None
    parameters = whole.memory.parameters
    assert set(whole.collectives) == {"all-reduce", "all-gather"}  # of gradients, of new parameters
    assert parameters <= whole.collectives["all-reduce"]["bytes"] < 1.5 * parameters
    assert 0.8 * parameters < whole.collectives["all-gather"]["bytes"] <= parameters
    assert "all-gather" in cut.collectives


@pytest.mark.slow
def test_recurrence_sends_the_gradients_of_its_loops_once() -> None:
    """Checks that the loops do not send them in each iteration."""
    model = ModelConfig(kind="rnn", num_layers=1, d_model=32, dropout=0.0)
    config = dataclasses.replace(CONFIG, model=model)
    heaviest = plan_mesh(config, open_topology("cpu:8"), mean_length=8).heaviest
    own = heaviest.estimate
    assert own is not None
    gradients = own.memory.parameters
    assert gradients <= own.collectives["all-reduce"]["bytes"] < 1.5 * gradients
    assert not any("unknown" in remark for remark in own.remarks)  # loops of unknown length


def test_whole_training_is_estimated_from_the_step() -> None:
    found = plan(1)
    training, own = found.training, found.heaviest.estimate
    assert training is not None
    assert own is not None
    time = training.time
    assert time is not None
    assert time.mean_step_seconds == pytest.approx(own.step_seconds_estimate, rel=0.5)
    assert time.hours == pytest.approx(time.mean_step_seconds)  # of 3,600 steps
    assert time.accelerator_hours == pytest.approx(8 * time.hours)
    assert time.tokens_per_second * time.mean_step_seconds == pytest.approx(
        training.tokens_per_step
    )


def test_json_has_the_documented_keys() -> None:
    result = to_json(plan(1), open_topology("cpu:8"))
    assert {key: type(result[key]).__name__ for key in KEYS} == {
        "fits": "bool",
        "memory_bytes": "int",
        "flops": "float",
        "model_flops": "float",
        "hbm_bytes": "int",
        "estimated_cycles": "NoneType",  # only the TPU compiler has them
        "collectives": "dict",
        "step_seconds_lower_bound": "float",
        "step_seconds_estimate": "float",
        "step_seconds_range": "tuple",
    }
    assert result["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1}
    assert 0 < result["step_seconds_lower_bound"] <= result["step_seconds_estimate"]
    assert sum(result["memory"].values()) == result["memory_bytes"]


def test_table_names_all_that_was_asked_for() -> None:
    lines = describe(plan(8), open_topology("cpu:8")).splitlines()
    names = {line.split("  ")[0] for line in lines if line and not line.startswith(" ")}
    assert {
        "memory", "FLOPs", "HBM traffic", "all-gather", "lower bound", "estimate",
        "tokens per second", "hours", "accelerator-hours",
    } <= names  # fmt: skip


def test_meshes_are_all_products_that_cover_the_devices() -> None:
    sizes = [dataclasses.astuple(mesh) for mesh in list_meshes(8)]
    assert len(sizes) == len(set(sizes)) == 10
    assert {data * fsdp * tensor for data, fsdp, tensor in sizes} == {8}
    assert {mesh.data for mesh in list_meshes(12)} == {3, 6, 12}


def test_search_without_a_valid_mesh_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **_options: object) -> None:
        raise ConfigError("batches are too small")

    monkeypatch.setattr(planner, "plan_mesh", refuse)
    with pytest.raises(ConfigError, match=r"none of the 10 meshes is valid; data 8.*: batches are"):
        search_meshes(CONFIG, open_topology("cpu:8"), mean_length=8)


def test_search_ranks_what_fits_and_names_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a compiler: below fsdp 4 nothing fits, and each further split is slower.

    The fastest two meshes differ by 2%, which is less than the error.
    """

    def compile_step(config: Config, *_: object) -> CompiledStep:
        if config.mesh.fsdp < 4:
            raise OutOfMemoryError("RESOURCE_EXHAUSTED: Used 20.5G of 15.75G hbm.")
        count = 10**6 * (10 * config.mesh.fsdp + config.mesh.tensor)
        text = f"HloModule m\nENTRY %m () -> f32[] {{\n  ROOT %b = f32[{count}] copy()\n"
        return CompiledStep(text, DeviceMemory(1, 2, 3, 4, 5, 6))

    monkeypatch.setattr(planner, "compile_step", compile_step)
    plans, refused = search_meshes(CONFIG, open_topology("cpu:8"), mean_length=8)
    order = [(found.mesh["fsdp"], found.mesh["tensor"]) for found in plans]
    assert order[:3] == [(4, 1), (4, 2), (8, 1)]
    assert [found.fits for found in plans] == [True] * 3 + [False] * 6
    assert plans[-1].heaviest.memory_bytes == round(20.5 * 2**30)
    assert plans[-1].training is None
    assert list(refused) == ["data 1, fsdp 1, tensor 8"]  # the model has four heads
    assert "model.num_heads=4" in refused["data 1, fsdp 1, tensor 8"]
    assert rank_plans(plans) == [1, 1, 3] + [None] * 6
    _, _, *lines, _, error = describe_search(plans).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "1", "3"] + ["-"] * 6
    assert lines[-1].split()[4:] == "22.01 GB does not fit".split()
    assert "10%" in describe_search(plans)
    assert "no run on a TPU has tested" in error
    ranks = [entry["rank"] for entry in to_search_json(plans, {}, open_topology("cpu:8"))["search"]]
    assert ranks == rank_plans(plans)
    entry = to_json(plans[-1], open_topology("cpu:8"))
    assert (entry["fits"], entry["flops"], entry["recipe"]) == (False, None, None)
    assert "does not fit" in describe(plans[-1], open_topology("cpu:8"))


@pytest.fixture
def compiled_for_gpus(monkeypatch: pytest.MonkeyPatch) -> Topology:
    """Two hosts of four GPUs, and a compiler for which more fsdp is more traffic."""
    line = "%b = f32[{}] all-gather(%a), replica_groups={{{{0,1}},{{2,3}},{{4,5}},{{6,7}}}}"
    text = "HloModule m\nENTRY %m () -> f32[] {{\n  %a = f32[9] parameter(0)\n  {}\n  {}\n"

    def compile_step(config: Config, *_: object) -> CompiledStep:
        copy = f"ROOT %c = f32[{10**6 * config.mesh.fsdp}] copy(%a)"
        places = [(0, host, gpu) for host in range(2) for gpu in range(4)]
        size = 90e9 if config.mesh.tensor > 1 else 6
        memory = DeviceMemory(1, 2, 3, 4, 5, int(size))
        return CompiledStep(text.format(line.format(18), copy), memory, None, places)

    monkeypatch.setattr(planner, "compile_step", compile_step)
    return Topology("h100:4x2", CHIPS["h100"], open_topology("cpu:8").devices)


def test_plan_for_gpus_ends_with_the_lower_bound(compiled_for_gpus: Topology) -> None:
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(4, 2, 1))
    plan = plan_mesh(config, compiled_for_gpus, mean_length=8)
    own, training = plan.heaviest.estimate, plan.training
    assert own is not None
    assert own.kernels is not None
    assert sum(kernels["count"] for kernels in own.kernels.values()) == 2
    assert (own.step_seconds_estimate, own.step_seconds_range) == (None, None)
    assert own.step_seconds_lower_bound == own.seconds["memory"]
    assert list(own.collectives) == ["all-gather (NVLink)"]
    assert training is not None
    assert training.time is None
    text, result = describe(plan, compiled_for_gpus), to_json(plan, compiled_for_gpus)
    for words in ("that JAX takes", "kernels", "NVLink", "memory time", "states no times"):
        assert words in text
    assert not any(words in text for words in ("hours", "tokens per second", "of the peak"))
    assert result["recipe"]["hours"] is None
    assert result["recipe"]["tokens_per_step"] == training.tokens_per_step
    assert result["chip"]["host_bandwidth"] == 50e9


def test_search_on_gpus_sorts_by_the_lower_bound_and_says_so(compiled_for_gpus: Topology) -> None:
    plans, _ = search_meshes(CONFIG, compiled_for_gpus, mean_length=8)
    bounds = [
        plan.heaviest.estimate.step_seconds_lower_bound
        for plan in plans
        if plan.fits and plan.heaviest.estimate
    ]
    assert len(bounds) == 4
    assert bounds == sorted(bounds)
    assert [plan.mesh["fsdp"] for plan in plans[:4]] == [1, 2, 4, 8]
    assert rank_plans(plans) == [None] * len(plans)
    header, _, first, *others = describe_search(plans).splitlines()
    assert header.split() == "data fsdp tensor memory sent lower bound limit".split()
    assert first.split()[-1] == "memory"
    assert sum("does not fit" in line for line in others) == len(plans) - 4
    assert "sorted by the lower bound" in describe_search(plans)


def test_mesh_that_cannot_cut_the_model_is_refused_before_compiling() -> None:
    model = dataclasses.replace(CONFIG.model, d_model=36)
    config = dataclasses.replace(CONFIG, model=model, mesh=MeshConfig(1, 8, 1))
    with pytest.raises(ConfigError, match=r"model\.d_model=36 cannot be split into mesh\.fsdp=8"):
        plan_mesh(config, open_topology("cpu:8"))
