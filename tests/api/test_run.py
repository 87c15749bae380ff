"""`t2t.load` gives notebooks the results of the programs."""

import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t
from t2t.api import notebook  # programs that other tests import hide t2t.train
from t2t.api.line_translator import LineTranslator, translate_lines
from t2t.api.run import Run, read_n_best
from t2t.api.text_arguments import read_ids, read_pairs, read_texts
from t2t.api.text_scorer import TextScorer
from t2t.config.fields import ConfigError
from t2t.config.files import override, override_decoding
from t2t.data.batch import BOS_ID, EOS_ID
from t2t.data.corpus import DataError
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest
from t2t.model.parameters import merge
from t2t.ops.build_model import init_model
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training.run_directory import RunError
from tests.api.test_encoder_states import make_model
from tests.tiny_run import PAIRS, make_run

pytestmark = pytest.mark.usefixtures("shared_programs")

SRC = np.array([[5, 9, EOS_ID, 0], [7, 8, 6, EOS_ID]])
TGT = np.array([[BOS_ID, 4, 11], [BOS_ID, 10, 0]])


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("api") / "run")


@pytest.fixture(scope="module")
def run(workdir: Path) -> Run:
    return t2t.load(str(workdir), "last")


def test_programs_and_python_have_the_same_default_checkpoint(
    workdir: Path, tmp_path: Path
) -> None:
    assert t2t.load(workdir).checkpoint == "best-200"
    assert ModelRequest((workdir,)).checkpoint == "best"
    with pytest.raises(ConfigError, match="does not exist; is this a run directory"):
        t2t.load(tmp_path / "nowhere")
    with pytest.raises(RunError, match="holds no checkpoint of step 150; it has 100, 200, 300"):
        t2t.load(workdir, 150)


def test_translations_are_those_of_the_program(workdir: Path, run: Run) -> None:
    sources = [src for src, _ in PAIRS]
    lines = [f"{src}\n".encode() for src in sources]
    for beam_size in (None, 2):
        given = {} if beam_size is None else {"beam_size": beam_size}
        translator = LineTranslator(ModelRequest((workdir,), "last", decoding=given))
        found = translate_lines(translator, iter(lines))
        assert run.translate(sources, beam_size=beam_size) == [best.text for [best] in found]


def test_another_alpha_compiles_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    [src, _] = PAIRS[0]
    run.translate([src], alpha=0.25)
    monkeypatch.delattr(SavedPrograms, "_load")
    assert run.translate([src], alpha=0.75)


def test_logits_are_those_of_the_model(run: Run) -> None:
    structure, _ = init_model(run.config.model, *run.vocabulary.sizes, jax.random.key(0))
    forward = jax.jit(lambda params, *ids: merge(structure, params)(*ids))
    expected = forward(run.params, SRC, TGT)
    for kind in (np.asarray, jnp.asarray, np.ndarray.tolist):
        found = run.logits(kind(SRC), kind(TGT))
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    src, tgt = PAIRS[1]
    [ids] = run.encode([tgt], "tgt")
    expected = run.logits(run.encode([src]), [[BOS_ID, *ids[:-1]]])
    np.testing.assert_array_equal(run.logits(src, tgt), expected)


def test_text_is_encoded_and_decoded(run: Run) -> None:
    for side, sentences in zip(("src", "tgt"), zip(*PAIRS[:3], strict=True), strict=True):
        rows = run.encode(sentences, side)
        assert all(row[-1] == EOS_ID for row in rows)
        assert run.decode(rows, side) == [*sentences]
    [ids] = run.encode([PAIRS[1][1]], "tgt")
    assert run.decode(np.array([[BOS_ID, *ids, 0, 0]])) == [PAIRS[1][1]]
    with pytest.raises(ConfigError, match="side='target' is unknown; use src or tgt"):
        run.encode(["a"], "target")
    with pytest.raises(DataError, match=r"ids\[\d\] holds 400; use ids of run\.encode, 0 to 399"):
        run.decode([[5, 400]])


