"""Registered variants, chosen by the config: training on a mesh, decoding and export."""

import dataclasses
import functools
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.api import prepare_run, train_run
from t2t.api.evaluate_run import evaluate
from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    TrainingConfig,
)
from t2t.config.files import override
from t2t.config.rules import validate
from t2t.config.variants import register
from t2t.data.batch import DeviceBatch
from t2t.data.corpus import DataError
from t2t.data.corpus_sources import open_split
from t2t.data.loader import put_batch
from t2t.data.objectives import Sentences
from t2t.decoding.attention_weights import capture_weights
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.text_measures import make_measure
from t2t.inspect_data import print_report
from t2t.model.attention import dot_product_attention
from t2t.model.compute_policy import Policy
from t2t.model.decoder_only import DecoderOnly
from t2t.model.layers import FeedForward
from t2t.model.parameters import Params, merge, name_leaves
from t2t.model.position import Position, find_offsets
from t2t.ops.build_model import abstract_model, find_family, list_parameters
from t2t.ops.flops import count_parameters, train_flops
from t2t.runtime.mesh import reshard, spec
from t2t.training.checkpoint import restore_params
from t2t.training.losses import make_loss
from t2t.training.optimizer import describe_optimizer, make_optimizer
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import RunError
from t2t.training.state import init_state
from t2t.training.step import make_train_step
from tests.data.small_corpus import PAIRS
from tests.evaluation.saved_evaluations import pair
from tests.model.small_models import SIZES, SMALL, SRC, TGT_IN, TGT_OUT, draw_params
from tests.model.test_build import check_cached_decoding
from tests.tiny_training import make_config, read_figures
from tests.training.test_step import VOCAB_SIZE, make_batch
from tests.training.test_step_pairs import make_config as make_pair_config
from tests.training.test_step_pairs import place, trace

STEPS = 6


pytestmark = pytest.mark.usefixtures("own_variants")


def use_example(name: str) -> ModuleType:
    """Imports a file of examples/ anew, and with it registers what it defines."""
    sys.modules.pop(f"examples.{name}", None)
    return importlib.import_module(f"examples.{name}")


def make_small_config(folder: Path, values: dict[str, Any]) -> Config:
    """Returns the config of a few steps on eight devices, with some values changed."""
    steps = {"steps": STEPS, "log_every": 1, "validate_every": STEPS}
    return override(
        make_config(folder),
        {f"training.{name}": value for name, value in steps.items()}
        | {"mesh.data": 4, "mesh.tensor": 2, "checkpoints.every": STEPS}
        | values,
    )


PARTS: dict[str, Any] = {
    "attention": "cosine",
    "feed_forward": "squared_relu",
    "norm": "scale",
    "position": "kerple",
    "kind": "alternating",
}


def register_parts() -> None:
    for name in ("attention", "gated_attention", "sandwich_norm", "feed_forward"):
        use_example(name)
    use_example("norm")
    register_kerple()
    register_alternating()


@pytest.mark.parametrize(
    ("attention", "kind"),
    [("cosine", "alternating"), ("gated", "transformer"), ("sandwich", "transformer")],
)
def test_decoding_with_the_cache_equals_teacher_forcing(attention: str, kind: str) -> None:
    register_parts()
    parts = PARTS | {"kind": kind, "attention": attention}
    check_cached_decoding(*draw_params(dataclasses.replace(SMALL, **parts)))


def register_kerple() -> None:
    @register("model.position", "kerple")
    class Kerple(Position):
        """Logarithmic KERPLE (Chi et al. 2022): -r1 log(1 + r2 distance), r1 and r2 by head."""

        def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array, causal: bool):
            del policy, key, causal
            ones = jnp.ones((2, config.num_heads), out_sharding=spec(None, "heads"))
            self.rates = nnx.Param(ones)

        def bias(
            self, query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
        ) -> Float[Array, "*#B H T S"]:
            distance = jnp.abs(find_offsets(query_positions, key_positions))[..., None, :, :]
            first, second = jnp.square(self.rates[...])[:, :, None, None]
            return -first * jnp.log1p(second * distance)


