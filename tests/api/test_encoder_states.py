"""The encoder's states in Python and in files."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import t2t
from t2t.api.encoder_states import EncoderStates, StateEncoder, export_states
from t2t.api.run import Run
from t2t.config.fields import ConfigError, MeshConfig
from t2t.data.corpus import DataError
from t2t.decoding.bulk import find_inputs
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest
from t2t.model.parameters import merge
from t2t.ops.build_model import Members, init_model
from t2t.runtime.mesh import make_mesh
from tests import programs
from tests.tiny_run import PAIRS

SENTENCES = [*(src for src, _ in PAIRS), "Dogs climb. " * 9]
# Sizes of the mesh, devices and rows of a batch.
BATCHES = [
    (MeshConfig(), 1, 2),
    (MeshConfig(), 1, 64),
    (MeshConfig(), 8, 64),
    (MeshConfig(2, 2, 2), 8, 4),
]


def make_model(run: Path, **fields: Any) -> tuple[RunModel, Any, Any]:
    """A model of random parameters with other fields; its structure and parameters."""
    model = RunModel(ModelRequest((run,)))
    model.config = dataclasses.replace(
        model.config, model=dataclasses.replace(model.config.model, **fields)
    )
    model.members = Members((model.config.model,))
    return model, *init_model(model.config.model, *model.vocabulary.sizes, jax.random.key(0))


@pytest.mark.parametrize("kind", ["transformer", "encoder_only", "rnn"])
def test_states_are_those_of_the_encoder_in_any_batch_and_on_any_mesh(run: Path, kind: str) -> None:
    model, structure, params = make_model(run, kind=kind)
    ids = model.vocabulary.src.encode(SENTENCES)
    alone = jax.jit(lambda params, *ids: merge(structure, params).encode(*ids)[0])
    expected = [states for own in ids for states in alone(params, jnp.array([own]))]
    for sizes, count, batch_size in BATCHES:
        model.config.decoding.batch_size = batch_size
        encoder = StateEncoder(model)
        with jax.set_mesh(make_mesh(sizes, jax.devices()[:count])):
            found = encoder.encode(encoder.place(encoder.select(params)), ids)
        for own, states in zip(found.split(), expected, strict=True):
            np.testing.assert_allclose(own, states, atol=1e-5)


def test_parameters_that_the_encoder_does_not_read_stay_behind(run: Path) -> None:
    model, _, params = make_model(run, tie_embeddings="none")
    selected = StateEncoder(model).select(params)
    kept = {name for name in selected if any(leaf.size for leaf in jax.tree.leaves(selected[name]))}
    assert kept == {"src_embedding", "encoder"}


@pytest.fixture(scope="module")
def loaded(run: Path) -> Run:
    return t2t.load(run, "last")


def test_states_are_padded_with_zeros_and_a_mask_in_the_dtype_asked_for(loaded: Run) -> None:
    found = loaded.encode_states(SENTENCES)
    assert found.ids.tolist() == [token for ids in loaded.encode(SENTENCES) for token in ids]
    for length in (None, 80):
        states, mask = found.pad(length)
        longest = max(map(len, loaded.encode(SENTENCES)))
        assert states.shape == (len(SENTENCES), length or longest, 16)
        np.testing.assert_array_equal(states[mask], found.states)
        assert not states[~mask].any()
    with pytest.raises(DataError, match=r"length=5, but a sentence has .* give at least"):
        found.pad(5)
    none = loaded.encode_states([])
    assert none.split() == []
    assert [x.shape for x in none.pad()] == [(0, 0, 16), (0, 0)]
    assert found.states.dtype == np.float32
    rounded = loaded.encode_states(SENTENCES, "bfloat16").states
    assert rounded.dtype == ml_dtypes.bfloat16
    assert np.corrcoef(rounded.astype(np.float32).ravel(), found.states.ravel())[0, 1] > 0.99
    with pytest.raises(ConfigError, match=r"model\.dtype='float16' "):
        loaded.encode_states(SENTENCES, "float16")


def test_models_without_one_encoder_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind='decoder_only' has no encoder"):
        StateEncoder(make_model(run, kind="decoder_only")[0])
    with pytest.raises(ConfigError, match="not of an ensemble of 2; name one run and checkpoint"):
        StateEncoder(RunModel(ModelRequest((run,), "100,300")))


def read(path: Path) -> EncoderStates:
    """Reads a file of safetensors."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    dtypes = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "I64": np.int64, "I32": np.int32}

    def find(name: str) -> np.ndarray:
        described = json.loads(content[8:start])[name]
        begin, end = described["data_offsets"]
        numbers = np.frombuffer(content[start + begin : start + end], dtypes[described["dtype"]])
        return numbers.reshape(described["shape"])

    return EncoderStates(*map(find, ("states", "offsets", "ids")))


def test_files_hold_the_states_of_each_line_in_shards(
    run: Path, loaded: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line that is too long has none, and is counted."""
    lines = [*SENTENCES, "Dogs " * 300, "Dogs " * 2000]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    inputs = find_inputs([str(tmp_path / "in.txt")], tmp_path / "out")
    with caplog.at_level(logging.WARNING):
        export_states(ModelRequest((run,), "last"), inputs, shard_lines=4)
    shards = sorted((tmp_path / "out" / "in.txt").iterdir())
    assert [path.name for path in shards] == ["000000.safetensors", "000001.safetensors"]
    *found, longer, too_long = [each for path in shards for each in read(path).split()]
    for own, states in zip(found, loaded.encode_states(SENTENCES).split(), strict=True):
        np.testing.assert_allclose(own, states, atol=1e-5)
    assert len(longer) > 256
    assert not len(too_long)
    warned_of_longer, warned_of_too_long = caplog.messages
    assert warned_of_longer.startswith("1 of 8 sentences have more than data.max_length=256 sub-wo")
    assert warned_of_too_long == (
        "1 of 8 lines have no states: they have more than 1024 sub-words with EOS"
    )


def test_wrong_flags_of_the_program_are_one_line_and_write_nothing(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("Dogs.\n")
    (tmp_path / "empty.gz").write_bytes(b"")
    command = ["t2t.export_states", f"--workdir={run}", "--output=out"]
    for flags, message in (
        (["--input=in.txt,empty.gz"], "empty.gz has no lines; leave it out"),
        (["--input=in.txt", "--dtype=int8"], "model.dtype='int8' is"),
    ):
        assert message in programs.refuse(*command, *flags, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "empty.gz"}