def test_attention_of_a_pair_has_named_axes_and_labels(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, tgt = PAIRS[1]
    [src_ids], [tgt_ids] = run.encode([src]), run.encode([tgt], "tgt")
    sides = {
        "encoder": (src_ids, src_ids),
        "decoder": ([BOS_ID, *tgt_ids[:-1]],) * 2,
        "cross": (tgt_ids, src_ids),
    }
    for stack, (queries, keys) in sides.items():
        found = run.attention(src, tgt, stack)
        weights = np.asarray(found)
        assert found.axes == ("layer", "head", "query", "key")
        assert weights.shape == (1, 2, len(queries), len(keys))
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
        assert (np.triu(weights, 1) == 0).all() == (stack == "decoder")
        for labels, ids in ((found.queries, queries), (found.keys, keys)):
            pieces = run.vocabulary.src.pieces(ids)  # both sides have one vocabulary
            assert labels == [piece.replace("▁", "·") for piece in pieces]
    found = run.attention(src, tgt)
    assert found._repr_html_().startswith('<img alt="AttentionMap(layer=1, head=2, query=')
    found.plot(tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    with pytest.raises(ConfigError, match="stack='self' is unknown; use one of encoder, decoder, "):
        run.attention(src, tgt, "self")
    monkeypatch.setattr(run, "config", override(run.config, {"model.kind": "decoder_only"}))
    with pytest.raises(ConfigError, match=r"one model of .*='transformer', but .*'decoder_"):
        run.attention(src, tgt)


def test_notebook_shows_the_curves_of_a_run(run: Run, workdir: Path) -> None:
    shown = run._repr_html_()
    assert shown.endswith("checkpoint=&#x27;300&#x27;)</code></p>")  # nothing is logged
    line = '{"step": 2, "train/loss": 1.0, "validation/loss": null}\n'
    (workdir / "metrics.jsonl").write_text(line)
    assert '<img alt="curves by step" src="data:image/png;base64,' in run._repr_html_()
    (workdir / "metrics.jsonl").unlink()


@pytest.mark.slow
def test_ensemble_is_the_mean_of_its_models(workdir: Path) -> None:
    ensemble = t2t.load([workdir, workdir], "100,300", weights=(3, 1))
    assert ensemble.checkpoint == "100,300"
    one, other, found = (
        jax.nn.softmax(run.logits(SRC, TGT))
        for run in (t2t.load(workdir, 100), t2t.load(workdir, 300), ensemble)
    )
    np.testing.assert_allclose(found, 0.75 * one + 0.25 * other, rtol=1e-4)
    tokens = ensemble.score_tokens(PAIRS)
    np.testing.assert_allclose(ensemble.score(PAIRS), [each.sum() for each in tokens], rtol=1e-5)


def test_options_of_decoding_are_keywords(run: Run) -> None:
    sentences, prefixes = ["Dogs climb.", "A girl climbs."], ["Hunde", ""]
    [first, second] = run.translate_n_best(
        sentences, 3, strategy="sampling", temperature=0.5, prefixes=prefixes
    )
    assert len(first) == len(second) == 3
    assert all(sample.text.startswith("Hunde") for sample in first)
    assert run.translate(sentences, prefixes=prefixes, min_length=2)[0].startswith("Hunde")
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (DataError, "1 prefixes for 2 sentences; give one for each", {"prefixes": ["Hunde"]}),
        (ConfigError, r"decoding\.beams=3: no such field", {"beams": 3}),
        (
            ConfigError, "num_samples=2, but one output is returned",
            {"strategy": "sampling", "num_samples": 2},
        ),
    ]  # fmt: skip
    for error, message, options in wrong:
        with pytest.raises(error, match=message):
            run.translate(sentences, **options)
    with pytest.raises(ConfigError, match="mbr='chrf' chooses one output"):
        run.translate_n_best(sentences, 2, mbr="chrf")


def test_numbers_of_numpy_and_jax_are_numbers(run: Run) -> None:
    expected = override_decoding(run.config, {"beam_size": 2, "alpha": 0.5})
    numbers: tuple[Callable[[float], Any], ...] = (np.array, jnp.asarray)
    for number in numbers:
        given = {"beam_size": number(2), "alpha": number(0.5)}
        assert override_decoding(run.config, given) == expected
        assert read_n_best(number(2), {"num_samples": number(2)}) == 2


@pytest.mark.parametrize("n_best", [0, -1, 2.0, "2", None, True, [1]])
def test_number_of_outputs_is_a_positive_integer(n_best: object) -> None:
    with pytest.raises(ConfigError, match=r"^n_best=.* (must be positive|is not of type int)$"):
        read_n_best(n_best, {})


def test_options_without_effect_are_refused_if_the_user_gives_them(run: Run) -> None:
    sampling: dict[str, Any] = {"strategy": "sampling"}
    for given, cause in (
        ({"beam_size": 4, **sampling}, "decoding.strategy='sampling'"),  # even at its default
        ({"alpha": 2.0, **sampling}, "decoding.strategy='sampling'"),
        ({"temperature": 1.0}, "decoding.strategy='beam'"),
        ({"length_penalty": "none", "alpha": 0.6}, "decoding.length_penalty='none'"),
    ):
        [name, *_] = {*given} - {"strategy", "length_penalty"}
        message = f"^decoding.{name}={given[name]} is not used by {cause}; leave it out$"
        with pytest.raises(ConfigError, match=message):
            run.translate(["A girl climbs."], **given)
    with pytest.raises(ConfigError, match="num_samples=5 has no effect beside n_best=2"):
        run.translate_n_best(["A girl climbs."], 2, num_samples=5, **sampling)
    # The run's own config may have them.
    own = override(
        run.config, {f"decoding.{name}": each for name, each in {**sampling, "top_k": 3}.items()}
    )
    assert override_decoding(own, {"strategy": "beam"}) == run.config


def test_sentences_of_known_lengths_compile_nothing(
    run: Run, shared_programs: dict[Any, Any]
) -> None:
    def use(src: str, tgt: str) -> None:
        run.translate([src])
        run.score([(src, tgt)])
        run.logits(SRC, TGT)
        run.encode_states([src])

    use("Dogs climb.", "Hunde klettern.")
    shared_programs.clear()  # the run itself has to keep its programs
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    use("A girl climbs.", "Ein Mädchen klettert.")
    jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []


def test_ids_that_are_no_pairs_are_refused(run: Run) -> None:
    given: list[tuple[Any, Any, str]] = [
        ([[5, 2]], [[1], [1]], "src has 1 rows and tgt 2"),
        ([5, 2], [[1]], r"src\[0\] is int 5; give rows of ids"),
        ("a dog", [[1]], r"^tgt is list \[\[1\]\], not a string"),
        ([[5, 2], [2]], [[1], [1]], "src has rows of 1, 2 ids; pad them with 0 to one length"),
        ([], [], "src has rows of no ids"),
        ([[5, 2]], [[1, 400]], r"tgt\[0\] holds 400; use ids of run\.encode, 0 to 399"),
    ]
    for src, tgt, message in given:
        with pytest.raises(DataError, match=message):
            run.logits(src, tgt)


def test_sentences_longer_than_the_positions_are_refused(run: Run) -> None:
    model, _, params = make_model(run.workdir, position="learned", max_positions=8)
    model.restore = lambda: (params, ["0"])  # type: ignore[method-assign]
    short, long = Run(model), "Dogs " * 8
    with pytest.raises(DataError, match=r"'Dogs Dogs Dogs .* model.max_positions=8; split"):
        short.score([(long, "Hunde.")])
    with pytest.raises(DataError, match=r"src has 9 pos.*max_positions=8; give shorter"):
        short.logits([[5] * 9], [[BOS_ID]])
    with pytest.raises(DataError, match=r"'Dogs Dogs Dogs .*; give a shorter sentence"):
        short.attention(long, "Hunde.")
    with pytest.raises(DataError, match=r"'Dogs Dogs Dogs .*max_positions=8; split the sentence"):
        short.encode_states([long])
    assert len(short.encode_states(["Dogs"]).split()) == 1
    assert short.score([("Dogs", "Hunde")]) < 0


def test_any_iterable_of_sentences_or_pairs_will_do(run: Run) -> None:
    src, tgt = (list(side) for side in zip(*PAIRS[:2], strict=True))
    assert run.translate([]) == []
    assert run.score([]).shape == (0,)
    expected = run.score(PAIRS[:2])
    assert len(expected) == 2
    for pairs in (zip(src, tgt, strict=True), map(list, PAIRS[:2]), np.array(PAIRS[:2])):
        np.testing.assert_array_equal(run.score(pairs), expected)
    found = run.translate(src, prefixes=["", "Ein"])
    # Lines as a file or a table has them: white space at the ends is no part of a sentence.
    lines = (f"\ufeff\t{each}\u3000\r\n" for each in src)
    assert run.translate(lines, prefixes=map(str, ["\n", "Ein\n"])) == found
    np.testing.assert_array_equal(
        run.score([(f" {s}\n", f"{t}\n") for s, t in PAIRS[:2]]), expected
    )


def test_an_element_that_is_no_text_is_named() -> None:
    for sentences, message in (
        ("Dogs climb", " is str 'Dogs climb'; give a list"),
        (None, " is NoneType None; give a list"),
        ((math.nan,), r"\[0\] is float nan, not a string; leave it out"),
        (["a", b"b"], r"\[1\] is bytes b'b', not a string; decode it"),
        (["a", "b", "c \ud83d"], r"\[2\] holds the lone surrogate U\+D83D at character 2"),
    ):
        with pytest.raises(DataError, match=f"^sentences{message}"):
            read_texts("sentences", sentences)


def test_a_pair_that_is_no_pair_of_text_is_named() -> None:
    for pairs, message in (
        ("AB", "pairs is str 'AB'; give a list"),
        (["AB"], r"pairs\[0\] is str 'AB', not a pair \(source, target\)"),
        ([("a", "b"), ("a",)], r"pairs\[1\] is tuple \('a',\), not a pair"),
        ([("\udc80", "b")], r"pairs\[0\]\[0\] holds the lone surrogate U\+DC80 at character 0"),
        ([{"en": "a", "de": "b"}], r"give \(row\['en'\], row\['de'\]\) of each row"),
        ([{"a", "b"}], r"pairs\[0\] is set .*, not a pair"),
        ({("a", "b"): 1}, r"pairs is dict \{\('a', 'b'\): 1\}; give a list of pairs"),
        ({("a", "b")}, "pairs is set .*; give a list of pairs"),
    ):
        with pytest.raises(DataError, match=message):
            read_pairs("pairs", pairs)


def test_columns_of_all_libraries_are_texts_and_tables_are_refused() -> None:
    """A table is refused with the columns that could be meant, as what it iterates over differs."""
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    columns: dict[str, list[str]] = {"en": ["a", "b"], "de": ["x", "y"]}
    frame, table = pandas.DataFrame(columns, index=[5, 3]), arrow.table(columns)
    hub = datasets.Dataset.from_dict(columns)
    for column in (
        frame["en"], frame["en"].array, frame.en.astype("category"), table["en"], iter(table["en"]),
        table["en"].combine_chunks(), hub["en"], np.array(["a", "b"]), np.array(["a", "b"], object),
        (row["en"] for row in hub), dict.fromkeys(["a", "b"]).keys(),
    ):  # fmt: skip
        assert read_texts("lines", column) == ["a", "b"]
    for pairs in (
        frame.values,
        frame.itertuples(index=False),
        [row for _, row in frame.iterrows()],
    ):
        assert read_pairs("pairs", pairs) == [("a", "x"), ("b", "y")]
    for whole in (frame, table, table.to_batches()[0], hub, hub.to_iterable_dataset(), columns):
        with pytest.raises(DataError, match=r" .*en.*de.*; give one of .* as lines\['en'\]$"):
            read_texts("lines", whole)
        with pytest.raises(DataError, match=r"; give pairs .* zip\(p\['en'\], p\['de'\]\)$"):
            read_pairs("p", whole)
    for rows in (hub.to_list(), map(dict, hub), frame.to_dict("records")):
        with pytest.raises(DataError, match=r"\[0\] is dict .* give one value .* row\['en'\]"):
            read_texts("lines", rows)
    for one in (np.array("a"), arrow.scalar("a"), frame["en"].iloc[0]):
        with pytest.raises(DataError, match=r"lines is .*a.*; give a list of strings"):
            read_texts("lines", one)


def test_ids_are_integers_in_rows() -> None:
    for rows in (
        np.array([[5, 6]]),
        jnp.array([[5, 6]]),
        [np.array([5, 6])],
        iter([(5, np.int8(6))]),
    ):
        assert read_ids("ids", rows, 7) == [[5, 6]]
    for given, message in (
        ([5, 6], r"ids\[0\] is int 5; give rows of ids, such as those of run\.encode"),
        ([[5.0]], r"ids\[0\]\[0\] is float 5\.0; give integers"),
        ([[True]], r"ids\[0\]\[0\] is bool True"),
        (["56"], r"ids\[0\] is str '56'; give rows"),
        ([{5: 6}], r"ids\[0\] is dict \{5: 6\}"),
    ):
        with pytest.raises(DataError, match=message):
            read_ids("ids", given, 7)


@pytest.mark.parametrize("name", ["translate", "score", "score_tokens", "encode_states"])
def test_every_function_that_takes_text_names_the_wrong_element(run: Run, name: str) -> None:
    """Through iterators, into which the type checks of the tests do not look."""
    given = [("a", "b"), ("a", None)] if name.startswith("score") else ["a", None]
    with pytest.raises(DataError, match=r"\[1\].* is NoneType None"):
        getattr(run, name)(iter(given))


def test_long_pairs_and_those_of_several_sentences_are_scored_whole_and_counted(
    workdir: Path, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.config.decoding, "split_sentences", "yes")
    scorer = TextScorer(RunModel(ModelRequest((workdir,), decoding={"split_sentences": "yes"})))
    longest = run.config.data.max_length
    long = [("Dogs climb. " * longest, "Hunde.")]
    for score in (run.score_tokens, lambda pairs: [*scorer.score(iter(pairs))]):
        caplog.clear()
        score(long)
        for message in (
            f"1 of 1 pairs have a side of more than data.max_length={longest} sub-words",
            "1 of 1 pairs have several sentences; they are scored whole, though a search trans",
        ):
            assert message in caplog.text


def test_fork_says_that_it_cannot_compute_and_a_run_stays_in_its_process(
    run: Run, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=r"cannot be sent to another process; call t2t\.load there"):
        pickle.dumps(run)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a fork knows itself by it
    for compute in (
        lambda: notebook.load(workdir),
        lambda: notebook.train(run.config, workdir),
        lambda: notebook.evaluate(run),
        lambda: run.translate(["A girl climbs."]),
        lambda: run.score([PAIRS[0]]),
        lambda: run.attention(*PAIRS[0]),
        lambda: run.logits(*PAIRS[0]),
    ):
        with pytest.raises(RunError, match="this process is a fork of one that has used JAX, wh"):
            compute()