def register_alternating() -> None:
    @register("model.kind", "alternating")
    class Alternating(DecoderOnly):
        """A decoder-only model whose source embeddings have alternating signs."""

        def embed_src(self, src: Int[Array, "B S"]) -> Float[Array, "B S D"]:
            signs = 1 - 2 * (jnp.arange(src.shape[1]) % 2)
            return super().embed_src(src) * signs[:, None]


def test_weights_of_an_attention_with_parameters_are_captured() -> None:
    use_example("attention")
    config = dataclasses.replace(SMALL, attention="learned_temperature", kernels="textbook")
    structure, params = draw_params(config)
    of_layer = params["encoder"][0]["self_attention"]
    of_layer["attention"]["factor"] = jnp.zeros(SMALL.num_heads)  # all logits are 0
    found = jax.jit(lambda params: capture_weights(structure, params, SRC, TGT_IN))(params)
    np.testing.assert_allclose(found.encoder[0, 0], 0.2, rtol=1e-6)  # of five visible keys
    others = found.decoder[0, 0, :, 2, :3]  # of three visible keys, with logits
    assert float(jnp.abs(others - 1 / 3).max()) > 0.1


EXAMPLES: dict[str, dict[str, Any]] = {
    "attention feed_forward norm loss optimizer": {
        "model.attention": "cosine",
        "model.feed_forward": "squared_relu",
        "model.norm": "scale",
        "training.loss": "poly1",
        "training.optimizer": "averaged_lion",
    },
    "attention optimizer": {
        "model.attention": "learned_temperature",
        "training.optimizer": "row_normalized",
    },
    "gated_attention": {"model.attention": "gated"},
    "low_rank": {"model.attention": "low_rank"},
    "sandwich_norm": {"model.attention": "sandwich", "model.feed_forward": "sandwich"},
}
# Those train on a mesh in bfloat16 in a slow test below; nothing is trained with a measure.
OF_DATA = {"objective", "source", "measure"}
WITH_OPTIONS = {"distillation", "minimum_risk", "features"}  # trained by tests/examples


@pytest.mark.parametrize("names", EXAMPLES)
def test_examples_train_in_bfloat16_on_a_mesh(names: str) -> None:
    for name in names.split():
        use_example(name)
    row: dict[str, Any] = {
        "mesh": (2, 2, 2),
        "model.dtype": "bfloat16",
        "training.optimizer": "muon",
    }
    row |= {"training.accumulation_steps": 2, "model.norm_position": "pre", "model.num_layers": 1}
    plugins = tuple(f"examples.{name}" for name in names.split())
    config = override(make_pair_config(row | EXAMPLES[names]), {"plugins": plugins})
    mesh = place(row)
    with jax.set_mesh(mesh):
        optimizer = make_optimizer(config)
        structure, state = init_state(config, optimizer, VOCAB_SIZE, VOCAB_SIZE)
        batch = put_batch(make_batch(), mesh)

        def find_activations(params: Params) -> Any:
            model = merge(structure, params)
            return model.compute_hidden(batch.src, batch.tgt_in)[0], model.init_cache(
                batch.src, 2, 4
            )

        activations = jax.tree.leaves(jax.eval_shape(find_activations, state.params))
        dtypes = {str(x.dtype) for x in activations if jnp.issubdtype(x.dtype, jnp.floating)}
        assert dtypes == {"bfloat16"}
        before = jax.tree.map(jnp.copy, state.params)
        state, metrics = make_train_step(structure, config, optimizer)(state, batch)
    assert int(metrics.skipped) == 0
    assert jax.tree.all(jax.tree.map(lambda x: x.dtype == jnp.float32, state.params))
    moved = jax.tree.map(lambda x, y: bool(jnp.any(x != y)), before, state.params)
    assert any(jax.tree.leaves(moved))


