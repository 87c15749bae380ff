"""A finished ladder gives a prediction in one command, and a wrong one a line."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t.api.predict_loss import predict_loss
from t2t.config.fields import Config, DataConfig, ModelConfig, TokenizerConfig, TrainingConfig
from t2t.config.files import load_config, override, save_config
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.scaling.ladder import read_ladder
from t2t.scaling.law import LawError
from t2t.training.total_flops import count_flops
from t2t.workshop.records import Record
from tests.evaluation.saved_evaluations import REFERENCES, save
from tests.scaling.drawn_losses import Law, make_law

BASE = Config(
    model=ModelConfig(d_model=128, d_ff=256, num_heads=2, num_layers=1),
    data=DataConfig(batch_tokens=2048, max_length=64),
    tokenizer=TokenizerConfig(vocab_size=300),
    training=TrainingConfig(steps=400),
)
WIDTHS = {16: 20, 24: 40, 32: 80, 48: 150}  # the steps of each rung
LAW = make_law(1.0, 2.0, 0.3)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a vocabulary of 300 pieces, as a run has it."""
    folder = tmp_path_factory.mktemp("vocab")
    pairs = ListCorpus("train", [(line, line) for line in REFERENCES])
    train_vocabulary([pairs], TokenizerConfig(vocab_size=300), folder)
    return folder


def save_rung(
    ladder: Path,
    vocabulary: Path,
    row: str,
    width: int,
    steps: int,
    nats: Callable[[float, int], float],
    seeds: int = 2,
    **changes: Any,
) -> None:
    """The run directories of a row; `nats` gives the loss by FLOPs and seed."""
    for seed in range(seeds):
        run = ladder / f"{row}-seed{seed}"
        changed = {"model.d_model": width, "training.steps": steps, "seed": seed}
        config = override(BASE, changed)
        run.mkdir(parents=True)
        save_config(config, run / "config.json")
        shutil.copytree(vocabulary, run / "vocab")
        given = {"checkpoint": str(steps), "config": changed, "split": "validation", **changes}
        loss = nats(count_flops(config, Vocabulary.load(vocabulary).sizes[1]), seed)
        save(run, REFERENCES, name="sweep", nats=loss, **given)
        records = ladder / "steps" / run.name  # beside the lock of the step
        records.mkdir(parents=True)
        Record("", {}, starts=[{"core_seconds": 120.0}]).write(records)
        records.with_suffix(".lock").touch()


def save_ladder(
    ladder: Path,
    vocabulary: Path,
    law: Law = LAW,
    widths: Mapping[int, int] = WIDTHS,
    family: str = "rung",
    noise: float = 0.01,
    **changes: Any,
) -> Path:
    random = np.random.default_rng(len(family))
    for width, steps in widths.items():
        save_rung(
            ladder, vocabulary, f"{family}-{width}", width, steps,
            lambda flops, seed: law(flops * 1e3) * float(np.exp(noise * random.normal())),
            **changes,
        )  # fmt: skip
    return ladder


def test_size_of_a_rung_counts_the_tasks_that_its_run_has_read(
    tmp_path: Path, vocabulary: Path
) -> None:
    """A rung whose steps all read translations, though the mixture has two tasks."""
    mixture = ("translate: prefix=<2de>", "fill: objective=span_corruption prefix=<fill>")
    ladder = save_ladder(tmp_path / "ladder", vocabulary)
    plain = {rung.name: rung.size for rung in read_ladder(ladder).families["rung"]}
    run = ladder / "rung-16-seed0"
    config = load_config(run / "config.json")
    save_config(override(config, {"data.mixture": mixture}), run / "config.json")
    assumed = read_ladder(ladder).families["rung"][0].size
    corpora = [{"task": "translate", "subwords": 1.0}]
    ledger = json.dumps({"stages": [{"steps": [1, None], "corpora": corpora}]})
    (run / "ledger.jsonl").write_text(ledger)
    assert read_ladder(ladder).families["rung"][0].size == plain["rung-16"]
    assert assumed.tokens < 0.7 * plain["rung-16"].tokens


