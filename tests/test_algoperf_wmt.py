"""AlgoPerf's recipe: a small model trains and is evaluated; the whole one is planned."""

from pathlib import Path

import pytest

from configs import algoperf_wmt
from t2t.api import train_run
from t2t.api.evaluate_run import evaluate
from t2t.config.fields import Config
from t2t.evaluation.requests import EvaluationRequest
from t2t.ops.flops import count_parameters
from t2t.planning.planner import plan_mesh
from t2t.planning.topology import open_topology
from t2t.runtime.jax_settings import list_plugins
from tests.tiny_training import change, read_figures

OPTIMIZERS = ["schedule_free_adamw", "nadamw"]
STEPS = 20


def make_small(optimizer: str, cache: Path) -> Config:
    """The recipe at reduced width, on the phrasebook."""
    return change(
        algoperf_wmt.get_config(optimizer),
        model={"num_layers": 1, "d_model": 32, "d_ff": 32, "num_heads": 2},
        data={
            "source": "phrasebook", "tfds_held_out_name": "", "cache_directory": str(cache),
            "max_length": 64, "packed_length": 64, "batch_tokens": 512,
        },
        tokenizer={"vocab_size": 400},
        training={
            "steps": STEPS, "warmup_steps": 2, "learning_rate": 0.01, "log_every": 1,
            "validate_every": 10, "bleu_every": 0,
        },
        checkpoints={"every": 10, "best_metric": "loss"},
        decoding={"beam_size": 1, "max_extra_length": 1},
    )  # fmt: skip


def test_parameters_are_those_of_the_workload() -> None:
    """Base has 6 + 6 layers: 18 attentions, 12 feed-forwards with biases, 32 norms, one table."""
    d_model = d_ff = 1024
    layers = 18 * 4 * d_model**2 + 12 * (2 * d_model * d_ff + d_ff + d_model)
    for optimizer in OPTIMIZERS:
        config = algoperf_wmt.get_config(optimizer)
        count = count_parameters(config.model, *[config.tokenizer.vocab_size] * 2)
        assert count == 32_000 * d_model + layers + 32 * 2 * d_model


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens, which take seconds to make."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_small_recipe_trains_and_is_evaluated(optimizer: str, cache: Path, tmp_path: Path) -> None:
    config = make_small(optimizer, cache)
    assert train_run.train(config, tmp_path / "whole")
    losses = [line["train/loss"] for line in read_figures(tmp_path / "whole", "train/")]
    assert losses[-1] < losses[0]

    first, validated = read_figures(tmp_path / "whole", "validation/")
    assert validated["validation/loss"] < first["validation/loss"]
    request = EvaluationRequest(tmp_path / "whole", checkpoint=str(STEPS), split="validation")
    evaluated = evaluate(request).result
    assert evaluated["measures"]["perplexity"]["value"] == pytest.approx(
        validated["validation/perplexity"], rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_cached")
def test_whole_recipe_is_planned() -> None:
    if not any(plugin.startswith("xla_cuda") for plugin in list_plugins()):
        pytest.skip("the extra cuda is not installed")
    plan = plan_mesh(algoperf_wmt.get_config(), open_topology("h100:8"))
    assert plan.fits
    [compiled] = plan.compiled
    assert (compiled.shape.rows, compiled.shape.src_length) == (128, 256)
