"""Scores a run on a test set: `python -m t2t.evaluate --workdir=RUN --split=test`.

Only the run directory is read, and the raw text of the split. The scores go to
RUN/evaluations/SPLIT-CHECKPOINT-beam4-alpha0.6.json, and the hypotheses beside them as .txt, one
line for each line of the split.
"""

import dataclasses
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from t2t import cli
from t2t.compilation_cache import keep_compiled
from t2t.config import Config, ConfigError, MeshConfig
from t2t.config_json import load_config
from t2t.config_rules import validate
from t2t.data.corpus import Corpus, TextCorpus
from t2t.data.sources import open_split
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.backend import make_translator
from t2t.decoding.translator import Translation, Translator
from t2t.evaluation.bleu import score_corpus
from t2t.hosts import first_alone, is_first, join
from t2t.model.encoder_decoder import Params
from t2t.sharding import make_mesh, replicate
from t2t.training.checkpoint import restore_params, save_params
from t2t.training.run_directory import RunError

PACKAGES = ("jax", "flax", "sentencepiece", "sacrebleu", "sacremoses")  # those that move a score


@dataclasses.dataclass(frozen=True)
class Request:
    """What to evaluate, as on the command line."""

    workdir: Path
    checkpoint: str = "best"  # last | best | STEP | avg:COUNT
    split: str = "test"
    src: str = ""  # with `ref`: a pair of text files instead of a split of the run's corpus
    ref: str = ""
    output: str = ""  # empty: in the run directory, under a name that says what it is
    save_params: str = ""  # a new run directory for the evaluated parameters alone
    backend: str = "jax"  # jax | ctranslate2
    compute_type: str | None = None  # of ctranslate2; None: float32
    decoding: Mapping[str, float | None] = dataclasses.field(default_factory=dict)  # None: as is


def evaluate(request: Request) -> tuple[dict[str, Any], Path]:
    """Translates, scores and writes; what was written, and where.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: what is asked for is not there, does not
            fit together, or cannot be written.
    """
    config = override_decoding(load_config(request.workdir / "config.json"), request.decoding)
    vocabulary = Vocabulary.load(request.workdir / "vocab")
    translator = make_translator(request.backend, request.compute_type, config, vocabulary)
    split, corpus = open_corpus(config, request)
    params, label = restore_params(request.workdir, request.checkpoint)
    output = prepare_output(request, config, f"{split}-{label}")
    if request.save_params:
        first_alone(lambda: save_run(request, params, label))
    sources, references = zip(*corpus, strict=True)
    translations, timing = translate(translator, params, sources)
    hypotheses = [translation.text for translation in translations]
    scores = score_corpus(hypotheses, references, config.data.tgt_language)
    result = {
        "bleu": scores["bleu"].value,
        "signature": scores["bleu"].definition,
        "chrf": scores["chrf"].value,
        "measures": {name: dataclasses.asdict(score) for name, score in scores.items()},
        "num_sentences": len(corpus),
        "num_cut": sum(translation.num_pieces > 1 for translation in translations),
        "backend": translator.describe(),
        **timing,
        **dataclasses.asdict(config.decoding),
        "workdir": request.workdir.resolve().name,
        "checkpoint": label,
        "split": split,
        "corpus": corpus.fingerprint(),
        "devices": [device.device_kind for device in jax.devices()],
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
    }
    if is_first():
        write_whole(output.with_suffix(".txt"), "".join(f"{line}\n" for line in hypotheses))
        write_whole(output, json.dumps(result, indent=2) + "\n")
    return result, output


def override_decoding(config: Config, values: Mapping[str, float | None]) -> Config:
    """The run's config, with those values of `config.decoding` that are given."""
    given = {name: value for name, value in values.items() if value is not None}
    decoding = dataclasses.replace(config.decoding, **given)  # type: ignore[arg-type]
    return validate(dataclasses.replace(config, decoding=decoding))


def open_corpus(config: Config, request: Request) -> tuple[str, Corpus]:
    """What the corpus is called, and its raw text."""
    if bool(request.src) != bool(request.ref):
        raise ConfigError(f"--src={request.src!r} and --ref={request.ref!r} go together; give both")
    if request.src:
        return Path(request.src).name.split(".")[0], TextCorpus(request.src, request.ref)
    return request.split, open_split(config.data, request.split)


