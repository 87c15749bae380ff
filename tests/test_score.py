"""t2t.score: log-probabilities of translations, and lists reranked by them."""

import io
from pathlib import Path

import numpy as np
import pytest

import t2t
from t2t.api.line_translator import LineTranslator, translate_lines
from t2t.api.run import Run
from t2t.api.text_scorer import TextScorer, rerank
from t2t.decoding.translation import format_lines
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest
from tests import programs
from tests.tiny_run import PAIRS

BEAM: dict[str, float | str] = {"beam_size": 3}


@pytest.fixture(scope="module")
def loaded(run: Path) -> Run:
    return t2t.load(run, "best")


@pytest.fixture(scope="module")
def scorer(run: Path) -> TextScorer:
    return TextScorer(RunModel(ModelRequest((run,)), BEAM))


@pytest.fixture(scope="module")
def list_path(run: Path) -> Path:
    """The three best translations of each source line that is not empty."""
    sources = [src for src, _ in PAIRS if src]
    (run / "in.txt").write_text("".join(f"{src}\n" for src in sources), "utf-8")
    lines = io.BytesIO((run / "in.txt").read_bytes())
    translator = LineTranslator(ModelRequest((run,)), BEAM, n_best=3)
    found = translate_lines(translator, iter(lines))
    path = run / "list.txt"
    text = (format_lines(n, each, True, True) for n, each in enumerate(found, start=1))
    path.write_text("".join(text), "utf-8")
    return path


def test_program_prints_a_score_for_each_pair_and_each_sub_word(run: Path, loaded: Run) -> None:
    flags = f"--src={run}/toy.en", f"--tgt={run}/toy.de", "--tokens"
    done = programs.run("t2t.score", f"--workdir={run}", *flags)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    np.testing.assert_allclose([float(row[0]) for row in rows], loaded.score(PAIRS), atol=1e-4)
    for (total, tokens, pieces), (_, tgt) in zip(rows, PAIRS, strict=True):
        values = [float(token) for token in tokens.split()]
        assert sum(values) == pytest.approx(float(total), abs=1e-4)
        assert len(pieces.split()) == len(values) == len(loaded.vocabulary.tgt.encode([tgt])[0])
        assert pieces.endswith("</s>")


def test_new_scores_are_those_of_search_for_the_text(
    run: Path, list_path: Path, scorer: TextScorer, loaded: Run
) -> None:
    sources = (run / "in.txt").read_text("utf-8").splitlines()
    [*found] = rerank(scorer, run / "in.txt", list_path, share=1.0, reverse=False)
    assert [(number, len(each)) for number, each in found] == [(1, 3), (2, 3), (3, 3), (4, 3)]
    for number, each in found:
        for translation in each:
            [log_prob] = loaded.score([(sources[number - 1], translation.text)])
            assert translation.log_prob == pytest.approx(log_prob, rel=1e-6, abs=1e-4)
            expected = log_prob / ((5 + translation.length) / 6) ** 0.6
            assert translation.score == pytest.approx(expected, abs=1e-4)
    kept = rerank(scorer, run / "in.txt", list_path, share=0.0, reverse=False)
    assert "".join(format_lines(n, each, True, True) for n, each in kept) == list_path.read_text()


def test_share_mixes_scores_and_another_direction_scores_the_source(
    run: Path, list_path: Path, scorer: TextScorer, loaded: Run
) -> None:
    old = {
        (int(number), text): float(value)
        for number, value, text in (
            line.split("\t") for line in list_path.read_text("utf-8").splitlines()
        )
    }
    sources = (run / "in.txt").read_text("utf-8").splitlines()
    for number, found in rerank(scorer, run / "in.txt", list_path, share=0.25, reverse=True):
        scores = [translation.score for translation in found]
        assert scores == sorted(scores, reverse=True)
        source = sources[number - 1]
        length = len(loaded.vocabulary.tgt.encode([source])[0])
        for translation in found:
            [log_prob] = loaded.score([(translation.text, source)])
            new = log_prob / ((5 + length) / 6) ** 0.6
            expected = 0.75 * old[number, translation.text] + 0.25 * new
            assert translation.score == pytest.approx(expected, abs=1e-4)


def test_concatenated_lists_are_joined_by_number(
    run: Path, list_path: Path, scorer: TextScorer, tmp_path: Path
) -> None:
    lines = list_path.read_text("utf-8").splitlines(keepends=True)
    both = tmp_path / "both"
    both.write_text("".join([*lines[::2], *lines[1::2], *lines[:1]]), "utf-8")
    expected, found = (
        [*rerank(scorer, run / "in.txt", path, 1.0, reverse=False)] for path in (list_path, both)
    )
    assert [number for number, _ in found] == [1, 2, 3, 4]
    assert [[each.text for each in own] for _, own in found] == [
        [each.text for each in own] for _, own in expected
    ]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_sentence_without_a_translation_stays_last_and_has_no_nan(
    share: float, run: Path, list_path: Path, scorer: TextScorer, tmp_path: Path
) -> None:
    first, second, *_ = list_path.read_text("utf-8").splitlines(keepends=True)
    number, _, text = first.split("\t")
    incomplete = tmp_path / "list"
    incomplete.write_text(f"{number}\t-inf\t{text}{second}", "utf-8")
    [(_, found)] = rerank(scorer, run / "in.txt", incomplete, share, reverse=False)
    scores = [translation.score for translation in found]
    assert not np.isnan(scores).any()
    assert (-np.inf in scores) is (share < 1)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give one of --tgt and --n_best_list"),
        (["--tgt=short"], "has 5 lines, but"),
        (["--n_best_list=bad"], "--n_best_list, line 2: 'Hunde' is not a number, a score and a"),
        (["--n_best_list=many"], "--n_best_list, line 1: there is no line 6 in --src, which has 5"),
        (["--tgt=short", "--reverse"], "--reverse is for --n_best_list; leave it out with --tgt"),
        (["--tgt=short", "--alpha=1"], "--alpha is for --n_best_list; leave it out with --tgt"),
        (["--tgt=short", "--workdir="], "and as ''; give it once"),
        (["--tgt=short", "--weights=1,2"], "2 weights for 1 models; give one for each"),
    ],
)
def test_wrong_files_and_flags_are_refused(
    run: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    texts = {"short": "Hunde\n", "bad": "1\t-0.5\tHunde\nHunde\n", "many": "6\t-0.5\tHunde\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        flags = [flag.replace(f"={name}", f"={tmp_path}/{name}") for flag in flags]
    command = "t2t.score", f"--workdir={run}", f"--src={run}/toy.en"
    assert message in programs.refuse(*command, *flags)