def test_a_ladder_predicts_the_row_that_is_held_out(tmp_path: Path, vocabulary: Path) -> None:
    ladder = save_ladder(tmp_path / "ladder", vocabulary)
    save_rung(ladder, vocabulary, "base", 128, 400, lambda flops, seed: LAW(flops * 1e3))
    text = predict_loss(ladder, held_out=["base"])
    family = text.prediction.families["rung"]
    assert [rung.name for rung in family.rungs] == ["rung-16", "rung-24", "rung-32", "rung-48"]
    [held_out] = family.held_out
    assert held_out.rung.name == "base"
    assert held_out.forecast.covers(held_out.rung.loss)
    assert text.startswith("With ")
    opening = " ".join(text.split("\n\n")[0].split())
    assert "times the largest rung, the loss of one run is predicted to be" in opening
    assert "nats per sub-word; the 95% interval covers the seeds of the rungs" in opening
    assert "base, held out, came out at" in text
    # The recipe has one rate, and no mup.
    assert "rung: its rungs have one rate, and nothing adapts it to" in " ".join(text.split())
    costs = {rung.name: rung.minutes for rung in [*family.rungs, held_out.rung]}
    assert set(costs.values()) == {4.0}  # of two seeds
    page = (ladder / "prediction" / "prediction.md").read_text("utf-8")
    assert "![Loss against training FLOPs](prediction.svg)" in page
    assert "<svg" in (ladder / "prediction" / "prediction.svg").read_text("utf-8")
    content = json.loads((ladder / "prediction" / "prediction.json").read_text("utf-8"))
    law = content["families"]["rung"]["law"]
    assert (law["floor"] is None) == (law["floor_interval"][0] == 0)
    assert content["families"]["rung"]["from_smaller_rungs"][0]["rung"] == "rung-48"
    assert "<img" in text._repr_html_()
    assert predict_loss(ladder).prediction.target.flops == 4 * held_out.rung.size.flops
    by_size = predict_loss(ladder, parameters=1e6, seeds=3, only=["rung"]).prediction
    assert by_size.target.names == ("parameters",)


def test_two_families_are_compared_at_the_target_and_at_each_rung(
    tmp_path: Path, vocabulary: Path
) -> None:
    ladder = save_ladder(tmp_path / "ladder", vocabulary, noise=0.002)
    worse = make_law(1.4, 2.0, 0.3)
    save_ladder(ladder, vocabulary, worse, family="rnn", noise=0.002)
    text = predict_loss(ladder)
    [difference] = text.prediction.differences
    assert (difference.first, difference.second) == ("rung", "rnn")
    assert difference.forecast.interval[0] < 0.4 < difference.forecast.interval[1]
    assert [*difference.at_rungs] == ["16", "24", "32", "48"]
    assert all(each.interval[0] > 0 for each in difference.at_rungs.values())
    assert "rnn is worse" in text
    assert "do not cross" in text


def test_families_with_other_vocabularies_are_compared_by_characters(
    tmp_path: Path, vocabulary: Path
) -> None:
    ladder = save_ladder(tmp_path / "ladder", vocabulary)
    save_ladder(ladder, vocabulary, family="other", origin={"vocabulary": "another"})
    for path in ladder.glob("other-*/evaluations/sweep.log_probs.txt"):
        path.write_text(path.read_text("utf-8").replace(" 9\n", " 12\n"), "utf-8")
    prediction = predict_loss(ladder).prediction
    assert prediction.ladder.token == "character"
    length = sum(len(line) + 1 for line in REFERENCES)
    losses = prediction.families["rung"].rungs[0].losses.values()
    assert all(loss < 3 * 9 * len(REFERENCES) / length for loss in losses)


