"""A run that learns several tasks: training, validation, and programs that use one of them."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest

import t2t
from t2t.api import train_run
from t2t.api.evaluate_run import evaluate
from t2t.api.export_run import export
from t2t.api.run_summary import describe_run
from t2t.config.fields import Config, ConfigError
from t2t.config.files import load_config
from t2t.config.rules import validate
from t2t.data.batch import BOS_ID, Route
from t2t.data.corpus import DataError
from t2t.data.corpus_sources import open_training
from t2t.data.directions import find_route, find_tasks
from t2t.data.loader import Loader, put_batch
from t2t.data.objectives import (
    Corruption,
    Keys,
    Objective,
    Sentences,
    make_keys,
    make_objectives,
    plan_lengths,
)
from t2t.data.packing import make_plan
from t2t.data.preparation import tokenize
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import EvaluationRequest, ModelRequest
from t2t.model.parameters import merge
from t2t.ops.build_model import abstract_model
from t2t.training.losses import cross_entropy
from t2t.training.provenance import read_last_start
from t2t.training.run_directory import RunError
from tests import reference
from tests.data.small_corpus import PAIRS, read_pair
from tests.tiny_training import (
    assert_same_training,
    change,
    make_config,
    mix_tasks,
    read_figures,
)

STEPS = 20
STAGES = ("6: 0,1,2", "16: 1,1,0", "1,0.5,0.5")
TASKS = "translate", "fill", "mend"

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("mixture")
    data = mix_tasks(folder) | {"stages": STAGES}
    training = {"steps": STEPS, "translate_every": 10}
    return validate(change(make_config(folder), data=data, training=training))


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    workdir = tmp_path_factory.mktemp("run") / "run"
    assert train_run.train(config, workdir)
    return workdir


@pytest.mark.equality
def test_run_that_stops_around_a_border_is_the_same_bit_for_bit(
    config: Config, run: Path, tmp_path: Path
) -> None:
    for steps in (5, 6, 7, STEPS):
        assert train_run.train(change(config, training={"steps": steps}), tmp_path / "run")
    assert_same_training(tmp_path / "run", run, STEPS)
    *_, last = read_figures(tmp_path / "run", "validation/")
    assert last == read_figures(run, "validation/")[-1]


def test_validation_scores_each_task_and_ranks_by_the_main_one(run: Path) -> None:
    *_, last = read_figures(run, "validation/")
    losses = [last[f"validation/loss/{task}"] for task in TASKS]
    assert len({*losses}) == 3
    for measure in ("loss", "perplexity", "bleu", "chrf"):
        assert last[f"validation/{measure}"] == last[f"validation/{measure}/translate"]
    assert "validation/bleu/fill" not in last
    shown = describe_run(run)
    for task, loss in zip(TASKS, losses, strict=True):
        assert f"validation/loss/{task}" in shown
        assert f"{loss:.4g} at step {STEPS}" in shown


def test_log_says_the_shares_of_tasks(run: Path) -> None:
    """In steps 17 and later; a task of several corpora has a line of its own."""
    shown = [line.split() for line in describe_run(run).splitlines() if "of predicted" in line]
    *files, fill, mend, translate = shown[-5:]
    assert [line[-1] for line in files] != [translate[-1]] * 2
    assert ("fill:" in fill, "mend:" in mend, translate[-1]) == (True, True, "translate")
    numbers = [[float(line[n].rstrip("%")) for n in (0, 3, 6)] for line in (fill, mend, translate)]
    assert np.sum(numbers, axis=0) == pytest.approx(100, abs=0.2)
    assert numbers[0][2] < numbers[0][1]  # a text has more sub-words than its gaps


@pytest.mark.slow
def test_evaluation_is_of_the_task_that_is_named(run: Path) -> None:
    *_, last = read_figures(run, "validation/")
    for task in ("", "fill", "mend"):
        request = EvaluationRequest((run,), "last", split="validation", task=task)
        evaluation = evaluate(request)
        name = task or "translate"
        assert evaluation.path.name.startswith(f"validation-{name}-{STEPS}")
        assert evaluation.passport.data["task"] == name
        perplexity = evaluation.result["measures"]["perplexity"]["value"]
        assert math.log(perplexity) == pytest.approx(last[f"validation/loss/{name}"], rel=1e-3)
        found = t2t.load(run, "last", task=task).find_evaluation("validation")
        assert found.path == evaluation.path
    with pytest.raises(ConfigError, match="--task=lm: this run learns translate, fill, mend; name"):
        evaluate(EvaluationRequest((run,), "last", task="lm"))


def test_programs_put_the_prefix_in_front(run: Path) -> None:
    translator = t2t.load(run, "last")
    [ids] = translator.encode([PAIRS[0][0]])
    vocabulary = Vocabulary.load(run / "vocab")
    assert vocabulary.src.pieces(ids[:1]) == ["<2de>"]
    assert vocabulary.src.is_control(ids[0])
    assert translator.translate(["", PAIRS[0][0]])[0] == ""
    prefixed = t2t.load(run, "last", task="mend")
    [ids] = prefixed.encode(["two houses"])
    assert vocabulary.src.decode([ids]) == ["mend this: two houses"]
    with pytest.raises(DataError, match=r"'mend this: two' begins with data\.prefix='mend"):
        prefixed.encode(["mend this: two"])
    [filled] = t2t.load(run, "last", task="fill").fill("das <extra_id_0> Buch")
    assert filled.text.startswith("das ")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["a: validation_src= validation_tgt="], "a, its first task, has no validation split"),
        (
            ["a:", "b: objective=denoising train_tgt={folder}/long.de"],
            "b: none of its 3 examples is left to train on",
        ),
        (
            ["a:", "b: objective=denoising train_tgt={folder}/blank.de"],
            r"blank\.de has empty lines alone; it needs a line with text",
        ),
        (
            ["a:", "b: objective=denoising validation_tgt={folder}/blank.de"],
            r"blank\.de has empty lines alone; it needs a line with text",
        ),
        (
            ["a: prefix='mend this:' train_src={folder}/mend.en train_tgt={folder}/long.de"],
            r"mend\.en .*: 'mend this: it' begins with data\.prefix='mend this:'",
        ),
    ],
    ids=str,
)
def test_text_that_does_not_fit_its_task_is_refused_before_training(
    config: Config, tmp_path: Path, entries: list[str], message: str
) -> None:
    (tmp_path / "long.de").write_text("zu lang " * 99 + "\n" + "sehr lang " * 99 + "\n\n")
    (tmp_path / "mend.en").write_text("mend this: it\n" * 3)
    (tmp_path / "blank.de").write_text("  \n\r\n")
    fill = config.data.mixture[1]
    mixture = tuple(entry.format(folder=tmp_path) for entry in entries)
    data = {"mixture": (*mixture, fill) if len(mixture) == 1 else mixture, "stages": ()}
    with pytest.raises(DataError, match=message):
        train_run.train(validate(change(config, data=data)), tmp_path / "run")


def test_task_with_its_own_decoder_becomes_a_plain_model_and_begins_other_runs(
    run: Path, config: Config, tmp_path: Path
) -> None:
    """Its plain model fills in as the run does; the run itself is no plain model."""
    saved = str(tmp_path / "mend")
    request = EvaluationRequest((run,), "last", split="validation", task="mend", save_params=saved)
    evaluation = evaluate(request)
    plain = load_config(tmp_path / "mend" / "config.json")
    assert (plain.data.task, plain.data.decoder) == ("mend", "")
    alone = evaluate(EvaluationRequest((tmp_path / "mend",), "last", split="validation"))
    assert alone.result["measures"] == evaluation.result["measures"]
    export(run, "last", tmp_path / "one", engine="hf", task="mend")
    export(tmp_path / "mend", "last", tmp_path / "other", engine="hf")
    weights = [tmp_path / name / "model.safetensors" for name in ("one", "other")]
    assert weights[0].read_bytes() == weights[1].read_bytes()

    own = change(config, training={"steps": 5, "init_from": f"{run}:last"})
    assert train_run.train(own, tmp_path / "own")
    table = read_last_start(tmp_path / "own")["initial"]["parameters"]
    assert {row[1] for row in table} == {"taken"}
    fields = {"mixture": (), "stages": (), "train_weights": (1.0, 0.5)}
    other = change(own, data=fields)
    with pytest.raises(RunError, match=r"own stacks \(decoder@english\), and"):
        train_run.train(other, tmp_path / "other")
    other = change(other, training={"init_from": f"{tmp_path}/mend:last"})
    assert train_run.train(other, tmp_path / "other")


@pytest.mark.equality
def test_losses_are_those_of_the_tasks_computed_apart_by_numpy(run: Path) -> None:
    """Batches of each route, against loops over the pairs of each task alone."""
    config = change(load_config(run / "config.json"), data={"stages": (), "packed_length": 32})
    config = change(config, data={"batch_tokens": 256}, model={"dtype": "float32"})
    vocabulary, corpora = Vocabulary.load(run / "vocab"), open_training(config.data)
    tasks = find_tasks(config.data, corpora)
    objectives = make_objectives(tasks, vocabulary)
    tokens = [tokenize(corpus, vocabulary, config.data) for corpus in corpora]
    plan = make_plan(plan_lengths(objectives, tokens), config.data, config.seed, tasks=tasks)
    loader = Loader(plan, tokens, objectives=objectives)
    routes = dict[Route | None, int]()  # the first batch of each
    for step in range(plan.steps_per_epoch):
        routes.setdefault(loader.batch(step).route, step)
    assert routes.keys() == {Route(), Route(decoder="english")}
    counts = dict.fromkeys(TASKS, 0)
    for route, step in routes.items():
        members = [task.task for task in tasks if find_route(task) == route]
        model = RunModel(ModelRequest((run,), "last", task=members[0]))
        params, _ = model.restore()
        structure, _ = abstract_model(config.model, *vocabulary.sizes)
        with jax.set_mesh(model.mesh):
            placed, batch = model.place(params), put_batch(loader.batch(step), model.mesh)
            batch = batch._replace(route=None)
            total, weights, _ = cross_entropy(config.training, merge(structure, placed), batch)
        parameters, loss = jax.tree.map(lambda x: np.asarray(x, float), params), 0.0
        own = dict.fromkeys(members, 0)
        ends, planned = np.cumsum([0, *map(len, corpora)]), plan.batch(step)
        for index, use in zip(planned.indices, planned.uses, strict=True):
            number = int(np.searchsorted(ends, index, side="right")) - 1
            src, tgt = read_pair(tokens[number], index - ends[number])
            key = make_keys(config.seed, 0, np.array([use]))
            src, tgt = make_example(objectives[number], src, tgt, key)
            logits = reference.transform(parameters, config.model, src, [BOS_ID, *tgt[:-1]])
            loss += reference.sum_cross_entropies(
                logits[None], np.eye(logits.shape[1]), np.array([tgt]), np.ones((1, len(tgt))), 0.1
            )
            own[tasks[number].task] += len(tgt)
        assert float(weights) == sum(own.values())
        assert float(total) == pytest.approx(loss, rel=1e-5)
        counts |= own
    assert min(counts.values()) > 5


def make_example(
    objective: Objective, src: list[int], tgt: list[int], key: Keys
) -> tuple[list[int], list[int]]:
    """The source and the target that training makes of one pair."""
    if not isinstance(objective, Corruption):
        return src, tgt
    made = objective.corrupt(Sentences(np.array(tgt), np.array([len(tgt)])), key)
    src, tgt = (side.ids.tolist() for side in made)
    return [*objective.prefix.tolist(), *src], tgt
