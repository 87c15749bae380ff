"""Models of text alone: prompts continued, gaps filled, texts scored."""

import contextlib
import dataclasses
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t
from t2t.api import line_program
from t2t.api.fill_gaps import encode_marked, make_filler
from t2t.api.line_program import LiveText
from t2t.api.line_translator import LineTranslator, translate_bulk, translate_lines
from t2t.api.run import Run
from t2t.api.text_scorer import TextScorer
from t2t.config.fields import Config, ConfigError, DataConfig, ModelConfig, TokenizerConfig
from t2t.data.batch import BOS_ID, EOS_ID
from t2t.data.corpus import DataError, ListCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.decoding.bulk import BulkPart, find_inputs
from t2t.decoding.continuation import Continuer
from t2t.decoding.translator import Translator
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest
from t2t.model.parameters import merge
from tests import programs
from tests.programs import make_environment
from tests.tiny_run import PAIRS, make_run

pytestmark = pytest.mark.usefixtures("shared_programs")

PROMPTS = ["Zwei Hunde", "Ein", "Der alte Mann, der Fisch verkauft, schläft.", "Nichts"]
# Vocabularies that spell some characters as UNK, or in another way.
NO_BYTES: dict[str, Any] = {"byte_fallback": False, "vocab_size": 80}
SYMBOLS: dict[str, Any] = {"kind": "symbols", "vocab_size": 24}
LOWER: dict[str, Any] = {"lowercase": True, "vocab_size": 330}
SAMPLING: dict[str, Any] = {"strategy": "sampling", "temperature": 0.5}


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("lm") / "run", "lm", model={"kind": "decoder_only"})


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("spans") / "run", "span_corruption")


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(
        tmp_path_factory.mktemp("masked") / "run", "masked_lm", model={"kind": "encoder_only"}
    )


def generate(run: Path, *flags: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return programs.run("t2t.generate", f"--workdir={run}", *flags, given=given.encode())


def compute_log_probs(run: Run, ids: list[int]) -> np.ndarray:
    """Log P of each sub-word of a text, by one pass of the model over the text."""
    row = np.zeros((1, 128), int)  # of one length, so that it is compiled once
    row[0, : len(ids)] = [BOS_ID, *ids[:-1]]
    logits = run.logits([[EOS_ID]], row)[0]
    return np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids)), ids]


def predict_masked(run: Run, ids: list[int]) -> np.ndarray:
    """Log P of all sub-words at each place of a text with masks."""
    structure, _ = run._model.members.abstract(*run.vocabulary.sizes)
    model = merge(structure, run.params)
    return np.asarray(jax.nn.log_softmax(model.compute_logits(model.encode(jnp.array([ids]))[0])))[
        0
    ]