def test_every_example_is_trained() -> None:
    files = {path.stem for path in Path("examples").glob("*.py")}
    assert files == {*" ".join(EXAMPLES).split()} | OF_DATA | WITH_OPTIONS


def register_float32() -> None:
    """Parts that compute in float32 and do not round their results."""

    @register("model.norm", "float32")
    @register("model.feed_forward", "float32")
    class Scale(nnx.Module):
        def __init__(self, config: ModelConfig, *_: Any):
            self.scale = nnx.Param(jnp.ones(config.d_model, out_sharding=spec(None)))

        def __call__(self, x: jax.Array, *_: Any) -> jax.Array:
            return x * self.scale[...]

    @register("model.attention", "float32")
    def attend(query: jax.Array, key_value: Any, *others: Any, **named: Any) -> jax.Array:
        found: jax.Array = dot_product_attention(query, key_value, *others, **named)
        return found.astype(jnp.float32)

    @register("model.position", "float32")
    class Shift(Position):
        def __init__(self, *_: Any):
            pass

        def add(self, x: jax.Array, positions: jax.Array) -> jax.Array:
            return x + jnp.sin(positions)[..., None].astype(jnp.float32)

        def rotate(self, x: jax.Array, _: jax.Array) -> jax.Array:
            return x * jnp.ones(x.shape[-1], jnp.float32)


