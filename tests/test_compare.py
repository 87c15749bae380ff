"""The report that t2t.compare prints about runs."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from t2t.api.compare_runs import compare, verify
from t2t.config.fields import ConfigError
from t2t.evaluation.saved_evaluations import EvaluationError
from tests import programs
from tests.evaluation.saved_evaluations import (
    REFERENCES,
    SOURCES,
    drop_words,
    save,
    save_predictions,
    spoil,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with two seeds, a clearly worse system, and one that differs in one sentence."""
    folder = tmp_path_factory.mktemp("runs")
    save(folder / "base-0", spoil(8))
    save(folder / "base-1", spoil(9), config={"seed": 1, "data.train_src": "translated.en"})
    save(folder / "one_head", spoil(2), config={"model.num_heads": 1})
    save(folder / "near", spoil(9), config={"training.label_smoothing": 0.0})
    return folder


def report(
    runs: Path, *operands: str, measure: str | None = "bleu", plot: Path | None = None
) -> str:
    places = [",".join(f"{runs}/{run}" for run in system.split(",")) for system in operands]
    may_differ = ["data.train_src"]
    return compare(places, measure, "test", "", plot, may_differ).replace(f"{runs}/", "")


def flat(text: str) -> str:
    """The text without its lines."""
    return " ".join(text.split())


def list_items(text: str) -> list[str]:
    """The items of the lists, each in one line."""
    return [flat(item) for item in re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)]


def test_table_sentence_and_buckets_tell_systems_apart(runs: Path, tmp_path: Path) -> None:
    text = report(runs, "base-0", "one_head", "near", plot=tmp_path / "plot.svg")
    items = list_items(text)
    found = (
        r"Of 2 comparisons by bleu, none is better than base-0, 1 is worse \(one_head -\S+\) and "
    )
    assert re.match(found + r"1 is not distinguishable \(near\); this covers .* alone", flat(text))
    assert re.search(r"^base-0 +\d\d\.\d\d\n", text, re.MULTILINE)
    assert "- test, 48 sentences; bleu: nrefs:1|case:mixed|eff:no|tok:13a|" in text
    assert "base-0: base-0, evaluation test-100" in items
    assert "one_head changes model.num_heads 8 -> 1" in items
    header = "system seeds bleu 95% over sentences 95% over seeds"
    assert header.split() in [line.split() for line in text.splitlines()]
    [one_head] = [item for item in items if item.startswith("one_head is")]
    values = re.match(r"one_head is worse than base-0: (\S+) bleu against (\S+), (\S+) ", one_head)
    assert values
    assert float(values[1]) - float(values[2]) == pytest.approx(float(values[3]), abs=0.02)
    assert "from 48 sentences)" in one_head
    [near] = [item for item in items if item.startswith("near is")]
    assert near.startswith("near is not distinguishable from base-0: ")
    assert any(item.startswith("These 2 comparisons are judged together") for item in items)
    assert any(item.startswith("No verdict by the references' log-probability") for item in items)
    assert len(re.findall(r"^(1-10|11-20) +\d+  base-0 ", text, re.MULTILINE)) == 2
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


def test_output_fits_a_terminal_of_100_columns(tmp_path: Path) -> None:
    """And a number has one precision wherever it stands."""
    folder = tmp_path / "a folder with a name that alone takes a third of the line"
    for number, name in enumerate(["base", "another_base_with_a_long_name"]):
        for seed in (0, 1):
            config = {"seed": seed, "model.position": f"position-{number}"}
            lines = drop_words(0.1 + number / 5, seed)
            save(folder / f"{name}-seed{seed}", lines, nats=0.7 + number + seed / 99, config=config)
    places = [f"{folder}/{name}-seed0,{folder}/{name}-seed1" for name in
              ("base", "another_base_with_a_long_name")]  # fmt: skip
    text = compare(places, None, "test", "", None)
    lines = [line for line in text.splitlines() if str(folder) not in line]
    assert max(map(len, lines)) <= 100
    verdict = "another_base_with_a_long_name is worse than base: "
    facts = (
        r"(-\S+) bleu (\[-\S+ -\S+\]), p (\S+ \S+); this covers the choice of the sentences and "
    )
    found = re.match(verdict + facts, flat(text))
    assert found
    difference, interval, p_value = found.groups()
    assert flat(text).count(f"{difference} {interval}") == 2, "in the table and in the plot"
    assert f"{difference} (95% interval {interval}, two-sided p {p_value}; " in flat(text)
    assert f"worse, p {p_value} " in text


