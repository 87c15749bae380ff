"""A teacher, and students that learn from it, on the embedded phrasebook or on your own text.

    python -m t2t.pipeline --recipe=configs/pipelines/distil.py --workdir=runs/distil

The student has three encoder layers and one decoder layer, since the decoder takes most of the time
of translating; its width, 64, is half of the quickstart's. It is trained three times: on the text
alone, on the teacher's translations of it by beam search (sequence-level distillation, Kim and Rush
2016), and with the teacher's distribution of each sub-word in the loss (word-level distillation).
All models are exported to int8, and evaluated by both engines. docs/students.md explains the
settings.
"""

from typing import Any

from t2t.config.field_types import Exponent, LanguagePair, PositiveInt, Seeds
from t2t.workshop.steps import Step

KINDS = "teacher", "alone", "sequences", "words"


def get_steps(
    text: str = "",
    languages: LanguagePair = "en-de",
    directory: str = "",
    config: str = "configs/quickstart.py",
    dtype: str = "auto",
    teacher_steps: PositiveInt = 1000,
    student_steps: PositiveInt = 1000,
    student_width: PositiveInt = 64,
    pairs: PositiveInt = 40_000,
    beam_size: PositiveInt = 4,
    samples: PositiveInt = 1,
    alpha: Exponent | None = None,
    checkpoint: str = "last",
    seeds: Seeds = (0,),
) -> list[Step]:
    """Returns the steps.

    Args:
        text: a folder with train.LANGUAGE, validation.LANGUAGE and test.LANGUAGE for both
            languages; empty: the corpus of `config`.
        languages: source and target.
        directory: data.directory of `config`, such as the folder of Multi30k.
        config: recipe of the teacher.
        dtype: model.dtype of all models.
        teacher_steps: training steps of the teacher.
        student_steps: training steps of each student.
        student_width: d_model of the students.
        pairs: at most so many training pairs are used.
        beam_size: beam of the translations that students learn from.
        samples: if more than one, students learn from the best of so many samples by minimum Bayes
            risk with chrF instead.
        alpha: length penalty of the evaluations; None: that of `config`.
        checkpoint: that of all models that is used, such as "ema".
        seeds: with each of them all models are trained.
    """
    src, _, tgt = languages.partition("-")
    data = {"config": config, "config.model.dtype": dtype} | {
        f"config.data.{side}_language": code for side, code in (("src", src), ("tgt", tgt))
    }
    source = data | ({"config.data.directory": directory} if directory else {})
    source |= read_text(text, src, tgt) if text else {}
    written = Step("pairs", "write_pairs", source | {"first": pairs})
    data |= read_text(written, "src", "tgt")
    student = {
        "config.training.steps": student_steps,
        "config.model.encoder_layers": 3,
        "config.model.decoder_layers": 1,
        "config.model.d_model": student_width,
        "config.model.d_ff": 4 * student_width,
    }
    search: dict[str, Any] = {"beam_size": beam_size}
    if samples > 1:
        search = {"strategy": "sampling", "num_samples": samples, "mbr": "chrf"}
    search["checkpoint"] = checkpoint
    steps = [written]
    for seed in seeds:
        own = data | {"config.seed": seed}
        run = Step(f"teacher-{seed}", "train", own | {"config.training.steps": teacher_steps})
        text_of_run = search | {"workdir": run, "input": f"{written}/train.src"}
        translations = Step(f"translations-{seed}", "translate", text_of_run)
        students = list_students(run, translations, own | student, checkpoint, seed)
        steps += [run, translations, *students]
        for kind, model in zip(KINDS, (run, *students), strict=True):
            steps += list_uses(kind, model, checkpoint, alpha)
    return steps


def read_text(folder: str | Step, src: str, tgt: str) -> dict[str, Any]:
    """The flags with which a config reads the files of a folder, which end in these names."""
    flags: dict[str, Any] = {"config.data.source": "text"}
    for side, name in (("src", src), ("tgt", tgt)):
        flags[f"config.data.train_{side}"] = (f"{folder}/train.{name}",)
        flags[f"config.data.validation_{side}"] = f"{folder}/validation.{name}"
        flags[f"config.data.test_{side}"] = f"{folder}/test.{name}"
    return flags


def list_students(
    teacher: Step, translations: Step, flags: dict[str, Any], checkpoint: str, seed: int
) -> list[Step]:
    """The students of a seed, in the order of `KINDS`."""
    flags |= {"config.tokenizer.path": f"{teacher}/vocab"}
    # The translations keep the name of the file that was translated.
    sequences = {"config.data.train_tgt": (f"{translations}/train.src",)}
    words = {
        "config.plugins": "examples.distillation",
        "config.training.loss": "distillation",
        "config.plugin.distillation.teacher": f"{teacher}:{checkpoint}",
    }
    return [
        Step(f"alone-{seed}", "train", flags),
        Step(f"sequences-{seed}", "train", flags | sequences),
        Step(f"words-{seed}", "train", flags | words),
    ]


def list_uses(kind: str, run: Step, checkpoint: str, alpha: float | None) -> list[Step]:
    """The int8 export of a model, and its evaluations by both engines."""
    model: dict[str, Any] = {"workdir": run, "checkpoint": checkpoint}
    model |= {"plugins": "examples.distillation"} if kind == "words" else {}
    test = model | {"split": "test"}
    test |= {} if alpha is None else {"alpha": alpha}
    engines: dict[str, dict[str, str]] = {
        "jax": {},
        "int8": {"backend": "ctranslate2", "compute_type": "int8"},
    }
    better = KINDS[: min(KINDS.index(kind), 2)]  # with which the kind is compared
    return [
        Step(f"{run.name}-export", "export", model | {"quantization": "int8"}),
        *(
            Step(
                f"{run.name}-{engine}",
                "evaluate",
                test | flags,
                system=f"{kind}, {engine}",
                against=tuple(f"{other}, {engine}" for other in better),
            )
            for engine, flags in engines.items()
        ),
    ]