@pytest.mark.parametrize("field", ["norm", "feed_forward", "attention", "position"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("kind", ["transformer", "decoder_only"])
def test_float32_result_of_a_part_is_rounded_to_the_dtype_of_the_model(
    field: str, norm_position: str, kind: str
) -> None:
    register_float32()
    fields: dict[str, Any] = {field: "float32", "norm_position": norm_position, "kind": kind}
    config = dataclasses.replace(SMALL, dtype="bfloat16", **fields)
    structure, params = abstract_model(config, *SIZES)

    def find_activations(params: Params) -> Any:
        model = merge(structure, params)
        cache = model.init_cache(SRC, 1, 4)
        tokens = TGT_IN[:, :1]
        _, after = model.decode_step(tokens, jnp.zeros_like(tokens), cache)
        return model.compute_hidden(SRC, TGT_IN)[0], cache, after

    found = jax.tree.leaves(jax.eval_shape(find_activations, params))
    assert not any(x.dtype == jnp.float32 for x in found)


def _flatten(code: str) -> str:
    return "\n".join(map(str.strip, code.splitlines()))


def test_example_of_shardings_runs_on_any_mesh_and_the_page_has_others_from_files() -> None:
    page = Path("docs/extending.md").read_text("utf-8")
    files = "".join(path.read_text("utf-8") for path in Path("examples").glob("*.py"))
    blocks = [block.split("```")[0].strip("\n") for block in page.split("```python")[1:]]
    [of_shardings] = [block for block in blocks if _flatten(block) not in _flatten(files)]
    names: dict[str, Any] = {"jnp": jnp}
    exec(of_shardings, names)
    look_back = names["look_back"]
    ids = jnp.arange(8 * 4).reshape(8, 4) % 12
    x, table = (jnp.sin(jnp.arange(float(np.prod(s)))).reshape(s) for s in ((8, 4, 16), (12, 16)))
    wanted = look_back(x, table, ids)
    with jax.set_mesh(place({"mesh": (2, 2, 2)})):
        x, ids = reshard(x, "batch", None, None), reshard(ids, "batch", None)
        found = jax.jit(look_back)(x, reshard(table, "vocabulary", "d_model"), ids)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_error_of_shardings_in_a_variant_names_its_line_and_the_page() -> None:
    @register("model.norm", "wrong")
    class Wrong(nnx.Module):
        def __init__(self, config: ModelConfig, policy: Policy):
            del config, policy

        def __call__(self, x: jax.Array) -> jax.Array:
            first = jnp.zeros((len(x), 1, x.shape[-1]))
            return jnp.concatenate([first, x[:, 1:]], axis=1)

    row = {"mesh": (2, 2, 2), "model.norm": "wrong"}
    with pytest.raises(ConfigError, match=r"test_variants, line \d+: .*extending.md#on-a-mesh"):
        trace(row)


def test_optimizer_across_a_sharded_matrix_is_refused_with_its_line() -> None:
    @register("training.optimizer", "svd")
    def svd(config: Config, schedule: optax.Schedule, parameters: Any) -> Any:
        del config, schedule, parameters
        return optax.stateless(
            lambda updates, _: jax.tree.map(
                lambda x: jnp.linalg.svd(x)[0] if x.ndim > 2 else x, updates
            )
        )

    config = Config(model=SMALL, training=TrainingConfig(optimizer="svd"))
    with jax.set_mesh(place({"mesh": (2, 2, 2)})):
        _, params = abstract_model(SMALL, *SIZES)
        with pytest.raises(ConfigError, match=r"test_variants, line \d+: .*reshard\(x\)"):
            describe_optimizer(config, make_optimizer(config), params)


def test_feed_forward_of_the_library_names_its_activation() -> None:
    register("model.feed_forward", "own")(type("Own", (FeedForward,), {}))
    with pytest.raises(ConfigError, match=r"'own' is no activation .*feed_forward=\"relu\""):
        draw_params(dataclasses.replace(SMALL, feed_forward="own"))


def test_parameters_of_a_registered_feed_forward_are_counted() -> None:
    use_example("feed_forward")
    config = dataclasses.replace(SMALL, feed_forward="squared_relu")
    counted = sum(leaf.size for leaf in jax.tree.leaves(draw_params(config)[1]))
    assert count_parameters(config, *SIZES) == counted


def test_parameters_of_an_adapter_follow_its_rank() -> None:
    use_example("low_rank")
    base = Config(model=dataclasses.replace(SMALL, attention="low_rank"))
    counts = [
        count_parameters(
            override(base, {"plugins": ("examples.low_rank",), "plugin.low_rank.rank": rank}).model,
            *SIZES,
        )
        for rank in (2, 3)
    ]
    layers = 3 * SMALL.num_layers  # those of self-attention, and of attention to the source
    assert counts[1] - counts[0] == layers * 2 * SMALL.d_model


def test_operations_of_a_registered_family_are_counted_as_those_of_its_base() -> None:
    register_alternating()
    register("model.kind", "own")(lambda *_: None)
    own, base, other = (
        dataclasses.replace(SMALL, kind=kind) for kind in ("alternating", "decoder_only", "own")
    )
    lengths = np.array([5, 7])
    assert train_flops(own, 12, lengths, lengths) == train_flops(base, 12, lengths, lengths)
    counts = [find_family(config).count_sequential(config, 5, 5) for config in (own, base)]
    assert counts[0] == counts[1]
    with pytest.raises(ConfigError, match=r"model.kind='own' is a subclass of no family of t2t"):
        find_family(other)


def test_muon_updates_the_matrices_that_variants_declare_and_the_log_names_the_rest() -> None:
    use_example("feed_forward")
    use_example("attention")
    parts: dict[str, Any] = {"feed_forward": "squared_relu", "attention": "learned_temperature"}
    config = Config(model=dataclasses.replace(SMALL, **parts))
    config.training.optimizer = "muon"
    _, params = draw_params(config.model)
    state = jax.eval_shape(make_optimizer(config).init, params)
    moments = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
    of_adam = [moment for moment in moments if "adam" in moment]
    assert any("['factor']" in moment for moment in of_adam)
    assert not any("['inner']" in moment or "['outer']" in moment for moment in of_adam)
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    declared = list_parameters(config.model)
    leaves = name_leaves(params).items()
    matrices = sum(leaf.size for name, leaf in leaves if declared[name].matrix)
    assert set(describe_optimizer(config, make_optimizer(config), params)) == {
        # Of each head: W^Q, W^K and W^V in two layers' self-attention, and so on.
        f"training.optimizer='muon': muon updates {matrices} parameters, 32 matrices",
        f"training.optimizer='muon': adam updates {total - matrices} parameters; arrays of two or "
        "more dimensions that are no matrices: tgt_embedding.table (192)",
    }
    config.training.frozen = ("tgt_embedding.*",)
    assert "tgt_embedding" not in " ".join(
        describe_optimizer(config, make_optimizer(config), params)
    )


def write_json_lines(folder: Path) -> dict[str, Any]:
    """Writes corpora of three splits; returns the config values to read them."""
    splits = {"train": PAIRS[:300], "validation": PAIRS[300:308], "newstest": PAIRS[308:312]}
    for split, pairs in splits.items():
        lines = [json.dumps({"en": english, "de": german}) for english, german in pairs]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    fields = {"source": "json_lines", "directory": str(folder), "train_weights": ()}
    fields |= {"src_language": "en", "tgt_language": "de"}
    return {f"data.{name}": value for name, value in fields.items()}


def test_registered_source_is_prepared_and_inspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_example("source")
    config = make_small_config(tmp_path, write_json_lines(tmp_path))
    prepare_run.prepare(config, None, print)
    assert capsys.readouterr().out.splitlines() == [
        f"{split}: {count} pairs ({tmp_path}/{split}.jsonl)"
        for split, count in (("train", 300), ("validation", 8))
    ]
    print_report(config, None, None)
    assert "== validation: 8 pairs" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"'test' is unknown; .*'json_lines' has train, validation"):
        open_split(config.data, "test")


def test_registered_loss_is_that_of_training() -> None:
    use_example("loss")
    structure, params = draw_params(SMALL)
    weights = np.array([[1, 1, 1, 0], [1, 1, 1, 0]], "f")
    model, batch = merge(structure, params), DeviceBatch(SRC, TGT_IN, TGT_OUT, jnp.array(weights))

    def sum_losses(name: str) -> tuple[Any, ...]:
        return make_loss(Config(training=TrainingConfig(loss=name))).sum_losses(model, batch, None)

    loss, tokens, _ = sum_losses("poly1")
    hidden, table = map(np.asarray, model.predict(batch)[:2])
    exponentials = np.exp(hidden @ table.T)
    p = exponentials / exponentials.sum(axis=-1, keepdims=True)
    p = np.take_along_axis(p, np.asarray(TGT_OUT)[..., None], axis=-1)[..., 0]
    assert float(loss) == pytest.approx(float(np.sum((1 - p - np.log(p)) * weights)), rel=1e-5)
    assert tokens == 6
    register("training.loss", "mean")(lambda model, batch, key: jnp.mean(batch.weights))
    with pytest.raises(ConfigError, match=r"training\.loss='mean': .* expected \(model, batch, "):
        sum_losses("mean")
    with pytest.raises(ConfigError, match=r"hidden, .*; expected .*= model\.predict\(batch, key"):
        register("training.loss", "of_logits")(lambda hidden, table, targets, weights, smoothing: 0)
    of_text = functools.partial(lambda model, batch, key, *teachers: 0)
    for teachers in ("runs/a", [3], None):
        of_text.teachers = teachers  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match=r"has teachers=.*; write a tuple of runs, such as"):
            register("training.loss", "of_text")(of_text)
    training = TrainingConfig(loss="poly1", r_drop=1.0)
    with pytest.raises(ConfigError, match=r"training\.r_drop=1\.0 .* training\.loss='poly1'"):
        validate(Config(training=training))