def test_seeds_make_one_system(runs: Path) -> None:
    text = report(runs, "base-0,base-1", "one_head")
    assert text.startswith("one_head is worse than base: ")
    assert "sentences and of the seeds (1 to 2 each)." in flat(text)
    assert "from 2 and 1 seeds on these 48 sentences" in flat(text)
    assert "base: base-0 (and 1 more seed), evaluation test-100" in list_items(text)
    assert "base: each seed has its own data.train_src" in list_items(text)
    assert re.search(r"^base +\d\d\.\d\d, 2 seeds\n", text, re.MULTILINE)
    alone = report(runs, "base-0,base-1")
    assert re.match(r"base has \S+ bleu \[\S+, \S+\] \(95% over sentences\), the mean of 2", alone)
    assert "one seed" not in alone


def test_log_probability_sees_what_bleu_does_not(tmp_path: Path) -> None:
    for name, nats in (("first", 0.70), ("second", 0.72)):
        save(tmp_path / name, spoil(8), nats=nats)
    save(tmp_path / "third", spoil(8))
    text = report(tmp_path, "first", "second")
    assert text.startswith("second is not distinguishable from first: ")
    assert "By log-probability second is worse than first." in flat(text)
    assert "perplexity per sub-word: first 2.04, second 2.08" in flat(text)
    worse = "second is worse than first: 0.7311 nats per sub-word against 0.7111, +0.0200 ("
    assert worse in flat(text)
    assert "a run was evaluated without it" in flat(report(tmp_path, "first", "third"))
    assert "neutral" not in text
    config = {"training.loss": "own", "training.label_smoothing": 0.0, "plugin.own.mix": 0.5}
    path = save(tmp_path / "fourth", spoil(8), nats=0.7, config=config).path
    log_probs = path.with_suffix(".log_probs.txt")
    log_probs.write_text(log_probs.read_text().replace("\n", "\nnan 0\n", 1).rpartition("-")[0])
    text = flat(report(tmp_path, "first", "fourth"))
    assert "1 of 48 references have no finite log-probability under some run, or no" in text
    assert "from that of first (fourth: training.loss cross_entropy -> own, " in text


def test_runs_on_text_alone_are_compared_by_what_they_predict(tmp_path: Path) -> None:
    save_predictions(tmp_path / "base", 2.0, left_out=5)
    save_predictions(tmp_path / "base-1", 2.01, left_out=5, config={"seed": 1})
    save_predictions(tmp_path / "worse", 3.0, left_out=5, config={"model.d_model": 8})
    text = report(tmp_path, "base,base-1", "worse", measure=None)
    assert "- test, 47 sentences; perplexity: exp(nats / sub-words); lm: all sub-" in text
    assert re.search("- worse changes .*model.d_model 512 -> 8", flat(text))
    assert "worse is worse than base: 20.31 perplexity against 7.5" in flat(text)
    assert re.search(r"^accuracy +worse +-11\.11 ", text, re.MULTILINE)
    assert "log-probability" not in text
    assert "perplexity by length in words" in text
    alone = report(tmp_path, "worse", "base", measure="accuracy")
    assert "base is better than worse: 77.78 accuracy against 66.67, +11.11" in flat(alone)
    assert "verified, 2 measures" in verify([str(tmp_path / "base")], "test", "")