def test_amounts_of_text_give_the_law_its_second_size(tmp_path: Path, vocabulary: Path) -> None:
    ladder = save_ladder(tmp_path / "ladder", vocabulary)
    for multiple in (0.5, 2):
        for width, steps in WIDTHS.items():
            save_rung(
                ladder, vocabulary, f"rung-{width}-x{multiple:g}", width, round(multiple * steps),
                lambda flops, seed: LAW(flops * 1e3) * (1 + seed / 100),
            )  # fmt: skip
    with pytest.raises(
        LawError, match=r"several amounts of text .* give --parameters and --tokens"
    ):
        predict_loss(ladder)
    prediction = predict_loss(ladder, parameters=3e5, tokens=3e5).prediction
    assert prediction.families["rung"].law.num_terms == 2
    assert prediction.size_name == "parameters x target tokens"


def spoil_loss(ladder: Path) -> None:
    [path] = ladder.glob("rung-24-seed1/evaluations/sweep.log_probs.txt")
    path.write_text(path.read_text("utf-8").replace("-", "nan ", 1).replace(" 9", "", 1), "utf-8")


def drop_rungs(*widths: int) -> Callable[[Path], None]:
    def drop(ladder: Path) -> None:
        for width in widths:
            for run in ladder.glob(f"rung-{width}-*"):
                shutil.rmtree(run)

    return drop


def drop_seeds(ladder: Path) -> None:
    for run in ladder.glob("*-seed1"):
        shutil.rmtree(run)


def drop_score(ladder: Path) -> None:
    (ladder / "rung-24-seed1" / "evaluations" / "sweep.json").unlink()


def change_passport(section: str, name: str, value: str) -> Callable[[Path], None]:
    def change(ladder: Path) -> None:
        path = ladder / "rung-32-seed0" / "evaluations" / "sweep.json"
        content = json.loads(path.read_text("utf-8"))
        content["passport"][section][name] = value
        path.write_text(json.dumps(content), "utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (drop_rungs(24, 32, 48), {}, "rung: 1 rung, and the law has 3 parameters; train at least"),
        (drop_seeds, {}, "each rung has one seed, which does not show how much runs differ"),
        (drop_score, {}, "rung-24-seed1 has no evaluation sweep: finish the sweep with the same"),
        (spoil_loss, {}, "sweep.json: the loss is nan, not finite and positive; lower the rate"),
        (
            change_passport("origin", "vocabulary", "another"),
            {},
            "rung-16-seed0 and .*rung-32-seed0 differ in vocabulary: .*; the rungs",
        ),
        (
            change_passport("config", "data.source", "text"),
            {},
            "differ in data.source: .* -> text; the rungs of a ladder learn from one text",
        ),
        (change_passport("origin", "checkpoint", "60"), {}, "was scored at step 60 of 80; a rung"),
        (None, {"flops": 1e6}, "1e.06 training FLOPs, is below the smallest rung of rung, "),
        (None, {"only": ["rnn"]}, "--only=rnn: no such row or family; there are rung, rung-16"),
        (None, {"held_out": ["base"]}, "--held_out=base: no such row; the rows are rung-16"),
        (None, {"parameters": 1e6, "tokens": 1e6}, "cannot tell the two apart; give --parameters"),
        (None, {"flops": 1e15, "parameters": 1e6}, "the target is flops and parameters; give"),
        (shutil.rmtree, {}, "holds no runs ROW-seedN; name the --workdir of a t2t.sweep"),
    ],
)
def test_what_gives_no_prediction_is_refused_in_one_line(
    tmp_path: Path,
    vocabulary: Path,
    change: Callable[[Path], None] | None,
    options: dict[str, Any],
    message: str,
) -> None:
    ladder = save_ladder(tmp_path / "ladder", vocabulary)
    if change:
        change(ladder)
    with pytest.raises((LawError, EvaluationError), match=message) as error:
        predict_loss(ladder, **options)
    assert "\n" not in str(error.value)
    assert not (ladder / "prediction").exists()
