"""A new run begins with parameters of another one: what is taken, from which run, and what not."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t2t.config.fields import Config, MeshConfig, ModelConfig, TokenizerConfig
from t2t.config.files import save_config
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.model.parameters import Params, name_leaves
from t2t.ops.build_model import abstract_model
from t2t.runtime.mesh import make_mesh, spec
from t2t.training.checkpoint import restore_params
from t2t.training.checkpoint_names import split_checkpoint_name
from t2t.training.fine_tuning import (
    SourceRun,
    check_fit,
    match_pieces,
    read_source,
    tabulate_outcomes,
    take_params,
)
from t2t.training.run_directory import RunError
from tests.tiny_run import PAIRS

RANDOM = np.random.default_rng(0)
WIDTH = 8


def draw(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vocabulary]:
    """Vocabularies of the same pairs: shared, one for each side, and one with a tag."""
    folder, corpus = tmp_path_factory.mktemp("vocab"), ListCorpus("toy", PAIRS)
    shared = TokenizerConfig(vocab_size=330)
    apart = dataclasses.replace(shared, shared=False, vocab_size=292)
    tagged = dataclasses.replace(shared, vocab_size=320)
    return {
        "shared": train_vocabulary([corpus], shared, folder / "shared"),
        "apart": train_vocabulary([corpus], apart, folder / "apart"),
        "tagged": train_vocabulary([corpus], tagged, folder / "tagged", ["<2de>"]),
    }


def make_params(vocabulary: Vocabulary, tie: str, layers: int = 2) -> Params:
    """NumPy arrays in place of a model's parameters."""
    config = ModelConfig(num_layers=layers, d_model=WIDTH, d_ff=16, num_heads=2, tie_embeddings=tie)
    _, params = abstract_model(config, *vocabulary.sizes)
    return jax.tree.map(lambda leaf: draw(*leaf.shape), params)


def make_source(params: Params, vocabulary: Vocabulary) -> SourceRun:
    return SourceRun(Path("old"), "best-3", params, vocabulary, ModelConfig())


def take(params: Params, source: SourceRun, vocabulary: Vocabulary) -> tuple[Params, Any]:
    """Takes parameters on a mesh of one device; returns NumPy arrays."""
    with jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:1])):
        placed = jax.tree.map(lambda x: jax.device_put(x, spec(*[None] * x.ndim)), params)
        taken, outcomes = take_params(placed, source, vocabulary)
    shardings = (jax.tree.map(lambda x: x.sharding, tree) for tree in (taken, placed))
    assert next(shardings) == next(shardings)
    return jax.device_get(taken), outcomes


@pytest.mark.parametrize("layers", [1, 4])
def test_what_has_the_same_shape_is_taken_and_the_table_says_what_is_not(
    layers: int, vocabularies: dict[str, Vocabulary]
) -> None:
    vocabulary = vocabularies["shared"]
    old, new = make_params(vocabulary, "all"), make_params(vocabulary, "all", layers)
    for layer in old["decoder"].values():
        layer["gate"] = {"weight": draw(2), "bias": draw(2)}
    for layer in new["decoder"].values():
        layer["feed_forward"]["inner"]["weight"] = draw(1, WIDTH, 12)
    source = make_source(old, vocabulary)
    taken, outcomes = take(new, source, vocabulary)
    theirs, fresh = name_leaves(old), name_leaves(new)
    for name, leaf in name_leaves(taken).items():
        is_taken = name in theirs and theirs[name].shape == leaf.shape
        np.testing.assert_array_equal(leaf, theirs[name] if is_taken else fresh[name])
    rows = tabulate_outcomes(outcomes, source)
    unused = [[f"{stack}.1", "not used: not in the new model"] for stack in ("decoder", "encoder")]
    if layers == 1:
        assert [row[:2] for row in rows[-2:]] == unused
        return
    assert [row for row in rows if "residual" not in row[0] and "attention" not in row[0]] == [
        ["decoder.0-1.feed_forward.inner.bias", "taken", "32"],
        ["decoder.0-1.feed_forward.inner.weight", "random: [1, 8, 16] there, [1, 8, 12] here", ""],
        ["decoder.0-1.feed_forward.outer", "taken", f"{2 * (16 + 1) * WIDTH}"],
        ["decoder.2-3", "random: not in the source", ""],
        ["encoder.0-1", "taken", f"{sum(x.size for x in jax.tree.leaves(old['encoder'])):,}"],
        ["encoder.2-3", "random: not in the source", ""],
        ["tgt_embedding", "taken", f"{330 * WIDTH:,}"],
        ["decoder.0-1.gate", "not used: not in the new model", ""],
    ]


TIES = ["all", "input", "decoder", "none"]


