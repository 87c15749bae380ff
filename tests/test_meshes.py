"""Training on any mesh has the losses of one device, and a run can change its mesh."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t.api import evaluate_run, train_run
from t2t.config.fields import Config, ConfigError, MeshConfig
from t2t.evaluation.requests import EvaluationRequest
from t2t.runtime.mesh import make_mesh
from t2t.training.checkpoint import restore_params
from tests.tiny_training import change, make_config, read_figures

pytestmark = pytest.mark.slow

MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "tensor": MeshConfig(data=2, tensor=4),
    "data and fsdp": MeshConfig(data=2, fsdp=4),
    "data, fsdp and tensor": MeshConfig(data=2, fsdp=2, tensor=2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("meshes")


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    """A config of 10 steps, two and a half epochs."""
    steps = {"steps": 10, "log_every": 1, "validate_every": 5, "bleu_every": 5}
    return change(make_config(folder), training=steps)


def train_on(
    devices: int, mesh: MeshConfig, config: Config, workdir: Path, steps: int = 10
) -> None:
    """Trains up to step `steps`."""

    def make_mesh_of_some(sizes: MeshConfig) -> Mesh:
        return make_mesh(sizes, jax.devices()[:devices])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "make_mesh", make_mesh_of_some)
        changed = change(config, mesh=vars(mesh), training={"steps": steps})
        assert train_run.train(changed, workdir)


@pytest.fixture(scope="module")
def on_one_device(config: Config, folder: Path) -> Path:
    train_on(1, MeshConfig(), config, folder / "one")
    return folder / "one"


def assert_same_losses(workdir: Path, other: Path, steps: int = 10) -> None:
    """Compares at every step of `other` up to `steps`."""
    for prefix, names in (
        ("train/", ("train/loss", "train/gradient_norm", "train/padding_share")),
        ("validation/", ("validation/loss", "validation/bleu")),
    ):
        found, wanted = (
            {figures["step"]: figures for figures in read_figures(path, prefix)}
            for path in (workdir, other)
        )
        for step in (step for step in wanted if step <= steps):
            for name in names:
                assert found[step][name] == pytest.approx(wanted[step][name], rel=2e-5), (
                    step,
                    name,
                )


@pytest.mark.parametrize("mesh", MESHES)
def test_losses_on_any_mesh_are_those_on_one_device(
    mesh: str, config: Config, on_one_device: Path, tmp_path: Path
) -> None:
    train_on(8, MESHES[mesh], config, tmp_path / "run", steps=5)
    assert_same_losses(tmp_path / "run", on_one_device, steps=5)


def test_run_continues_on_fewer_devices_and_another_mesh(
    config: Config, on_one_device: Path, tmp_path: Path
) -> None:
    run = functools.partial(train_on, config=config, workdir=tmp_path / "run")
    run(8, MeshConfig(data=2, fsdp=4), steps=3)
    run(4, MeshConfig(data=2, tensor=2), steps=5)
    run(2, MeshConfig(fsdp=2, data=1), steps=7)
    run(1, MeshConfig(), steps=10)
    assert_same_losses(tmp_path / "run", on_one_device)


def test_run_with_muon_continues_on_another_mesh(config: Config, tmp_path: Path) -> None:
    muon = change(config, training={"optimizer": "muon"})
    train_on(1, MeshConfig(), muon, tmp_path / "one", steps=5)
    train_on(8, MESHES["data, fsdp and tensor"], muon, tmp_path / "run", steps=3)
    train_on(2, MeshConfig(), muon, tmp_path / "run", steps=5)
    assert_same_losses(tmp_path / "run", tmp_path / "one", steps=5)


def test_checkpoints_of_a_mesh_are_averaged_and_evaluated_on_one_device(
    config: Config, on_one_device: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_on(8, MESHES["data, fsdp and tensor"], config, run)
    for one, two in zip(
        *(jax.tree.leaves(restore_params(path, "avg:2")[0]) for path in (run, on_one_device)),
        strict=True,
    ):
        assert len(one.devices()) == 1
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)
    src, ref = config.data.validation_src, config.data.validation_tgt
    result = evaluate_run.evaluate(EvaluationRequest(run, "avg:2", src=src, ref=(ref,))).result
    assert result["num_sentences"] == 8


def test_model_that_the_mesh_cannot_cut_is_refused_before_any_work(
    config: Config, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"model.num_heads=4 cannot be split into mesh.tensor=8"):
        train_on(8, MeshConfig(data=1, tensor=8), config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