@pytest.mark.parametrize(
    ("model", "decoding"),
    [
        ({"position": "rotary", "norm_position": "pre", "prefix": False}, SAMPLING),
        ({"position": "learned", "tie_embeddings": "none"}, {"beam_size": 1, "min_length": 2}),
        ({"position": "relative", "prefix": False}, {"beam_size": 2}),
    ],
    ids=["samples", "greedy", "beam"],
)
def test_log_probs_of_search_and_score_are_equal(
    tmp_path: Path, model: dict[str, Any], decoding: dict[str, Any]
) -> None:
    run = t2t.load(make_run(tmp_path / "run", "lm", model={"kind": "decoder_only", **model}))
    count = min(decoding.get("beam_size", 2), 2)
    outputs = run.generate_n_best(PROMPTS, count, **decoding)
    for prompt, found in zip(PROMPTS, outputs, strict=True):
        [[*begin, _]] = run.encode([prompt])
        for each in found:
            assert each.text.startswith(prompt)
            assert len(each.ids) == each.length <= run.config.decoding.max_extra_length + 1
            log_probs = compute_log_probs(run, [*begin, *each.ids])[len(begin) :]
            np.testing.assert_allclose(each.log_prob, log_probs.sum(), rtol=1e-5, atol=1e-5)
            if run.encode([each.text]) == [[*begin, *each.ids]]:
                [tokens] = run.score_tokens([each.text])
                np.testing.assert_allclose(tokens[len(begin) :], log_probs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decoding", [{}, SAMPLING | {"top_k": 20, "top_p": 0.9}])
def test_text_is_the_same_in_batches_of_any_size(lm: Path, decoding: dict[str, Any]) -> None:
    run = t2t.load(lm)
    together, apart = (run.generate(PROMPTS, **decoding, batch_size=n) for n in (64, 1))
    assert together == apart
    if decoding:
        assert run.generate(PROMPTS, **decoding, sampling_seed=1) != together


def test_output_ends_before_the_first_stop_string_behind_the_prompt(lm: Path) -> None:
    run = t2t.load(lm)
    [[whole]] = run.generate_n_best(["Zwei"], 1, **SAMPLING)
    behind = whole.text.removeprefix("Zwei")
    first, second = behind[1], behind[2]
    [[[cut]], [[other]]] = (
        run.generate_n_best(["Zwei"], 1, stop=stop, **SAMPLING)
        for stop in ([second, first], ["Zw"])
    )
    assert cut.text == "Zwei" + behind[: behind.index(first)].rstrip()
    assert other == whole  # "Zw" stands in the prompt alone
    assert (cut.log_prob, cut.length) == (whole.log_prob, whole.length)
    with pytest.raises(ConfigError, match="a stop string is empty"):
        run.generate(["Ein"], stop=[""])


def test_stop_string_may_begin_with_the_space_that_ends_the_prompt(lm: Path) -> None:
    run, varied = t2t.load(lm), SAMPLING | {"temperature": 5.0}
    [samples] = run.generate_n_best(["Zwei"], 32, **varied)
    number, stop = next(
        (number, behind[:2])
        for number, each in enumerate(samples)
        if (behind := each.text.removeprefix("Zwei")).startswith(" ")
    )
    for prompt in ("Zwei", "Zwei "):  # one sentence to the model
        [cut] = run.generate_n_best([prompt], 32, stop=[stop], **varied)
        assert cut[number].text == prompt


def test_empty_prompt_is_the_beginning_of_a_text(lm: Path) -> None:
    run = t2t.load(lm)
    for [found] in run.generate_n_best(["", "Ein", " "], 1, **SAMPLING)[::2]:
        log_probs = compute_log_probs(run, [*found.ids])
        np.testing.assert_allclose(found.log_prob, log_probs.sum(), rtol=1e-5, atol=1e-5)
        assert found.text.strip() == run.decode([found.ids])[0].strip()
    lines = generate(lm, given="Ein\n\nZwei\n").stdout.splitlines()
    assert lines == run.generate(["Ein", "", "Zwei"])


@pytest.mark.parametrize(
    ("tokenizer", "stop", "message"),
    [
        ({}, "\n", r"the stop string '\\n': the vocabulary spells it ' '; change it"),
        ({}, "a  b", "the vocabulary spells it 'a b'"),
        (LOWER, "Hund", "the vocabulary spells it 'hund'"),
        (NO_BYTES, "1 €", "the vocabulary lacks '1€'"),
        (SYMBOLS, "?", "the vocabulary lacks '[?]'"),
        ({}, "€", ""),  # bytes may spell it
        (
            SYMBOLS | {"kind": "characters", "byte_fallback": False},
            "a\u00e4  ?",
            "lacks '\u00e4[?]'",
        ),
        (SYMBOLS | {"kind": "bytes"}, "a  \u00e4?", ""),
        (SYMBOLS, "und ", ""),  # a part of a symbol, and the space between two
        (NO_BYTES | {"lowercase": True}, "hund", ""),
    ],
)
def test_stop_string_that_no_output_holds_is_refused(
    tmp_path: Path, tokenizer: dict[str, Any], stop: str, message: str
) -> None:
    config = dataclasses.replace(TokenizerConfig(), **{"vocab_size": 330} | tokenizer)
    vocabulary = train_vocabulary([ListCorpus("toy", PAIRS)], config, tmp_path)
    model = ModelConfig(kind="decoder_only", num_layers=1, d_model=16, d_ff=32, num_heads=2)
    refused = pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext()
    with refused:
        Continuer(Config(model=model, data=DataConfig(objective="lm")), vocabulary, stop=[stop])


def test_prompt_that_is_too_long_is_refused(tmp_path: Path) -> None:
    positions = {"position": "learned", "max_positions": 512}
    short = t2t.load(
        make_run(tmp_path / "short", "lm", model={"kind": "decoder_only", **positions})
    )
    [[*found]] = short.generate_n_best(["Ein " * 100], 1)
    assert found[0].length > 1
    with pytest.raises(DataError, match=r"prompt 1 has \d+ sub-words, .* 256 .*; shorten the prom"):
        short.generate(["Ein Hund " * 200])


@pytest.mark.parametrize("kind", ["transformer", "decoder_only"])
def test_model_of_a_prefix_lm_continues_the_prompt_that_is_its_source(
    tmp_path: Path, kind: str
) -> None:
    config: dict[str, dict[str, Any]] = {
        "model": {"kind": kind},
        "data": {"prefix": "Ein Text:", "max_length": 64},
    }
    run = t2t.load(make_run(tmp_path / "run", "prefix_lm", **config))
    prefix = run.vocabulary.src.encode_words(["Ein Text:"])[0][:-1]
    for prompt, found in zip(PROMPTS, run.generate_n_best(PROMPTS, 2), strict=True):
        source = [*prefix, *run.vocabulary.tgt.encode([prompt])[0]]
        for each in found:
            assert each.text.startswith(prompt)
            assert len(each.ids) == each.length <= len(source) + 4
            logits = run.logits([source], np.array([[BOS_ID, *each.ids[:-1]]]))[0]
            log_probs = np.asarray(jax.nn.log_softmax(logits))[np.arange(each.length), each.ids]
            np.testing.assert_allclose(each.log_prob, log_probs.sum(), rtol=1e-5, atol=1e-5)
    [whole] = run.generate(PROMPTS[:1])
    [stopped] = run.generate(PROMPTS[:1], stop=[whole[-1]])
    assert stopped.startswith(PROMPTS[0])
    assert whole[-1] not in stopped.removeprefix(PROMPTS[0])
    with pytest.raises(DataError, match=r"prompt 2 has \d+ sub-words .* at most 64 .*; shorten"):
        run.generate(["Ein", "Ein Hund " * 200])


def test_a_task_of_another_kind_is_refused_with_the_flag_for_another_one(tmp_path: Path) -> None:
    tasks = "translate:", "go: objective=prefix_lm prefix='Go on:'"
    run = t2t.load(make_run(tmp_path / "run", data={"mixture": tasks}))
    with pytest.raises(ConfigError, match=r"of the task translate \(--task names another\) trains"):
        run.generate(["Ein"])


@pytest.mark.parametrize(
    ("name", "call", "text", "message"),
    [
        ("run", "generate", ["Ein"], "trains no model to continue a text; use t2t.translate, or"),
        ("spans", "generate", ["Ein"], "trains no model to continue a text; use t2t.generate --f"),
        ("lm", "translate", ["Ein"], "trains no model to translate; t2t.generate uses it, and"),
        ("run", "fill", "Ein", "has no sentinels, so its model fills no gaps; use a run of"),
        ("lm", "fill", "Ein", "trains no model to fill gaps; use t2t.generate without --fill"),
        ("spans", "fill", "Ein", r"has the gaps \(none\); write <extra_id_0>, <extra_id_1>, "),
        ("spans", "fill", 2 * "<extra_id_0>", "has the gaps <extra_id_0>, <extra_id_0>; write <e"),
        ("spans", "fill", "".join(f"<extra_id_{n}>" for n in range(15)), "15 gaps, .* knows 14; f"),
    ],
)
def test_runs_and_texts_of_other_kinds_are_refused(
    request: pytest.FixtureRequest, name: str, call: str, text: Any, message: str
) -> None:
    run = t2t.load(request.getfixturevalue(name))
    with pytest.raises((ConfigError, DataError), match=message):
        getattr(run, call)(text)


def test_flags_that_do_not_fit_are_refused(lm: Path, masked: Path) -> None:
    for run, flags, message in (
        (lm, ["--fill", "--stop=a"], "--stop is not for --fill; leave it out"),
        (masked, ["--fill", "--beam_size=2"], "decoding.beam_size=2 is not used by"),
        (lm, ["--max_source_length=9"], "decoding.max_source_length=9 is not used by"),
    ):
        command = "t2t.generate", f"--workdir={run}"
        assert message in programs.refuse(*command, *flags, given=b"Ein\n")


def test_program_prints_what_python_returns(lm: Path, masked: Path, spans: Path) -> None:
    given = "".join(f"{prompt}\n" for prompt in PROMPTS)
    assert generate(lm, given=given).stdout.splitlines() == t2t.load(lm).generate(PROMPTS)
    flags = ["--strategy=sampling", "--num_samples=2", "--scores"]
    rows = [line.split("\t") for line in generate(lm, *flags, given=given).stdout.splitlines()]
    found = t2t.load(lm).generate_n_best(PROMPTS, 2, strategy="sampling")
    assert rows == [
        [str(number), f"{each.score:.4f}", each.text]
        for number, own in enumerate(found, start=1)
        for each in own
    ]
    for run, text in ((masked, "Ein [MASK] klettert [MASK]"), (spans, "Ein <extra_id_0>.")):
        done = generate(run, "--fill", "--n_best=2", "--scores", given=text)
        expected = t2t.load(run).fill(text, 2)
        assert len(expected) == 2
        assert [line.split("\t")[2:] for line in done.stdout.splitlines()] == [
            [each.text, *(x for gap in each.gaps for x in (f"{gap.log_prob:.4f}", gap.text))]
            for each in expected
        ]


GENERATE_WITH_MARKS = """
import runpy
from t2t.api import line_program
write = line_program._write
line_program._write = lambda text: write(f"{text}|")
runpy.run_module("t2t.generate", run_name="__main__", alter_sys=True)
"""


def test_terminal_shows_a_text_while_it_grows(lm: Path) -> None:
    """Its whole is what a pipe gets; an empty line that is typed is no prompt."""
    flags = ["--strategy=sampling", "--max_extra_length=40"]
    [line] = generate(lm, *flags, given="Ein").stdout.splitlines()
    terminal, stdio = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", GENERATE_WITH_MARKS, f"--workdir={lm}", *flags],
        stdin=stdio, stdout=stdio, stderr=subprocess.PIPE, env=make_environment(),
    )  # fmt: skip
    os.write(terminal, b"\nEin\n")
    shown = b""
    while b"\n" not in shown.partition(b"Ein\r\n")[2]:
        shown += os.read(terminal, 10_000)
    os.write(terminal, b"\x04")
    assert process.wait(600) == 0
    assert process.stderr
    process.stderr.close()
    found = shown.decode().replace("\r", "").splitlines()[2]
    assert found.count("|") > 3
    assert found.replace("|", "") == line
    for number in (terminal, stdio):
        os.close(number)


