"""`model.kernels=textbook`: programs that compute only with the formulas."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t2t.api.train_run import train
from t2t.config.fields import Config, ModelConfig
from t2t.config.files import override
from t2t.ops.select_kernels import choose_policy, list_kernels
from t2t.training.checkpoint import restore_params
from tests.tiny_training import make_config, read_figures

STEPS = 3
VALUES: dict[str, dict[str, Any]] = {
    "float32": {"model.dtype": "float32"},
    "bfloat16": {"model.dtype": "bfloat16"},
    "R-Drop, packed rows": {
        "model.dtype": "float32", "training.r_drop": 5.0, "data.packed_length": 64,
        "data.train_weights": (1.0, 1.0),
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.equality
@pytest.mark.parametrize("name", VALUES)
def test_textbook_trains_to_the_same_parameters(name: str, tmp_path: Path) -> None:
    """In a few steps on eight devices."""
    values = {"training.steps": STEPS, "training.log_every": 1, "training.validate_every": STEPS}
    values |= {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "checkpoints.every": STEPS}
    runs = [tmp_path / kernels for kernels in ("textbook", "auto")]
    for run in runs:
        changes = values | VALUES[name] | {"model.kernels": run.name}
        assert train(override(make_config(tmp_path), changes), run)
    found, wanted = (restore_params(run, "last")[0] for run in runs)
    narrow = name == "bfloat16"
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-2 if narrow else 1e-4)
    # Three updates by Adam move a parameter by less than 1e-2, so gradients are compared as well.
    for one, other in zip(*(read_figures(run, "train/") for run in runs), strict=True):
        for figure in ("train/loss", "train/gradient_norm"):
            assert one[figure] == pytest.approx(other[figure], rel=2e-2 if narrow else 1e-4)


def test_module_of_each_operation_is_named() -> None:
    fast, textbook = (
        list_kernels(ModelConfig(kernels=kernels)) for kernels in ("auto", "textbook")
    )
    assert fast["attention"] == "ops.cached_attention, ops.recomputed_attention"
    assert fast["smoothed_cross_entropy"] == "ops.chunked_loss"
    assert textbook["attention"] == "model.attention"
    modules = {*textbook.values()} - {"ops.select_kernels"}
    assert not any(module.startswith("ops.") for module in modules)


def test_policy_of_accelerators_is_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config().model
    policy = choose_policy(config)
    assert {str(policy.dtype), str(policy.product_dtype)} == {"float32"}  # on a CPU
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: "gpu")
    assert str(choose_policy(config).dtype) == "bfloat16"
    mixed = choose_policy(dataclasses.replace(config, dtype="mixed"))
    assert (str(mixed.dtype), str(mixed.product_dtype)) == ("float32", "bfloat16")
