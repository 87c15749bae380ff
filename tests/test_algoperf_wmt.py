"""AlgoPerf's recipe: the size of its model, and its plan for eight GPUs."""

import pytest

from configs import algoperf_wmt
from t2t.model.flops import count_parameters
from t2t.planning.planner import plan_mesh
from t2t.planning.topology import open_topology
from t2t.runtime.jax_settings import list_plugins

OPTIMIZERS = ["schedule_free_adamw", "nadamw"]


def test_parameters_are_those_of_the_workload() -> None:
    """Base has 6 + 6 layers: 18 attentions, 12 feed-forwards with biases, 32 norms, one table."""
    d_model = d_ff = 1024
    layers = 18 * 4 * d_model**2 + 12 * (2 * d_model * d_ff + d_ff + d_model)
    for optimizer in OPTIMIZERS:
        config = algoperf_wmt.get_config(optimizer)
        count = count_parameters(config.model, *[config.tokenizer.vocab_size] * 2)
        assert count == 32_000 * d_model + layers + 32 * 2 * d_model


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_cached")
def test_whole_recipe_is_planned() -> None:
    if not any(plugin.startswith("xla_cuda") for plugin in list_plugins()):
        pytest.skip("the extra cuda is not installed")
    plan = plan_mesh(algoperf_wmt.get_config(), open_topology("h100:8"))
    assert plan.fits
    [compiled] = plan.compiled
    assert (compiled.shape.rows, compiled.shape.src_length) == (128, 256)