def test_predictions_of_other_things_are_not_compared(tmp_path: Path) -> None:
    texts = REFERENCES[:4]  # too few for intervals, which take time
    save(tmp_path / "pairs", texts, sources=texts, references=texts)
    runs: dict[str, dict[str, Any]] = {
        "lm": {},
        "dense": {"predicted": "half of all"},
        "longer": {"left_out": 3},
        "other": {"texts": texts[::-1]},
        "lower": {"config": {"tokenizer.lowercase": True}},
    }
    for name, changes in runs.items():
        save_predictions(tmp_path / name, 2.0, **{"texts": texts} | changes)
    for second, message in {
        "pairs": r"different objective: lm -> translation; .* one objective",
        "dense": "another definition .*; compare runs whose data.objective has the same settings",
        "longer": r"different numbers of sub-words .* too long for one",
        "other": "different references: .*; evaluate both on one test set, with --split, or",
        "lower": "lower-case text .* one case",
    }.items():
        with pytest.raises(EvaluationError, match=message):
            report(tmp_path, "lm", second, measure=None)
    with pytest.raises(EvaluationError, match=r"bleu is for translations, .*perplexity, accuracy$"):
        report(tmp_path, "lm", "longer")


def test_log_probability_of_another_case_is_not_compared(tmp_path: Path) -> None:
    save(tmp_path / "cased", spoil(8), nats=0.7)
    save(tmp_path / "near", spoil(9), nats=0.7)
    save(tmp_path / "lower", spoil(8), nats=0.5, config={"tokenizer.lowercase": True})
    items = list_items(report(tmp_path, "cased", "lower", "near", measure="bleu_lowercase"))
    start = "No verdict by the references' log-probability on lower: lower-case references"
    assert any(item.startswith(start) for item in items)
    perplexities = r"By .*, perplexity per sub-word: cased [\d.]+, near [\d.]+"
    assert any(re.fullmatch(perplexities, item) for item in items)
    assert "nats per sub-word" not in report(tmp_path, "cased", "lower", measure="bleu_lowercase")
    with pytest.raises(ConfigError, match="--measure=bleu counts lower-case outputs as errors"):
        report(tmp_path, "cased", "lower")


def test_invalid_comparison_is_refused(runs: Path, tmp_path: Path) -> None:
    for operands in (("base-0", "base-0/"), ("base-0,base-1", "base-0")):
        with pytest.raises(ConfigError, match=r"base-0/evaluations/.*\.json is given twice"):
            report(runs, *operands)
    with pytest.raises(ConfigError, match=r"--plot=plot\.txt must end in one of \.svg, \.png"):
        report(runs, "base-0", "near", plot=Path("plot.txt"))
    with pytest.raises(EvaluationError, match="holds no evaluation of test"):
        report(runs, "base-0", str(tmp_path))


