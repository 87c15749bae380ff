r"""A small student of a model that exists, such as OPUS-MT or NLLB, on your own text.

    python -m t2t.pipeline --recipe=configs/pipelines/opus_student.py --workdir=runs/student \
        --set=teacher=hf:Helsinki-NLP/opus-mt-en-de --set=text=FOLDER

FOLDER has train.en, validation.en, test.en and the same with .de. The teacher translates train.en;
of train.de only the student without a teacher learns. The students have a vocabulary of their own,
half of the teacher's width and one decoder layer. A teacher on the Hub counts as one of OPUS-MT's
size; for another one give --set=width=N and --set=layers=N. No published model was a teacher yet.
"""

from pathlib import Path
from typing import Any

from t2t.config import ConfigError
from t2t.config.field_types import LanguagePair, NonNegativeInt, PositiveInt, Seeds
from t2t.interop.hugging_face_folder import read_json
from t2t.workshop.steps import Step

WIDTH, LAYERS = 512, 6  # of OPUS-MT, for a teacher that is still on the Hub


def get_steps(
    teacher: str,
    text: str,
    languages: LanguagePair = "en-de",
    directions: str = "",
    config: str = "configs/text.py",
    beam_size: PositiveInt = 4,
    samples: PositiveInt = 1,
    steps: NonNegativeInt = 0,
    seeds: Seeds = (0,),
    width: NonNegativeInt = 0,
    layers: NonNegativeInt = 0,
) -> list[Step]:
    """Returns the steps.

    Args:
        teacher: a folder of transformers, or hf:OWNER/NAME.
        text: a folder with train.LANGUAGE, validation.LANGUAGE and test.LANGUAGE.
        languages: source and target.
        directions: of a teacher with many languages, its codes, such as eng_Latn-deu_Latn.
        config: recipe of the students.
        beam_size: beam of the translations that the student learns from.
        samples: if more than one, it learns from the best of so many samples by minimum Bayes risk
            with chrF instead.
        steps: training steps of the students; 0: as the recipe chooses.
        seeds: with each of them the students are trained.
        width: of the students; 0: half of the teacher's.
        layers: of their encoders; 0: as many as the teacher has.
    """
    src, _, tgt = languages.partition("-")
    source = {"source": teacher, "src_language": src, "tgt_language": tgt}
    source |= {"directions": directions} if directions else {}
    imported = Step("teacher", "import_model", source)
    search: dict[str, Any] = {"beam_size": beam_size}
    if samples > 1:
        search = {"strategy": "sampling", "num_samples": samples, "mbr": "chrf"}
    search |= {"workdir": imported, "checkpoint": "last", "input": f"{text}/train.{src}"}
    translations = Step("translations", "translate", search)
    student: dict[str, Any] = {"config": config} | find_size(teacher, width, layers)
    student |= {"config.data.source": "text"} if "text.py" not in config else {}
    for side, language in (("src", src), ("tgt", tgt)):
        student[f"config.data.{side}_language"] = language
        student[f"config.data.train_{side}"] = (f"{text}/train.{language}",)
        student[f"config.data.validation_{side}"] = f"{text}/validation.{language}"
    student |= {"config.training.steps": steps} if steps else {}
    taught = {"config.data.train_tgt": (f"{translations}/train.{src}",)}
    found = [imported, translations]
    test = {"src": f"{text}/test.{src}", "ref": f"{text}/test.{tgt}", "checkpoint": "last"}
    engines = {"jax": {}, "int8": {"backend": "ctranslate2", "compute_type": "int8"}}
    models = [("teacher", imported)]
    for seed in seeds:
        own = student | {"config.seed": seed}
        runs = {
            "alone": Step(f"alone-{seed}", "train", own),
            "student": Step(f"student-{seed}", "train", own | taught),
        }
        models += runs.items()
        found += runs.values()
        for run in runs.values():
            export = {"workdir": run, "checkpoint": "last", "quantization": "int8"}
            found.append(Step(f"{run.name}-export", "export", export))
    for kind, run in models:
        for engine, own in engines.items():
            if engine == "int8" and kind == "teacher":
                continue  # CTranslate2 has a converter of its own for it
            better = ["alone"] + ["teacher"] * (engine == "jax") if kind == "student" else []
            others = tuple(f"{other}, {engine}" for other in better)
            name, flags = f"{kind}, {engine}", test | {"workdir": run} | own
            step = Step(f"{run.name}-{engine}", "evaluate", flags, system=name, against=others)
            found.append(step)
    return found


def find_size(teacher: str, width: int, layers: int) -> dict[str, Any]:
    """The size of a student: half of the teacher's width, its encoder, one decoder layer."""
    folder, name = Path(teacher).expanduser(), "config.json"
    values = read_json(folder, name) if (folder / name).is_file() else {}
    width = width or values.get("d_model", WIDTH) // 2
    if width % 2:
        raise ConfigError(f"--set=width={width} is odd, which positions cannot be; set an even one")
    layers = layers or values.get("encoder_layers", values.get("num_layers", LAYERS))
    return {
        "config.model.d_model": width,
        "config.model.d_ff": 4 * width,
        "config.model.encoder_layers": layers,
        "config.model.decoder_layers": 1,
    }
