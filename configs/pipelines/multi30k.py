"""Multi30k in both directions, with data diversification (Nguyen et al. 2020).

    python -m t2t.pipeline --recipe=configs/pipelines/multi30k.py --workdir=runs/m30k --workers=2

Two teachers, one for each direction, translate the training text. Two students learn from it and
from both translations. With two workers on two cores all takes less than two and a half hours for a
seed. In each further generation students learn from the translations of the one before.

    --set=seeds=0,1,2 --set=teacher_steps=700 --set=student_steps=1000    a small variant

The recipe of the models is `configs/multi30k.py`.
"""

from t2t.pipelines.steps import Step


def get_steps(
    languages: str = "en-de",
    directory: str = "",
    seeds: tuple[int, ...] = (0,),
    teacher_steps: int = 7000,
    student_steps: int = 10_000,
    generations: int = 1,
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
    folder = {"config.data.directory": directory} if directory else {}
    # Filters see the pairs when models are trained.
    pairs = {"config": f"configs/multi30k.py:{languages}", "config.data.filters": ()}
    steps = [Step("pairs", "write_pairs", pairs | folder)]
    directions = [(src, tgt, "src", "tgt"), (tgt, src, "tgt", "src")]
    for seed in seeds:
        own = folder | {"config.seed": seed}
        for one, other, *_ in directions:
            flags = {"config": f"configs/multi30k.py:{one}-{other}"}
            flags |= own | {"config.training.steps": teacher_steps}
            steps.append(Step(f"teacher-{one}-{other}-{seed}", "train", flags))
        teacher = "teacher"
        for number in range(1, generations + 1):
            student = "student" if number == 1 else f"student{number}"
            own |= {"config.training.steps": student_steps, "config.model.dropout": 0.15}
            if number > 1:
                own |= {
                    "config.training.steps": round(1.35 * student_steps),
                    "config.model.dropout": 0.1,
                }
            for one, other, side, _ in directions:
                flags = {"workdir": f"{{{teacher}-{one}-{other}-{seed}}}", "checkpoint": "ema"}
                flags |= {"input": f"{{pairs}}/train.{side}"}
                steps.append(Step(f"by-{teacher}-{one}-{other}-{seed}", "translate", flags))
            for one, other, side, back in directions:
                there, here = (
                    f"{{by-{teacher}-{a}-{b}-{seed}}}" for a, b in ((one, other), (other, one))
                )
                flags = {"config": f"configs/multi30k.py:{one}-{other}"} | own
                flags |= {
                    "config.data.source": "multi30k+text",
                    "config.data.train_src": (f"{{pairs}}/train.{side}", f"{here}/train.{back}"),
                    "config.data.train_tgt": (f"{there}/train.{side}", f"{{pairs}}/train.{back}"),
                }
                steps.append(Step(f"{student}-{one}-{other}-{seed}", "train", flags))
            teacher = student
        for one, other, *_ in directions:
            for model in dict.fromkeys(("teacher", teacher)):
                for split in ("validation", "test"):
                    flags = {"workdir": f"{{{model}-{one}-{other}-{seed}}}"}
                    flags |= {"checkpoint": "ema", "split": split}
                    name = f"{model} {one}-{other}, {split}"
                    first = (f"teacher {one}-{other}, {split}",) if model != "teacher" else ()
                    step = f"{model}-{one}-{other}-{seed}-{split}"
                    steps.append(Step(step, "evaluate", flags, system=name, against=first))
    return steps