def test_line_with_a_stop_string_comes_once_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of the string waits, as do white space before it and parts of characters."""
    shown: list[str] = []
    monkeypatch.setattr(line_program, "_write", shown.append)
    live = LiveText(len("den") - 1)
    for text in ("Die", "Die Frau hat de", "Die Frau hat d\ufffd\ufffd"):
        live.show(text)
    live.finish("Die Frau hat\n")
    assert shown == ["D", "ie Frau hat", "", "\n"]


def test_bulk_refuses_a_bad_line_before_anything_is_written(spans: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Ein <extra_id_0>\n\nZwei\n")
    flags = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out", "--shard_lines=1"]
    done = generate(spans, "--fill", *flags)
    assert "in.txt: text 2 has the gaps (none)" in done.stderr
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)


def test_gaps_are_the_spans_of_the_output(spans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an output that a trained model could give."""
    run = t2t.load(spans)
    [[*begin, _]], first = run.encode(["Hund klettert"]), run.vocabulary.tgt.sentinel_ids
    given = [first[0], *begin, first[1], EOS_ID]
    make = Translator._make_translation

    def replace(self: Any, piece: Any, ids: list[int], score: float, log_prob: float) -> Any:
        del ids
        return make(self, piece, given, score, log_prob)

    monkeypatch.setattr("t2t.api.fill_gaps.GapFiller._make_translation", replace)
    [found] = run.fill("Ein <extra_id_0> auf<extra_id_1>, <extra_id_2> schläft.")
    assert found.text == "Ein Hund klettert auf, schläft."
    assert [gap.text for gap in found.gaps] == ["Hund klettert", "", ""]
    [source] = [encode_marked(run.vocabulary.src, ["Ein", " auf", ", ", " schläft."], first[:3])]
    logits = jax.nn.log_softmax(run.logits([source], [[BOS_ID, *given[:-1]]])[0])
    each = np.asarray(logits)[np.arange(len(given)), given]
    expected = [each[1:-1].sum(), each[-1], -np.inf]
    np.testing.assert_allclose([gap.log_prob for gap in found.gaps], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ein <extra_id_0> klettert.", " Ein<extra_id_0> klettert.</s>"),
        ("<extra_id_0>klettert<extra_id_1>.", "<extra_id_0>klettert<extra_id_1>.</s>"),
    ],
)
def test_text_around_gaps_has_the_sub_words_that_it_has_without(
    spans: Path, text: str, expected: str
) -> None:
    vocabulary = Vocabulary.load(spans / "vocab")
    parts, ids = re.split(r"<extra_id_\d>", text), vocabulary.src.sentinel_ids
    found = encode_marked(vocabulary.src, parts, ids[: len(parts) - 1])
    assert [*filter(ids.__contains__, found)] == ids[: len(parts) - 1]
    assert "".join(vocabulary.src.pieces(found)).replace("▁", " ") == expected