def test_flag_that_chooses_nothing_is_refused(runs: Path) -> None:
    """Evaluations of a run are chosen by --split, --checkpoint or --evaluation; files by name."""
    files = [f"{runs}/{name}/evaluations/test-100.json" for name in ("base-0", "near")]
    for split, evaluation, checkpoint, message in (
        ("validation", "", "", r"base-0\S* is of the split test, not of --split=validation; "),
        ("", "test-200", "", r"base-0\S* is not --evaluation=test-200; the file chooses: leave"),
        ("test", "test-100", "", "--split and --evaluation both choose; leave one of them out"),
        ("", "test-100", "best", "--checkpoint and --evaluation both choose"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare(files, "bleu", split, evaluation, None, (), checkpoint)
        with pytest.raises(ConfigError, match=message):
            verify(files, split, evaluation, checkpoint)
    for split, evaluation in (("test", ""), ("", "test-100"), ("", "")):
        assert compare(files, "bleu", split, evaluation, None).startswith("near is")
    mixed = [files[0], f"{runs}/near"]
    assert compare(mixed, "bleu", "", "test-100.json", None) == compare(mixed, "bleu", "", "", None)


def test_program_takes_flags_before_and_behind_its_operands(runs: Path) -> None:
    def call(*arguments: str) -> tuple[int, str, str]:
        done = programs.run("t2t.compare", *arguments)
        return done.returncode, done.stdout, done.stderr

    status, output, messages = call(f"{runs}/base-0", f"{runs}/one_head", "--measure=exact_match")
    assert (status, messages) == (0, "")
    assert "one_head is worse than" in output
    assert call() == (2, "", "RUN is missing; see --help\n")
    _, _, refused = call("--verify", f"{runs}/base-0", "--measure=ter", "--may_differ=seed")
    assert refused == "--verify checks every score; leave out --measure, --may_differ\n"


def test_run_is_opened_whatever_its_name_looks_like(tmp_path: Path) -> None:
    for number, name in enumerate(["lr=0.003,seed=1", "a.json", "22:36:05"]):
        save(tmp_path / name, spoil(3 + number))
        text = compare([f"{tmp_path}/{name}"], "bleu", "test", "", None)
        assert text.startswith(f"{name} has ")
        assert verify([f"{tmp_path}/{name}"], "test", "")


def test_checkpoint_chooses_among_the_evaluations_of_a_run(tmp_path: Path) -> None:
    for name, every in (("one", 8), ("two", 2)):
        save(tmp_path / name, spoil(every), name="a", checkpoint="best-300", date="2026-01-01")
        save(tmp_path / name, spoil(3), name="b", checkpoint="avg5-300", date="2026-01-02")
    save(tmp_path / "two", spoil(3), name="c", checkpoint="200", date="2026-01-03")
    places = [f"{tmp_path}/one", f"{tmp_path}/two"]

    def choose(checkpoint: str) -> str:
        return compare(places, "bleu", "test", "", None, (), checkpoint)

    with pytest.raises(EvaluationError, match="differ in checkpoint: avg5-300 and 200"):
        choose("")
    for checkpoint, name in (("best", "a"), ("avg:5", "b")):
        items = list_items(choose(checkpoint))
        assert [item for item in items if item.endswith(f", evaluation {name}")] == [
            f"{system}: {tmp_path}/{system}, evaluation {name}" for system in ("one", "two")
        ]
    with pytest.raises(EvaluationError, match=r"one holds no evaluation of test at last; create .*"
                       r" --checkpoint=last"):  # fmt: skip
        choose("last")


def test_one_model_has_no_verdict_that_another_seed_may_change(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(tmp_path / name, spoil(3), nats=0.7, parameters="abc")
    text = report(tmp_path, "one", "two")
    assert flat(text).count("No verdict: two is the same model as one, with equal scores") == 2
    assert text.startswith("No verdict on two against one: +0.00 bleu")
    assert "another seed" not in text


SAMPLING = {"strategy": "sampling", "sampling_seed": 0}
NO_DRAWS = "the draws of the samples: another sampling_seed may give another verdict"
INT8 = {"compute_type": "int8", "devices": "x"}
ROUNDING = "the rounding, in which they differ by backend.compute_type float32 -> int8"


@pytest.mark.parametrize(
    ("one", "two", "covers"),
    [
        ({}, {"decoding": {"beam_size": 1}}, ", so only the choice of the sentences varies; it is"),
        ({}, {"decoding": SAMPLING}, f"covers the choice of the sentences, but not {NO_DRAWS}."),
        (
            {"decoding": SAMPLING},
            {"decoding": SAMPLING | {"sampling_seed": 1, "mbr": "chrf"}},
            f", but not {NO_DRAWS}.",
        ),
        ({}, {"backend": INT8}, f", but not {ROUNDING}."),
        ({}, {"decoding": SAMPLING, "backend": INT8}, f", but not {NO_DRAWS}, nor {ROUNDING}."),
        ({}, {"config": {"model.num_heads": 2}}, "with one run per system the variance over "),
        ({}, {"config": {"plugin.own.rank": 2}}, "with one run per system the variance over "),
        ({}, {"origin": {"vocabulary": "other"}}, "with one run per system the variance over "),
        ({}, {"origin": {"ensemble": {"mean": 1}}}, "with one run per system the variance over "),
    ],
)  # fmt: skip
def test_verdict_on_one_model_names_the_chances_that_it_does_not_cover(
    tmp_path: Path, one: dict[str, Any], two: dict[str, Any], covers: str
) -> None:
    places = []
    for name, facts, every in (("one", one, 3), ("two", two, 4)):
        own = {"backend": {"compute_type": "float32", "devices": "x"}, **facts}
        own["origin"] = {"parameters": "abc", "vocabulary": "v", **facts.get("origin", {})}
        places.append(str(save(tmp_path / name, spoil(every), nats=0.7, **own).path))
    items = list_items(compare(places, "bleu", "", "", None))
    [verdict] = [item for item in items if " bleu against " in item]
    assert covers in verdict


THAI, KHMER, LAO = "เด็กผู้หญิงปีนต้นไม้", "ក្មេងស្រីឡើងដើមឈើ", "ເດັກນ້ອຍປີນຕົ້ນໄມ້"
BURMESE, CHINESE, JAPANESE = "ကလေးရေခဲတိုက်", "女孩爬树小狗跑", "女の子が木に登る"
KOREAN = "소녀가 나무에 오르고 개가 달린다"


@pytest.mark.parametrize(
    ("language", "text", "lowercase", "expected"),
    [
        ("th", THAI, False, "chrf"), ("tha_Thai", THAI, True, "chrf_lowercase"),
        ("", THAI, False, "chrf"), ("km", KHMER, False, "chrf"), ("lo", LAO, False, "chrf"),
        ("my", BURMESE, False, "chrf"), ("", CHINESE, False, "chrf"), ("", JAPANESE, False, "chrf"),
        ("de", CHINESE, False, "chrf"), ("zh", CHINESE, False, "bleu"),
        ("zho_Hant", CHINESE, True, "bleu_lowercase"), ("", KOREAN, False, "bleu"),
    ],
)  # fmt: skip
def test_first_verdict_is_by_a_measure_that_means_something_for_the_script(
    tmp_path: Path, language: str, text: str, lowercase: bool, expected: str
) -> None:
    """sacreBLEU cuts Chinese if the language is known; it takes a Thai sentence for one word."""
    references = [f"{text[:3]}{text * (1 + n % 3)}{n}" for n in range(40)]
    outputs = {
        name: [line[:-1] if n % every else line[::-1] for n, line in enumerate(references)]
        for name, every in (("one", 5), ("two", 2))
    }
    config: dict[str, Any] = {
        "config": {"tokenizer.lowercase": lowercase},
        "tgt_language": language,
    }
    for name, lines in outputs.items():
        save(tmp_path / name, lines, sources=references, references=references, **config)
    text = flat(report(tmp_path, "one", "two", measure=None))
    notes = re.findall(
        "no spaces .* by which bleu.* would count.* first verdict is by (\\w*)", text
    )
    assert notes == [expected] * expected.startswith("chrf")
    bleu, chrf = BLEU(trg_lang=language[:2], lowercase=lowercase), CHRF(lowercase=lowercase)
    metric = chrf if notes else bleu
    one, two = (metric.corpus_score(lines, [references]).score for lines in outputs.values())
    assert f"two is worse than one: {two:.2f} {expected} against {one:.2f}, " in text


def test_few_sentences_and_empty_references_are_named(tmp_path: Path) -> None:
    sources, references = SOURCES[:9], ["", *REFERENCES[1:9]]
    for name, every in (("one", 8), ("two", 2)):
        save(tmp_path / name, spoil(every)[:9], sources=sources, references=references)
    text = report(tmp_path, "one", "two")
    assert text.startswith("No verdict on two against one: -")
    items = list_items(text)
    assert items[1] == "1 references are empty, but not their sources; nothing matches them"
    assert any(item.startswith("No verdict on two: ") for item in items)
    assert text.endswith("\nFewer than 30 sentences have no interval.")
    assert "[" not in text


def test_verdict_by_log_probability_leaves_missing_references_out(tmp_path: Path) -> None:
    """Also where an evaluation has a log-probability of them, which is that of EOS alone."""
    references = ["" if number < 8 else line for number, line in enumerate(REFERENCES)]
    sources = ["" if number == 7 else line for number, line in enumerate(SOURCES)]  # not missing
    for name, nats in (("one", 0.7), ("two", 0.72)):
        found = save(tmp_path / name, spoil(8), sources=sources, references=references, nats=nats)
        path = found.path.with_suffix(".log_probs.txt")
        saved = path.read_text().splitlines()
        path.write_text("".join(f"{line}\n" for line in ["-9.000000 1"] * 7 + saved[7:]))
    text = flat(report(tmp_path, "one", "two"))
    assert re.search(
        r"7 of 48 references .* are missing \(empty, but not their sources\); they", text
    )
    kept = [9 * 0.7 + number % 3 / 10 for number in range(7, 48)]
    expected = math.exp(sum(kept) / (9 * len(kept)))
    assert f"perplexity per sub-word: one {expected:.2f}, two " in text
