"""A run that changes its mesh has the losses of a run on one device."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t.api import evaluate_run, train_run
from t2t.config.fields import Config, MeshConfig
from t2t.evaluation.requests import EvaluationRequest
from t2t.runtime.mesh import make_mesh
from t2t.training.checkpoint import restore_params
from tests.tiny_training import change, make_config, mix_tasks, read_figures

STEPS = 10  # two and a half epochs
LOSSES = {
    "train/": ("train/loss", "train/gradient_norm", "train/padding_share"),
    "validation/": ("validation/loss", "validation/bleu"),
}


def train_on(
    devices: int, mesh: MeshConfig, config: Config, workdir: Path, steps: int = STEPS
) -> None:
    """Trains up to step `steps`."""

    def make_mesh_of_some(sizes: MeshConfig) -> Mesh:
        return make_mesh(sizes, jax.devices()[:devices])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "make_mesh", make_mesh_of_some)
        changed = change(config, mesh=vars(mesh), training={"steps": steps})
        assert train_run.train(changed, workdir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "platform"), [("adam", "cpu"), ("muon", "cpu"), ("adam", "gpu")]
)
def test_run_on_several_meshes_is_that_on_one_device(
    optimizer: str, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With muon it is a run of a mixture. `gpu`: CPUs with the operations of GPUs."""
    training = {"log_every": 1, "validate_every": 5, "translate_every": 5, "optimizer": optimizer}
    data = mix_tasks(tmp_path) if optimizer == "muon" else {}
    config = change(make_config(tmp_path), training=training, data=data)
    config.model.dtype = "float32"
    run, alone = tmp_path / "run", tmp_path / "alone"
    train_on(1, MeshConfig(), config, alone)
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: platform)
    train_on(8, MeshConfig(data=2, fsdp=2, tensor=2), config, run, steps=3)
    train_on(4, MeshConfig(data=2, tensor=2), config, run, steps=5)
    train_on(2, MeshConfig(fsdp=2, data=1), config, run, steps=7)
    train_on(8, MeshConfig(data=2, fsdp=4), config, run)
    for prefix, names in LOSSES.items():
        found = {figures["step"]: figures for figures in read_figures(run, prefix)}
        for wanted in read_figures(alone, prefix):
            for name in names:
                value = found[wanted["step"]][name]
                assert value == pytest.approx(wanted[name], rel=2e-5), wanted["step"]
    averages = (jax.tree.leaves(restore_params(path, "avg:2")[0]) for path in (run, alone))
    for one, two in zip(*averages, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)
    src, ref = config.data.validation_src, config.data.validation_tgt
    result = evaluate_run.evaluate(EvaluationRequest((run,), "avg:2", src=src, ref=(ref,))).result
    assert result["num_sentences"] == 8
