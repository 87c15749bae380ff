"""Multi30k in both directions, with data diversification (Nguyen et al. 2020).

    python -m t2t.pipeline --recipe=configs/pipelines/multi30k.py --workdir=runs/m30k --workers=2

Two teachers, one for each direction, translate the training text. Two students learn from it and
from both translations. With two workers on two cores all takes less than two and a half hours for a
seed. In each further generation students learn from the translations of the one before.

    --set=seeds=0,1,2 --set=teacher_steps=700 --set=student_steps=1000    a small variant

The recipe of the models is `configs/multi30k.py`. docs/results.md has scores of these steps, which
another script ran.
"""

from typing import Any, NamedTuple

from t2t.config import ConfigError
from t2t.config.field_types import LanguagePair, PositiveInt, Seeds
from t2t.workshop.steps import Step

SPLITS = "validation", "test"


class Direction(NamedTuple):
    """One direction of a seed."""

    src: str
    tgt: str
    side: str  # of the pairs: the one that this direction translates
    back: str  # the other one
    seed: int

    def name(self, model: str) -> str:
        """The name of a step."""
        return f"{model}-{self.src}-{self.tgt}-{self.seed}"


def get_steps(
    languages: LanguagePair = "en-de",
    directory: str = "",
    seeds: Seeds = (0,),
    teacher_steps: PositiveInt = 7000,
    student_steps: PositiveInt = 10_000,
    generations: PositiveInt = 1,
) -> list[Step]:
    """Returns the steps.

    Args:
        languages: two of en, de and fr.
        directory: the folder of Multi30k; empty: download it.
        seeds: with each of them all models are trained.
        teacher_steps: training steps of a teacher.
        student_steps: training steps of a student of the first generation; others have 35% more.
        generations: how often students are trained.
    """
    src, _, tgt = languages.partition("-")
    if not {src, tgt} < {"en", "de", "fr"} or src == tgt:
        raise ConfigError(f"--set=languages={languages}: name two of en, de and fr, such as en-de")
    folder = {"config.data.directory": directory} if directory else {}
    # Without filters: those of the trainings see the pairs.
    unfiltered = {"config": f"configs/multi30k.py:{languages}", "config.data.filters": ()}
    pairs = Step("pairs", "write_pairs", unfiltered | folder)
    steps = [pairs]
    for seed in seeds:
        own = folder | {"config.seed": seed}
        both = Direction(src, tgt, "src", "tgt", seed), Direction(tgt, src, "tgt", "src", seed)
        model = "teacher"
        teachers = runs = [train(each, model, own | training(teacher_steps)) for each in both]
        steps += runs
        for number in range(1, generations + 1):
            by = [
                translate(each, run, f"by-{model}", pairs)
                for each, run in zip(both, runs, strict=True)
            ]
            model = "student" if number == 1 else f"student{number}"
            size = training(student_steps, 0.15)
            if number > 1:
                size = training(round(1.35 * student_steps), 0.1)
            texts = teach(both[0], pairs, *by), teach(both[1], pairs, *reversed(by))
            runs = [
                train(each, model, own | size | text)
                for each, text in zip(both, texts, strict=True)
            ]
            steps += [*by, *runs]
        for each, teacher, student in zip(both, teachers, runs, strict=True):
            steps += [evaluate(each, "teacher", teacher, split) for split in SPLITS]
            steps += [evaluate(each, model, student, split) for split in SPLITS]
    return steps


def training(steps: int, dropout: float | None = None) -> dict[str, Any]:
    """Flags of a training."""
    flags: dict[str, Any] = {"config.training.steps": steps}
    return flags | ({} if dropout is None else {"config.model.dropout": dropout})


def train(direction: Direction, model: str, flags: dict[str, Any]) -> Step:
    """Trains a model of one direction."""
    recipe = {"config": f"configs/multi30k.py:{direction.src}-{direction.tgt}"}
    return Step(direction.name(model), "train", recipe | flags)


def translate(direction: Direction, run: Step, name: str, pairs: Step) -> Step:
    """Translates the source side of the training text; the result keeps the name of its file."""
    flags = {"workdir": run, "checkpoint": "ema", "input": f"{pairs}/train.{direction.side}"}
    return Step(direction.name(name), "translate", flags)


def teach(direction: Direction, pairs: Step, there: Step, back: Step) -> dict[str, Any]:
    """Flags with which a student reads the pairs and the translations of both directions."""
    side, other = direction.side, direction.back
    return {
        "config.data.source": "multi30k+text",
        "config.data.train_src": (f"{pairs}/train.{side}", f"{back}/train.{other}"),
        "config.data.train_tgt": (f"{there}/train.{side}", f"{pairs}/train.{other}"),
    }


def evaluate(direction: Direction, model: str, run: Step, split: str) -> Step:
    """Evaluates a model; a student is compared with the teacher of its direction."""
    flags = {"workdir": run, "checkpoint": "ema", "split": split}
    pair = f"{direction.src}-{direction.tgt}, {split}"
    first = (f"teacher {pair}",) if model != "teacher" else ()
    system = f"{model} {pair}"
    return Step(f"{run.name}-{split}", "evaluate", flags, system=system, against=first)
