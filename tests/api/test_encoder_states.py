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
from t2t.data.batch import BOS_ID
from t2t.data.corpus import DataError
from t2t.decoding.bulk import find_inputs
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest
from t2t.model.interface import merge
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
def test_states_are_those_that_the_decoder_sees_in_any_batch_and_on_any_mesh(
    run: Path, kind: str
) -> None:
    model, structure, params = make_model(run, kind=kind)
    ids = model.vocabulary.src.encode(SENTENCES)
    alone = jax.jit(lambda params, *ids: merge(structure, params).encode(*ids)[0])
    expected = [states for own in ids for states in alone(params, jnp.array([own]))]

    def encode(sizes: MeshConfig, count: int, batch_size: int) -> EncoderStates:
        model.config.decoding.batch_size = batch_size
        encoder = StateEncoder(model)
        with jax.set_mesh(make_mesh(sizes, jax.devices()[:count])):
            return encoder.encode(encoder.place(encoder.select(params)), ids)

    found = [encode(*batch) for batch in BATCHES]
    for each in found:
        for own, states in zip(each.split(), expected, strict=True):
            np.testing.assert_allclose(own, states, atol=1e-5)
    if kind != "encoder_only":
        states, mask = found[0].pad(64)
        src = np.zeros(mask.shape, np.int32)
        src[mask] = found[0].ids
        tgt = jnp.full((len(src), 3), BOS_ID)

        @jax.jit
        def decode(params: Any, *arrays: jax.Array) -> tuple[Any, jax.Array]:
            module, (src, memory) = merge(structure, params), arrays
            return module.decode(tgt, memory, src), module.compute_hidden(src, tgt)[0]

        hidden, whole = decode(params, src, states)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        np.testing.assert_allclose(hidden, whole, atol=1e-5)


def test_parameters_that_the_encoder_does_not_read_stay_behind(run: Path) -> None:
    model, _, params = make_model(run, tie_embeddings="none")
    selected = StateEncoder(model).select(params)
    kept = {name for name in selected if any(leaf.size for leaf in jax.tree.leaves(selected[name]))}
    assert kept == {"src_embedding", "encoder"}


@pytest.fixture(scope="module")
def loaded(run: Path) -> Run:
    return t2t.load(run, "last")


def test_states_are_padded_with_zeros_and_a_mask(loaded: Run) -> None:
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


def test_states_have_the_dtype_asked_for(loaded: Run) -> None:
    assert loaded.encode_states(SENTENCES).states.dtype == np.float32
    expected = loaded.encode_states(SENTENCES, "float32").states
    found = loaded.encode_states(SENTENCES, "bfloat16").states
    assert found.dtype == ml_dtypes.bfloat16
    assert np.corrcoef(found.astype(np.float32).ravel(), expected.ravel())[0, 1] > 0.99
    with pytest.raises(ConfigError, match=r"model\.dtype='float16' "):
        loaded.encode_states(SENTENCES, "float16")


def test_models_without_one_encoder_and_sentences_that_are_too_long_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind='decoder_only' has no encoder"):
        StateEncoder(make_model(run, kind="decoder_only")[0])
    with pytest.raises(ConfigError, match="not of an ensemble of 2; name one run and checkpoint"):
        StateEncoder(RunModel(ModelRequest((run,), "100,300")))
    model, _, params = make_model(run, position="learned", max_positions=8)
    model.restore = lambda: (params, ["0"])  # type: ignore[method-assign]
    short = Run(model)
    with pytest.raises(DataError, match=r"'Two dogs run.*max_positions=8; split the sentence"):
        short.encode_states(SENTENCES)
    assert len(short.encode_states(["Dogs"]).split()) == 1


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
    run: Path, loaded: Run, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in SENTENCES), "utf-8")
    inputs = find_inputs([str(tmp_path / "in.txt")], tmp_path / "out")
    export_states(ModelRequest((run,), "last"), inputs, shard_lines=4)
    shards = sorted((tmp_path / "out" / "in.txt").iterdir())
    assert [path.name for path in shards] == ["000000.safetensors", "000001.safetensors"]
    found = [each for path in shards for each in read(path).split()]
    for own, states in zip(found, loaded.encode_states(SENTENCES).split(), strict=True):
        np.testing.assert_allclose(own, states, atol=1e-5)


def test_lines_that_are_too_long_have_no_states_and_are_counted(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in.txt").write_text("Dogs climb.\n" + "Dogs " * 2000 + "\n\n" + "Dogs " * 300)
    inputs = find_inputs([str(tmp_path / "in.txt")], tmp_path / "out")
    with caplog.at_level(logging.WARNING):
        export_states(ModelRequest((run,)), inputs, dtype="bfloat16")
    found = read(tmp_path / "out" / "in.txt" / "000000.safetensors")
    first, second, third, fourth = np.diff(found.offsets)
    assert first > 1
    assert (second, third) == (0, 1)  # an empty line is EOS
    assert fourth > 256
    assert found.states.dtype == ml_dtypes.bfloat16
    [longer, too_long] = [record.message for record in caplog.records]
    assert longer.startswith("1 of 4 sentences have more than data.max_length=256 sub-words")
    assert too_long == "1 of 4 lines have no states: they have more than 1024 sub-words with EOS"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=in.txt,empty.gz", "--output=out"], "empty.gz has no lines; leave it out"),
        (["--input=in.txt", "--output=out", "--checkpoint=100,300"], "not of an ensemble of 2"),
        (["--input=in.txt", "--output=out", "--dtype=int8"], "model.dtype='int8' is"),
    ],
)
def test_wrong_flags_of_the_program_are_one_line_and_write_nothing(
    run: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    (tmp_path / "in.txt").write_text("Dogs.\n")
    (tmp_path / "empty.gz").write_bytes(b"")
    flags = ["t2t.export_states", f"--workdir={run}", *flags]
    assert message in programs.refuse(*flags, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "empty.gz"}