@pytest.mark.parametrize(
    ("tokenizer", "parts", "expected"),
    [
        (SYMBOLS, ["Hunde ", ". Ein"], "▁Hunde<0>▁.▁Ein"),
        (SYMBOLS, ["Hunde ", "Ein"], "▁Hunde<0>▁Ein"),
        (NO_BYTES, ["Ein ", "€ Ein"], "▁Ein<0><unk>▁Ein"),
        (NO_BYTES, ["€", "€n"], "▁<unk><0><unk>n"),
    ],
)
def test_what_touches_a_gap_is_read(
    tmp_path: Path, tokenizer: dict[str, Any], parts: list[str], expected: str
) -> None:
    config = dataclasses.replace(TokenizerConfig(sentinels=1), **tokenizer)
    corpus = ListCorpus("toy", [("Hunde .", "Ein .")] * 9 + PAIRS)
    own = train_vocabulary([corpus], config, tmp_path).src
    spelled = "".join(own.pieces(encode_marked(own, parts, own.sentinel_ids)[:-1]))
    assert spelled.replace("<extra_id_0>", "<0>") == expected


def test_bytes_that_fill_neighbouring_masks_are_one_character(masked: Path) -> None:
    run = t2t.load(masked)
    euro = run.vocabulary.tgt.encode_behind("€")
    filler = make_filler(run._model, run.config)
    [[piece]] = filler._cut_all(["Ein [MASK][MASK][MASK] [MASK]"], None, 0)
    assert len(euro) == 3
    assert filler._insert(piece, [*([token] for token in euro), [euro[0]]]) == "Ein € \ufffd"


