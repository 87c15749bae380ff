"""Scores a run on a test set: `python -m t2t.evaluate --workdir=RUN --split=test`.

Only the run directory is read, and the raw text of the split. The scores go to
RUN/evaluations/SPLIT-CHECKPOINT-beam4-alpha0.6.json, and beside them the hypotheses, sources and
references as .txt, one line for each sentence of the split.
"""

import dataclasses
import logging
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.sharding import Mesh

from t2t import cli
from t2t.compilation_cache import keep_compiled
from t2t.config import Config, ConfigError, MeshConfig
from t2t.config_json import load_config, overrides
from t2t.config_rules import validate
from t2t.data.cache import tokenize_corpus
from t2t.data.corpus import Corpus, TextCorpus
from t2t.data.sources import open_split
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.backend import make_translator
from t2t.decoding.translator import Translation, Translator
from t2t.evaluation.bleu import INTERVAL_DEFINITION, RESAMPLES, Score, score_corpus
from t2t.evaluation.records import name_texts, save_evaluation
from t2t.hosts import first_alone, is_first, join
from t2t.model.encoder_decoder import Params
from t2t.sharding import make_mesh, replicate
from t2t.training.checkpoint import restore_params, save_params
from t2t.training.ledger import find_revision, find_versions, now, trace
from t2t.training.run_directory import RunError
from t2t.training.validation import CorpusScorer

_log = logging.getLogger(__name__)

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
    # A line feed inside a record would make two lines of one sentence in the texts.
    pairs = [(src.replace("\n", " "), tgt.replace("\n", " ")) for src, tgt in corpus]
    sources, references = zip(*pairs, strict=True)
    translations, timing, perplexities = run_model(config, translator, params, corpus)
    hypotheses = [translation.text for translation in translations]
    scores = score_corpus(hypotheses, references, config.data.tgt_language, RESAMPLES)
    result = {
        "bleu": scores["bleu"].value,
        "signature": scores["bleu"].definition,
        "chrf": scores["chrf"].value,
        "measures": {
            name: dataclasses.asdict(score) for name, score in (scores | perplexities).items()
        },
        "interval": INTERVAL_DEFINITION,
        "num_sentences": len(corpus),
        "num_cut": sum(translation.num_pieces > 1 for translation in translations),
        "backend": translator.describe(),
        **timing,
        **dataclasses.asdict(config.decoding),
        "workdir": request.workdir.resolve().name,
        "run": trace(request.workdir),
        "config": overrides(config),
        "checkpoint": label,
        "split": split,
        "tgt_language": config.data.tgt_language,
        "corpus": corpus.fingerprint(),
        "texts": name_texts(output, split, corpus.fingerprint()),
        "date": now(),
        "devices": [device.device_kind for device in jax.devices()],
        **find_revision(),
        "versions": find_versions(PACKAGES),
    }
    if is_first():
        texts = {"hypotheses": hypotheses, "sources": sources, "references": references}
        try:
            save_evaluation(output, result, texts)
        except OSError as error:
            raise RunError(
                f"{output} cannot be written: {error.strerror}; make room there"
            ) from None
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


def run_model(
    config: Config, translator: Translator, params: Params, corpus: Corpus
) -> tuple[list[Translation], dict[str, float], dict[str, Score]]:
    """On all devices: a translation for each sentence, how long that took, and perplexities."""
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        params = replicate(params, mesh)
        translations, timing = translate(translator, params, [src for src, _ in corpus])
        return translations, timing, measure_perplexity(config, translator, params, corpus, mesh)


def translate(
    translator: Translator, params: Params, sources: Sequence[str]
) -> tuple[list[Translation], dict[str, float]]:
    """One translation for each sentence, and how long it took."""
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


def measure_perplexity(
    config: Config, translator: Translator, params: Params, corpus: Corpus, mesh: Mesh
) -> dict[str, Score]:
    """Of the references, per sub-word and per word; nothing where the model can take none."""
    vocabulary, limit = translator.vocabulary, translator.limit
    with tempfile.TemporaryDirectory() as folder:
        tokenized = tokenize_corpus(corpus, vocabulary, Path(folder), progress=False)
        fits = np.maximum(tokenized.src_lengths, tokenized.tgt_lengths) <= limit
        words = sum(len(tgt.split()) for (_, tgt), fit in zip(corpus, fits, strict=True) if fit)
        if not words:
            _log.warning("no perplexity: no pair of at most %d sub-words holds a word", limit)
            return {}
        scorer = CorpusScorer(translator.structure, tokenized, config.data, mesh, limit)
        loss = scorer.score(params)
    if not math.isfinite(loss.perplexity(words)):
        _log.warning("no perplexity: the model's loss is not finite, or very large")
        return {}
    definition = "teacher forcing in JAX on the raw references, end marks included, no smoothing"
    if left_out := int((~fits).sum()):
        definition += f"; {left_out} pairs of more than {limit} sub-words left out"
    if not config.tokenizer.byte_fallback:
        definition += "; an unknown piece counts as one sub-word"
    detail = f"{loss.nats:.1f} nats, {loss.tokens} sub-words, {words} words"
    per_token = f"exp(nats / sub-words), vocabulary {vocabulary.fingerprint()[:8]}"
    counts = {
        "perplexity": (loss.tokens, per_token),
        "perplexity_word": (words, "exp(nats / words between blanks)"),
    }
    return {
        name: Score(loss.perplexity(count), f"{formula}; {definition}", detail)
        for name, (count, formula) in counts.items()
    }


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
        low, high = score["interval"] or (math.nan, math.nan)
        interval = f"[{low:6.2f}, {high:6.2f}]" if score["interval"] else ""
        lines.append(f"{name:21}{score['value']:7.2f}  {interval:16}  {score['definition']}")
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
