"""Resume, sweeps and comparisons: the fields that may change between starts, rows and seeds.

Each field of the config is changed once; `changes.txt` has what becomes of it.
"""

import dataclasses
import functools
import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from t2t.config.field_types import FieldType
from t2t.config.fields import FIELD_TYPES, Config, flatten
from t2t.config.files import build_config
from t2t.data.corpus import ListCorpus
from t2t.evaluation.passport import Passport
from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError
from t2t.evaluation.systems import System, check_alike, check_seeds
from t2t.training import resume
from t2t.training.provenance import record_corpora
from t2t.training.resume import check_run
from t2t.training.run_directory import RunError
from t2t.workshop import step_keys
from t2t.workshop.records import plan_steps
from t2t.workshop.steps import Step, Workshop

STEP = 30  # of the newest checkpoint
TEXTS = {"train": [("a", "b")], "validation": [("c", "d")]}
TEXT = {"data.source": "text"}
FILES = TEXT | {"data.train_src": ("a",), "data.train_tgt": ("b",)}
GERMAN = {"data.source": "multi30k", "data.src_language": "en", "data.tgt_language": "de"}
EXTENDED = {"training.schedule_start": STEP}


class Case(NamedTuple):
    """A change of a config: its name, the fields before and after, and the split of new text."""

    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    changed_split: str = ""


def change(kind: FieldType, value: Any) -> Any:
    """Another value of a type."""
    if kind.names:
        return next((name for name in kind.names if name != value), "other")
    match value:
        case bool():
            return not value
        case float():
            return value / 2 or 0.5
        case int():
            return value + 1
        case tuple():
            return (2.0,) if "float" in str(kind.plain) else ("other",)
    return "other" if isinstance(value, str) else 7


def list_cases() -> Iterator[Case]:
    """Each field with another value, and what the rules tell apart beside it."""
    defaults = flatten(Config())
    others = {name: change(FIELD_TYPES[name], value) for name, value in defaults.items()}
    others |= {"training.schedule_start": STEP, "plugin.own.mix": 1}
    for name, value in others.items():
        yield Case(name, {}, {name: value})
    for name in ("training.steps", "training.schedule", "training.frozen"):
        yield Case(f"{name} of an extension", EXTENDED, EXTENDED | {name: others[name]})
    for fields in ({"training.schedule": "cosine"}, {"training.cooldown_steps": 10}):
        words = " ".join(f"{name}={value}" for name, value in fields.items())
        yield Case(f"training.steps with {words}", fields, fields | {"training.steps": 50_000})
    moved = {"data.train_src": ("moved/a",)}
    yield Case("data.train_src elsewhere", FILES, FILES | moved)
    yield Case("data.train_src with other text", FILES, FILES | moved, "train")
    held_out = FILES | {"data.validation_src": "c", "data.validation_tgt": "d"}
    yield Case("data.validation_src with other text", held_out, held_out, "validation")
    yield Case("data.src_language of files", FILES, FILES | {"data.src_language": "fr"})
    yield Case("data.tgt_language of files", FILES, FILES | {"data.tgt_language": "fr"})
    chinese = {"data.tgt_language": "zho_Hans"}  # which BLEU takes apart in its own way
    yield Case("data.tgt_language=zho_Hans of files", FILES, FILES | chinese)
    several = FILES | {"data.directions": ("en-de",)}
    yield Case("data.tgt_language of directions", several, several | chinese)
    fill, elsewhere, mend = (
        FILES | {"data.mixture": ["a:", f"b: objective={each}"]}
        for each in (
            "span_corruption train_tgt=a", "span_corruption train_tgt=moved/a",
            "denoising train_tgt=a",
        )
    )  # fmt: skip
    yield Case("data.train_tgt of a task elsewhere", fill, elsewhere)
    yield Case("data.objective of a task", fill, mend)
    yield Case("data.tgt_language of a source", GERMAN, GERMAN | {"data.tgt_language": "fr"})
    yield Case("data.tgt_language as its source says", GERMAN, GERMAN | {"data.tgt_language": ""})


def make(fields: dict[str, Any]) -> Config:
    """A config with these fields."""
    values: dict[str, Any] = {}
    for name, value in fields.items():
        *outer, field = name.split(".")
        functools.reduce(lambda part, own: part.setdefault(own, {}), outer, values)[field] = value
    return build_config(values)