def test_example_of_an_optimizer_is_evaluated_at_the_mean_of_its_parameters() -> None:
    use_example("optimizer")
    training = TrainingConfig(
        optimizer="averaged_lion", schedule="constant", warmup_steps=1, learning_rate=0.5
    )
    optimizer = make_optimizer(Config(training=training))
    assert optimizer.evaluation_params
    params = {"weight": jnp.zeros(2)}
    state, seen = optimizer.init(params), []
    for sign in (1.0, -1.0, -1.0):
        gradient = {"weight": jnp.full(2, sign)}
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        seen.append(params["weight"])
    found = optimizer.evaluation_params(state, params)["weight"]
    np.testing.assert_allclose(found, np.mean(seen, axis=0), atol=1e-6)
    assert float(jnp.abs(found - params["weight"]).max()) > 0.1


def test_example_of_an_objective_halves_each_text() -> None:
    objective = use_example("objective").SplitText(DataConfig(), (), ())
    ids, lengths = np.array([5, 6, 7, 2, 8, 2], np.int32), np.array([4, 2])
    sources, targets = objective.corrupt(Sentences(ids, lengths), np.zeros(2, np.uint64))
    np.testing.assert_array_equal(sources.ids, [5, 2, 2])
    np.testing.assert_array_equal(targets.ids, [6, 7, 2, 8, 2])
    for side, expected in zip((sources, targets), ([2, 1], [3, 2]), strict=True):
        np.testing.assert_array_equal(side.lengths, expected)