def test_masks_have_the_best_sub_words_of_one_pass(masked: Path) -> None:
    run = t2t.load(masked)
    mask, *_ = run.vocabulary.tgt.sentinel_ids
    found = run.fill("Ein [MASK] klettert [MASK].", 3)
    row = encode_marked(run.vocabulary.tgt, ["Ein ", " klettert ", "."], [mask, mask])
    log_probs = predict_masked(run, row)
    words = run.vocabulary.tgt.word_ids
    for number, place in enumerate(np.flatnonzero(np.array(row) == mask)):
        best = sorted(words, key=lambda token: -log_probs[place, token])[:3]
        assert [each.ids[place] for each in found] == best
        values = [each.gaps[number].log_prob for each in found]
        np.testing.assert_allclose(values, log_probs[place, best], rtol=1e-5, atol=1e-5)
    assert found[0].log_prob == pytest.approx(sum(gap.log_prob for gap in found[0].gaps))


def test_score_of_text_alone(lm: Path, masked: Path, tmp_path: Path) -> None:
    """A language model's is log P; that of masked sub-words has each by itself masked."""
    texts = ["Ein Mädchen klettert.", "Zwei Hunde"]
    (tmp_path / "in.de").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    other, run = t2t.load(lm), t2t.load(masked)
    for each in (other, run):
        done = programs.run("t2t.score", f"--workdir={each.workdir}", f"--tgt={tmp_path}/in.de")
        found = [float(line) for line in done.stdout.splitlines()]
        np.testing.assert_allclose(found, each.score(texts), atol=1e-5)
    expected = [compute_log_probs(other, ids).sum() for ids in other.encode(texts)]
    np.testing.assert_allclose(other.score(texts), expected, rtol=1e-5)

    [[*ids, _]], [terms] = run.encode(texts[:1]), run.score_tokens(texts[:1])
    assert len(terms) == len(ids)
    [mask] = run.vocabulary.tgt.sentinel_ids
    for place, token in enumerate(ids):
        log_probs = predict_masked(run, [*ids[:place], mask, *ids[place + 1 :], EOS_ID])
        np.testing.assert_allclose(terms[place], log_probs[place, token], rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="has no probability"):
        run.logits(texts[0], texts[0])


def test_sources_are_for_models_that_read_them(lm: Path, run: Path) -> None:
    of_text, of_pairs = (TextScorer(RunModel(ModelRequest((each,)))) for each in (lm, run))
    of_text.check_sources(given=True, listed=True)
    with pytest.raises(ConfigError, match=r"--src is given, but data\.objective='lm' is of text"):
        of_text.check_sources(given=True, listed=False)
    with pytest.raises(ConfigError, match="--src is missing; name the file"):
        of_pairs.check_sources(given=False, listed=False)


