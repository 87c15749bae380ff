"""`model.kernels=textbook`: programs that compute only with the formulas."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t2t.api import train_run
from t2t.api.run_summary import describe_run
from t2t.config.fields import Config
from t2t.config.files import load_config, override
from t2t.ops.select_kernels import choose_policy
from t2t.training.checkpoint import restore_params
from tests.tiny_training import make_config, make_small_mesh, read_figures

STEPS = 3


VALUES: dict[str, dict[str, Any]] = {
    "one device": {"model.dtype": "float32", "mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1},
    "float32": {"model.dtype": "float32"},
    "bfloat16": {"model.dtype": "bfloat16"},
    "R-Drop, packed rows": {
        "model.dtype": "float32", "training.r_drop": 5.0, "data.packed_length": 64,
        "data.train_weights": (1.0, 1.0),
    },
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=["one device", *(pytest.param(x, marks=pytest.mark.slow) for x in list(VALUES)[1:])],
)
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Run directories of both kernels, trained for a few steps on one device or on eight."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "one device":
            patch.setattr(train_run, "make_mesh", make_small_mesh)
        for kernels in ("auto", "textbook"):
            config = override(make_small_config(folder, kernels), VALUES[request.param])
            assert train_run.train(config, folder / kernels)
        yield folder


def make_small_config(folder: Path, kernels: str) -> Config:
    values = {"training.steps": STEPS, "training.log_every": 1, "training.validate_every": STEPS}
    values |= {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "checkpoints.every": STEPS}
    return override(make_config(folder), values | {"model.kernels": kernels})


@pytest.mark.slow
@pytest.mark.equality
def test_textbook_trains_to_the_same_parameters(runs: Path) -> None:
    found, wanted = (restore_params(runs / name, "last")[0] for name in ("textbook", "auto"))
    narrow = load_config(runs / "auto" / "config.json").model.dtype == "bfloat16"
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-2 if narrow else 1e-4)
    # Three updates by Adam move a parameter by less than 1e-2, so gradients are compared as well.
    figures = [read_figures(runs / name, "train/") for name in ("textbook", "auto")]
    for one, other in zip(*figures, strict=True):
        for name in ("train/loss", "train/gradient_norm"):
            assert one[name] == pytest.approx(other[name], rel=2e-2 if narrow else 1e-4)


def test_runs_say_which_module_computes_each_operation(runs: Path) -> None:
    lines = {name: describe_run(runs / name) for name in ("auto", "textbook")}
    assert "attention ops.cached_attention, ops.recomputed_attention" in lines["auto"]
    assert "smoothed_cross_entropy ops.chunked_loss" in lines["auto"]
    assert "attention model.attention" in lines["textbook"]
    operations = lines["textbook"].split("operations")[1].splitlines()[0]
    assert "ops." not in operations.replace("ops.select_kernels", "")


def test_policy_of_accelerators_is_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config().model
    policy = choose_policy(config)
    assert {str(policy.dtype), str(policy.product_dtype)} == {"float32"}  # on a CPU
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: "gpu")
    assert str(choose_policy(config).dtype) == "bfloat16"
    mixed = choose_policy(dataclasses.replace(config, dtype="mixed"))
    assert (str(mixed.dtype), str(mixed.product_dtype)) == ("float32", "bfloat16")