@pytest.mark.parametrize("old_tie", TIES)
@pytest.mark.parametrize("new_tie", TIES)
def test_rows_of_equal_pieces_are_taken_from_the_table_of_the_same_role(
    old_tie: str, new_tie: str, vocabularies: dict[str, Vocabulary]
) -> None:
    """By a loop over pieces."""
    before, after = (
        vocabularies["shared" if tie in ("all", "input") else "apart"] for tie in (old_tie, new_tie)
    )
    old, new = make_params(before, old_tie), make_params(after, new_tie)
    taken, outcomes = take(new, make_source(old, before), after)
    output = "own_output_embedding" if "own_output_embedding" in old else "tgt_embedding"
    roles = {"tgt_embedding": ["tgt_embedding"], "own_output_embedding": [output]}
    if "src_embedding" in new:
        roles["src_embedding"] = ["src_embedding" if "src_embedding" in old else "tgt_embedding"]
    else:
        roles["tgt_embedding"].append("src_embedding")
    counts = {}
    for name in roles.keys() & taken.keys():
        side = after.src if name == "src_embedding" else after.tgt
        counts[name] = 0
        for token, piece in enumerate(side.pieces(range(side.vocab_size))):
            wanted = new[name]["table"][token]
            for other in reversed(roles[name]):
                theirs = before.src if other == "src_embedding" else before.tgt
                pieces = theirs.pieces(range(theirs.vocab_size))
                if other in old and piece in pieces:
                    wanted = old[other]["table"][pieces.index(piece)]
            counts[name] += bool((wanted != new[name]["table"][token]).any())
            np.testing.assert_array_equal(taken[name]["table"][token], wanted)
    unused = {row[0] for row in tabulate_outcomes(outcomes, make_source(old, before)) if not row[2]}
    read = {other for name, others in roles.items() if name in new for other in others}
    assert unused == {name for name in old if "embedding" in name} - read
    for outcome in outcomes:
        name = outcome.name.removesuffix(".table")
        if name in counts:
            assert outcome.size == counts[name] * WIDTH


def test_bias_of_the_logits_is_taken_piece_by_piece(vocabularies: dict[str, Vocabulary]) -> None:
    before, after = vocabularies["shared"], vocabularies["tagged"]
    old, new = make_params(before, "all"), make_params(after, "all")
    old["output_bias"], new["output_bias"] = draw(330), draw(320)
    taken, _ = take(new, make_source(old, before), after)
    ids = match_pieces(before.tgt, after.tgt)
    wanted = np.where(ids < 0, new["output_bias"], old["output_bias"][ids])
    np.testing.assert_array_equal(taken["output_bias"], wanted)
    del old["output_bias"]
    _, outcomes = take(new, make_source(old, before), after)
    assert ("output_bias", "random: not in the source", 0) in outcomes


def test_nothing_that_fits_is_refused(vocabularies: dict[str, Vocabulary]) -> None:
    vocabulary = vocabularies["shared"]
    new = make_params(vocabulary, "all")
    narrow = jax.tree.map(lambda x: x[..., : x.shape[-1] // 2], make_params(vocabulary, "all"))
    with pytest.raises(RunError, match=r"no parameter of old fits .* instead of .* config.json"):
        check_fit(ModelConfig(), new, make_source(narrow, vocabulary))
    narrow["encoder"][0]["self_residual"] = new["encoder"][0]["self_residual"]
    check_fit(ModelConfig(), new, make_source(narrow, vocabulary))
    tables = {"tgt_embedding": make_params(vocabularies["tagged"], "all")["tgt_embedding"]}
    check_fit(ModelConfig(), new, make_source(tables, vocabulary))


def test_source_with_other_factors_in_its_model_is_refused(
    vocabularies: dict[str, Vocabulary],
) -> None:
    params = make_params(vocabularies["shared"], "all")
    source = make_source(params, vocabularies["shared"])
    wide = dataclasses.replace(ModelConfig(), parametrization="mup", base_width=64)
    with pytest.raises(RunError, match=r"old has other .* set model.parametrization='standard', "):
        check_fit(wide, params, source)
    check_fit(wide, params, source._replace(model=wide))


def test_checkpoint_is_what_follows_the_last_colon(tmp_path: Path) -> None:
    """Unless that is a part of the run's own name."""
    run = tmp_path / "22:36:05"
    run.mkdir()
    save_config(Config(), run / "config.json")
    for name, wanted, suffix in (
        ("runs/a", "runs/a", ""),
        ("runs/a:ema:300", "runs/a", "ema:300"),
        ("runs/a:lats", "runs/a:lats", ""),
        ("runs/a:b:best", "runs/a:b", "best"),
        (str(run), str(run), ""),
        (f"{run}:20", str(run), "20"),
    ):
        assert split_checkpoint_name(name, "--init_from") == (Path(wanted), suffix)


@pytest.mark.parametrize(("suffix", "label"), [("", "best-200"), (":avg:2", "avg2-300")])
def test_checkpoint_is_read_as_evaluation_reads_it(
    suffix: str, label: str, run: Path, tmp_path: Path
) -> None:
    source = read_source(f"{run}{suffix}", tmp_path / "new")
    assert source.checkpoint == label
    wanted, _ = restore_params(run, suffix[1:] or "best")
    jax.tree.map(np.testing.assert_array_equal, source.params, jax.device_get(wanted))
    assert source.vocabulary.fingerprint() == Vocabulary.load(run / "vocab").fingerprint()


def test_checkpoint_without_validation_scores_is_the_last(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t2t.training.fine_tuning.list_scored_measures", lambda run: set())
    assert read_source(str(run), tmp_path / "new").checkpoint == "300"


def test_run_that_cannot_be_the_source_is_refused(run: Path, tmp_path: Path) -> None:
    for name in (tmp_path / "nothing", f"{run}:lats"):
        with pytest.raises(RunError, match="is no run directory; write RUN or RUN:"):
            read_source(str(name), tmp_path / "new")
    (tmp_path / "link").symlink_to(run)
    for workdir in (run, tmp_path / "link"):
        with pytest.raises(RunError, match=r"--init_from=.* is --workdir itself; choose another"):
            read_source(f"{run}:last", workdir)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(RunError, match=r"empty has no complete checkpoint yet; train"):
        read_source(str(empty), tmp_path / "new")


def test_source_with_another_vocabulary_is_refused(
    run: Path, tmp_path: Path, vocabularies: dict[str, Vocabulary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vocabulary, "load", lambda folder: vocabularies["shared"])
    with pytest.raises(RunError, match=r"tgt_embedding.table has .* restore the vocab/"):
        read_source(str(run), tmp_path / "new")