@pytest.mark.parametrize(
    ("objective", "tokenizer", "unknown"),
    [
        ("lm", NO_BYTES, ["'€' (2 times)", "'5'", "'猫'"]),
        ("lm", SYMBOLS, ["'€'", "'5'", "'Preis:'", "'HUNDE'"]),
        ("lm", LOWER, []),
        ("masked_lm", NO_BYTES, ["'€' (2 times)", "'5'", "'猫'"]),
        ("masked_lm", SYMBOLS, ["'€'", "'5'", "'Preis:'", "'HUNDE'"]),
        ("span_corruption", NO_BYTES | {"lowercase": True}, ["'€' (2 times)", "'5'", "'猫'"]),
        ("translation", NO_BYTES, ["'€' (2 times)", "'5'", "'猫'"]),
    ],
)
def test_the_users_text_stays_as_it_is_and_what_is_unknown_is_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    objective: str,
    tokenizer: dict[str, Any],
    unknown: list[str],
) -> None:
    kind = {"lm": "decoder_only", "masked_lm": "encoder_only"}.get(objective, "transformer")
    sections = {
        "model": {"kind": kind},
        "tokenizer": tokenizer,
        "decoding": {"max_extra_length": 40 if objective == "translation" else 4},
    }
    run = t2t.load(make_run(tmp_path / "run", objective, **sections))
    text, search = "Preis:  5 € 猫 HUNDE €?", dict[str, Any](beam_size=1)
    if objective == "lm":
        assert run.generate([text], **search)[0].startswith(text)
    elif objective == "translation":
        assert run.translate(["Dogs climb."], prefixes=[text], **search)[0].startswith(text)
    else:
        mark, search = ("[MASK]", {}) if objective == "masked_lm" else ("<extra_id_0>", search)
        for start, end in (("Preis:  5 € 猫 ", " HUNDE €?"), ("Preis:  5 € 猫", "HUNDE €?")):
            caplog.clear()
            [found] = run.fill(start + mark + end, **search)
            assert found.text.startswith(start)
            assert found.text.endswith(end)
            assert found.text[len(start) : -len(end)].strip() == found.gaps[0].text
    named = [each for each in caplog.messages if "vocabulary lacks" in each]
    assert len(named) == bool(unknown)
    assert all(each in named[0] for each in unknown)


def test_samples_of_each_file_differ_and_those_of_the_first_are_a_pipes(
    lm: Path, tmp_path: Path
) -> None:
    """In any number of parts, and also if a file is added in front of the others later."""
    lines, search = b"Ein\nEin\nZwei\n", SAMPLING | {"temperature": 2.0, "max_extra_length": 9}
    request = ModelRequest((lm,), decoding=search)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(lines)

    def generate_files(names: str, output: str, *parts: BulkPart) -> dict[str, str]:
        for part in parts:
            inputs = find_inputs([str(tmp_path / name) for name in names], tmp_path / output)
            translator = LineTranslator(request, make=make_continuer)
            translate_bulk(translator, inputs, part, 2, scored=False)
        return {path.name: path.read_text("utf-8") for path in (tmp_path / output).glob("?")}

    whole = generate_files("bc", "whole", BulkPart())
    assert whole["b"] != whole["c"]
    assert len({*whole["b"].splitlines(), *whole["c"].splitlines()}) == 6
    assert generate_files("bc", "parts", BulkPart(1, 2), BulkPart(0, 2)) == whole
    more = generate_files("abc", "whole", BulkPart())
    assert {name: more[name] for name in whole} == whole
    assert more["a"] not in whole.values()
    piped = translate_lines(
        LineTranslator(request, make=make_continuer), iter(lines.splitlines(True))
    )
    assert [found.text for [found] in piped] == whole["b"].splitlines()


def make_continuer(model: RunModel) -> Continuer:
    return Continuer(model.config, model.vocabulary, model.members)


def test_number_of_samples_is_that_of_the_outputs(lm: Path, masked: Path) -> None:
    assert len(t2t.load(lm).generate_n_best(["Ein"], 2, num_samples=2, **SAMPLING)[0]) == 2
    with pytest.raises(ConfigError, match="n_best=0 must be positive"):
        t2t.load(masked).fill("Ein [MASK]", 0)