def continue_run(
    folder: Path, case: Case, *, last: int = STEP, steps: int = 0, scores: Collection[str] = ()
) -> None:
    """Starts a run with a vocabulary, checkpoint `last` and validation scores once more.

    Its first start had other text and came to no checkpoint, so that the last one counts.
    """
    before, after = (({"training.steps": steps} if steps else {}) | own for own in case[1:3])
    (folder / "vocab").mkdir(parents=True)
    (folder / "config.json").touch()
    known = {split: [ListCorpus(split, pairs)] for split, pairs in TEXTS.items()}
    if last:
        (folder / "checkpoints" / str(last)).mkdir(parents=True)
        described = {split: record_corpora(own) for split, own in known.items()}
        others = {split: record_corpora([ListCorpus(split, [("of", "it")])]) for split in known}
        starts = [{"corpora": texts, "environment": {}} for texts in (others, described)]
        (folder / "ledger.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in starts))
    if case.changed_split:
        known[case.changed_split] = [ListCorpus(case.changed_split, [("x", "y")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "load_config", lambda _: make(before))  # need not keep all rules
        patch.setattr(resume, "list_scored_measures", lambda _: {*scores})
        check_run(folder, make(after), known)


def make_seeds(case: Case) -> list[Evaluation]:
    """Evaluations of two runs with the fields before and after."""
    seeds: list[Evaluation] = []
    for number, fields in enumerate(case[1:3]):
        own = {"seed": number} | {
            name: value for name, value in fields.items() if not name.startswith("decoding.")
        }
        search = dataclasses.asdict(make(fields).decoding)
        origin = {"run": "run", "checkpoint": "30", "parameters": "equal"}
        passport = Passport(origin, {"split": "test"}, own, search, {"name": "jax"})
        seeds.append(Evaluation(Path(f"{number}.json"), {}))
        vars(seeds[-1])["passport"] = passport  # in place of the file's
    return seeds


def compare_seeds(_: Path, case: Case) -> None:
    """Compares them as two seeds of one system."""
    check_seeds("RUN,OTHER", make_seeds(case))


def compare_newest(_: Path, case: Case) -> None:
    """Compares their newest evaluations as two systems."""
    check_alike([System("RUN", [each], is_named=False) for each in make_seeds(case)])


def compare_models(_: Path, case: Case) -> None:
    """Asks whether models of equal parameters are the same one."""
    one, other = (System("RUN", [each]) for each in make_seeds(case))
    if not one.is_same_model(other):
        raise RunError("another model")


def continue_sweep(folder: Path, case: Case) -> None:
    """Plans a finished row of a sweep whose recipe or text is another one by now."""
    for text in ("a", "b", "c", "d", "other", "moved/a"):
        (folder / text).parent.mkdir(parents=True, exist_ok=True)
        (folder / text).write_text("text")
    workshop = Workshop([Step("row", "train", {"config": "recipe.py"})], folder / "sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(step_keys, "read_step_recipe", lambda *_, ready: make(case.before))
        plan_steps(workshop)["row"].record.write(workshop.find_records("row"))
        patch.setattr(step_keys, "read_step_recipe", lambda *_, ready: make(case.after))
        for name in {"train": "a", "validation": "c"}.get(case.changed_split, ""):
            (folder / name).write_text("another text")
        planned = plan_steps(workshop)["row"]
    if planned.is_aside:
        raise RunError("the row runs again")


QUESTIONS: dict[str, Callable[[Path, Case], None]] = {
    "with a vocabulary": functools.partial(continue_run, last=0),
    "with a checkpoint": continue_run,
    "at its end": functools.partial(continue_run, steps=STEP),
    "with BLEU scores": functools.partial(continue_run, scores=("loss", "bleu")),
    "seeds": compare_seeds,
    "newest evaluations": compare_newest,
    "equal parameters": compare_models,
    "sweep": continue_sweep,
}


def answer(folder: Path, case: Case, ask: Callable[[Path, Case], None]) -> str:
    """The error without the names of field and path; empty: none."""
    try:
        ask(folder, case)
    except (RunError, EvaluationError) as error:
        field = re.match(r"[\w.]+", case.name)[0]  # type: ignore[index]  # each begins so
        values = rf"{re.escape(field)}:? (.* -> [^;\n]*|.* and .*(?=\. Evaluate))"
        text = re.sub(values, "FIELD", str(error).replace(str(folder), "RUN"))
        return re.sub(rf"\b{re.escape(field)}\b", "FIELD", text)
    return ""


def test_what_may_change(tmp_path: Path) -> None:
    groups: dict[tuple[str, ...], list[str]] = {}
    for number, case in enumerate(list_cases()):
        asked = (
            answer(tmp_path / f"{number}-{question}", case, ask)
            for question, ask in QUESTIONS.items()
        )
        groups.setdefault(tuple(asked), []).append(case.name)
    errors = [*dict.fromkeys(error for answers in groups for error in answers if error)]
    lines = [f"({number}) {error}" for number, error in enumerate(errors, start=1)]
    for answers, names in groups.items():
        shown = zip(QUESTIONS, answers, strict=True)
        words = [f"{name} ({errors.index(error) + 1})" for name, error in shown if error]
        lines += ["", f"Refused: {', '.join(words) or 'never'}"]
        lines += textwrap.wrap(", ".join(names), 98, initial_indent="  ", subsequent_indent="  ")
    found = "\n".join(lines) + "\n"
    (tmp_path / "changes.txt").write_text(found)
    assert found == Path(__file__).with_name("changes.txt").read_text(), tmp_path / "changes.txt"
