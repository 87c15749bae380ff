"""t2t.score: log-probabilities of translations, and lists reranked by them."""

import io
import re
from pathlib import Path

import numpy as np
import pytest

import t2t
from t2t.api.line_translator import LineTranslator, translate_lines
from t2t.api.run import Run
from t2t.api.text_scorer import TextScorer, rerank
from t2t.config.fields import ConfigError
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.translation import format_lines
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest
from t2t.score import ScoreRequest
from tests import programs
from tests.tiny_run import PAIRS, make_run

BEAM: dict[str, float | str] = {"beam_size": 3}


@pytest.fixture(scope="module")
def loaded(run: Path) -> Run:
    return t2t.load(run, "best")


@pytest.fixture(scope="module")
def scorer(run: Path) -> TextScorer:
    return TextScorer(RunModel(ModelRequest((run,), decoding=BEAM)))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> TextScorer:
    run = tmp_path_factory.mktemp("masked") / "run"
    make_run(run, "masked_lm", model={"kind": "encoder_only"})
    return TextScorer(RunModel(ModelRequest((run,))))


@pytest.fixture(scope="module")
def list_path(run: Path) -> Path:
    """The three best translations of each source line that is not empty."""
    sources = [src for src, _ in PAIRS if src]
    (run / "in.txt").write_text("".join(f"{src}\n" for src in sources), "utf-8")
    lines = io.BytesIO((run / "in.txt").read_bytes())
    translator = LineTranslator(ModelRequest((run,), decoding=BEAM), n_best=3)
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


def test_characters_that_the_model_does_not_know_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = {"byte_fallback": False, "vocab_size": 90}
    run = t2t.load(make_run(tmp_path / "run", tokenizer=tokenizer))
    pairs = [("Two € dogs", "Zwei 猫€"), ("A girl", "Ein"), ("€", "Hunde")]
    message = "3 lines hold 4 characters that the vocabulary lacks, .*: '€' \\(3 times\\), '猫'$"
    for call in (
        lambda: run.score(pairs),
        lambda: [*TextScorer(RunModel(ModelRequest((run.workdir,)))).score(iter(pairs))],
    ):
        caplog.clear()
        call()
        [found] = [each for each in caplog.messages if "vocabulary lacks" in each]
        assert re.search(message, found)


@pytest.mark.parametrize(("share", "reverse"), [(0.0, False), (1.0, False), (0.25, True)])
def test_share_mixes_old_scores_and_those_of_the_text_or_of_another_direction(
    run: Path, list_path: Path, scorer: TextScorer, loaded: Run, share: float, reverse: bool
) -> None:
    """A new score is that of search for the text: log P over the penalty of its length."""
    lines = (line.split("\t") for line in list_path.read_text("utf-8").splitlines())
    old = {(int(number), text): float(value) for number, value, text in lines}
    sources = (run / "in.txt").read_text("utf-8").splitlines()
    reranked = [*rerank(scorer, run / "in.txt", list_path, share, reverse)]
    assert [(number, len(each)) for number, each in reranked] == [(1, 3), (2, 3), (3, 3), (4, 3)]
    for number, found in reranked:
        scores = [translation.score for translation in found]
        assert scores == sorted(scores, reverse=True)
        source, expected = sources[number - 1], []
        for translation in found:
            pair = (translation.text, source) if reverse else (source, translation.text)
            [log_prob] = loaded.score([pair])
            [length] = map(len, loaded.vocabulary.tgt.encode([source]))
            new = log_prob / ((5 + (length if reverse else translation.length)) / 6) ** 0.6
            expected.append((1 - share) * old[number, translation.text] + share * new)
        np.testing.assert_allclose(scores, expected, atol=1e-4)


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


@pytest.mark.parametrize("penalty", ["length", "gnmt", "none"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_an_empty_translation_has_nothing_to_mask_and_stays_last(
    masked: TextScorer, tmp_path: Path, penalty: str, share: float
) -> None:
    """Others score the sum of log P of each sub-word over the penalty of their number."""
    masked.penalty = LengthPenalty(penalty, 1.0)
    old = {"": -9.0, "Hunde klettern.": -1.0, "Zwei Hunde": -2.0}
    (tmp_path / "src").write_text("Dogs climb.\n")
    (tmp_path / "list").write_text("".join(f"1\t{old[text]}\t{text}\n" for text in old))
    [(_, found)] = rerank(masked, tmp_path / "src", tmp_path / "list", share, reverse=False)
    scores = {each.text: each.score for each in found}
    assert [*scores.values()] == sorted(scores.values(), reverse=True)
    assert scores.pop("") == (-np.inf if share else -9)
    assert found[-1].text == ""
    for text, score in scores.items():
        [(_, ids, log_probs)] = masked.score(iter([("", text)]))
        assert len(ids) == len(masked.vocabulary.tgt.encode([text])[0]) - 1, "EOS is not masked"
        length = {"length": len(ids), "gnmt": (5 + len(ids)) / 6, "none": 1}[penalty]
        assert score == pytest.approx((1 - share) * old[text] + share * log_probs.sum() / length)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give one of --tgt and --n_best_list"),
        (["--tgt=short"], "has 5 lines, but"),
        (["--n_best_list=bad"], "--n_best_list, line 2: 'Hunde' is not a number, a score and a"),
        (["--n_best_list=many"], "--n_best_list, line 1: there is no line 6 in --src, which has 5"),
        (["--tgt=short", "--alpha=1"], "--alpha is for --n_best_list; leave it out with --tgt"),
        (["--tgt=short", "--workdir="], "and as ''; give it once"),
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


def test_length_penalty_of_a_list_is_none_of_the_model_s_search(tmp_path: Path) -> None:
    """It reranks by models that fill masks, or whose run samples, too."""
    given: dict[str, float | str] = {"alpha": 1.0, "length_penalty": "length"}
    kinds = {"masked_lm": {"model": {"kind": "encoder_only"}}}
    kinds["translation"] = {"decoding": {"strategy": "sampling"}}
    for objective, changes in kinds.items():
        run = make_run(tmp_path / objective, objective, **changes)
        request = ScoreRequest(workdirs=(run,), src="a", n_best_list="b", decoding=given)
        scorer = TextScorer(RunModel(request))
        assert float(scorer.penalty(7)) == 7
        with pytest.raises(ConfigError, match=r"decoding\.alpha=1\.0 is not used by "):
            RunModel(ModelRequest((run,), decoding=given))