def test_example_of_a_measure_is_the_ratio_of_lengths() -> None:
    use_example("measure")
    measure = make_measure("length_ratio", "de", 1)
    test_set = pair(["Hund", "Katze."])
    counts = measure.collect(["Hunde", "Katz"], test_set)
    assert measure.aggregate(counts.sum(axis=0)) == pytest.approx(9 / 10)


def register_linear_schedule() -> None:
    @register("training.schedule", "linear")
    def linear(training: TrainingConfig, d_model: int) -> optax.Schedule:
        peak = training.learning_rate * d_model**-0.5
        return optax.linear_schedule(peak, 0.0, training.steps)


@pytest.mark.slow
def test_all_that_is_registered_trains_together(tmp_path: Path) -> None:
    """Parts of the model, an objective, a loss, an optimizer, a schedule and a source of data."""
    register_parts()
    register_linear_schedule()
    for name in ("attention", "loss", "objective", "optimizer", "source"):
        use_example(name)
    parts = PARTS | {"attention": "learned_temperature", "dtype": "bfloat16"}
    values: dict[str, Any] = {f"model.{field}": name for field, name in parts.items()}
    values |= {"training.optimizer": "averaged_lion", "training.clip_norm": 1.0}
    values |= {"training.schedule": "linear", "training.learning_rate": 0.05}
    values |= {"training.loss": "poly1", "data.objective": "split_text"}
    config = make_small_config(tmp_path, values | write_json_lines(tmp_path))
    workdir = tmp_path / "run"
    assert train_run.train(config, workdir)
    figures = read_figures(workdir, "train/")
    assert figures[-1]["train/loss"] < figures[0]["train/loss"]
    rates = [line["train/learning_rate"] for line in figures]
    np.testing.assert_allclose(rates, 0.0125 * (1 - np.arange(STEPS) / STEPS), rtol=1e-6)
    params, _ = restore_params(workdir, "last")
    factors = params["decoder"][0]["self_attention"]["attention"]["factor"]
    assert factors.shape == (4,)
    assert np.all(factors != 1)  # the gradient has reached each head's
    [start] = read_ledger(workdir)
    assert start["corpora"]["train"][0]["pairs"] == 300
    result = evaluate(EvaluationRequest((workdir,), split="validation")).result
    definition = result["measures"]["perplexity"]["definition"]
    assert "split_text: the second half of a text and EOS, version 1; teacher" in definition
    training = dataclasses.replace(config.training, steps=2 * STEPS)
    with pytest.raises(RunError, match=r"training\.steps: 6 -> 12"):
        train_run.train(dataclasses.replace(config, training=training), workdir)