def prepare_output(request: Request, config: Config, name: str) -> Path:
    """The path of the scores; that it cannot be written is found out before the work."""
    name += f"-beam{config.decoding.beam_size}-alpha{config.decoding.alpha:g}"
    if request.backend != "jax":
        name += f"-{request.backend}-{request.compute_type or 'float32'}"
    path = Path(request.output or request.workdir / "evaluations" / f"{name}.json")
    if path.suffix != ".json":
        raise ConfigError(f"--output={path} must end in .json; the hypotheses get the same in .txt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise RunError(
            f"{path.parent} cannot be written: {error.strerror}; choose another --output"
        ) from None


def save_run(request: Request, params: Params, label: str) -> None:
    """The evaluated parameters as a run directory of their own."""
    target = Path(request.save_params)
    if target.exists():
        raise ConfigError(f"--save_params={target} exists already; choose a new directory")
    save_params(request.workdir, target, params, step=int(label.split("-")[-1]))


def translate(
    translator: Translator, params: Params, sources: Sequence[str]
) -> tuple[list[Translation], dict[str, float]]:
    """One translation for each sentence, made on all devices, and how long it took."""
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        params = replicate(params, mesh)
        started = time.perf_counter()
        translations = translator.translate(
            params, sources, progress=is_first() and sys.stderr.isatty()
        )
    seconds = time.perf_counter() - started - translator.compile_seconds
    tokens = sum(translation.length for translation in translations)
    return translations, {
        "seconds": seconds,  # tokenising, searching and detokenising
        "compile_seconds": translator.compile_seconds,
        "sentences_per_second": len(translations) / seconds,
        "tokens_per_second": tokens / seconds,  # sub-words of the hypotheses, end marks included
    }


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is never seen half."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; make room there") from None


def describe(result: Mapping[str, Any], output: Path) -> str:
    """The summary for people."""
    lines = [
        f"{result['split']}, checkpoint {result['checkpoint']}, beam {result['beam_size']}, "
        f"alpha {result['alpha']:g}: {result['num_sentences']} sentences in "
        f"{result['seconds']:.1f} s ({result['sentences_per_second']:.1f} sentences/s, "
        f"{result['tokens_per_second']:.0f} tokens/s), after {result['compile_seconds']:.1f} s of "
        "compiling"
    ]
    for name, score in result["measures"].items():
        lines.append(f"{name:15}{score['value']:6.2f}  {score['definition']}")
    return "\n".join([*lines, str(output)])


def main() -> None:
    """Evaluates what the flags say, and prints the summary."""
    values = flags.FLAGS.flag_values_dict()
    keep_compiled()
    join(**cli.read_hosts())
    names = {field.name for field in dataclasses.fields(Request)} - {"workdir", "decoding"}
    decoding = {name: values[name] for name in ("beam_size", "alpha", "batch_size")}
    request = Request(
        cli.read_workdir(), decoding=decoding, **{name: values[name] for name in names}
    )
    result, output = evaluate(request)
    if is_first():
        print(describe(result, output))


if __name__ == "__main__":
    cli.define_workdir()
    cli.define_hosts()
    cli.define_backend()
    flags.DEFINE_string("split", "test", "A split of the run's corpus.")
    flags.DEFINE_string("checkpoint", "best", "last, best, a step, or avg:5 for the last 5's mean.")
    flags.DEFINE_string("src", "", "A text file to translate instead of a split; needs --ref.")
    flags.DEFINE_string("ref", "", "Its reference translations, line by line.")
    flags.DEFINE_string("output", "", "Where the scores go (.json); default: RUN/evaluations/.")
    flags.DEFINE_string("save_params", "", "A new run directory for the evaluated parameters.")
    flags.DEFINE_integer("beam_size", None, "Instead of the config's; 1 is greedy.")
    flags.DEFINE_float("alpha", None, "Exponent of the length penalty, instead of the config's.")
    flags.DEFINE_integer("batch_size", None, "Sentences searched together; changes no result.")
    cli.run(main)
