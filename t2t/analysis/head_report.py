"""`show_attention`: writes the page that shows what every head attends to."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from t2t.analysis import head_roles
from t2t.analysis.head_importance import (
    Importance,
    Sample,
    compute_pair_weights,
    encode_pairs,
    measure_importance,
    profile_heads,
    read_sample,
)
from t2t.analysis.head_page import HeadPage, HeadView, StackView, render_heads
from t2t.analysis.head_roles import Profile
from t2t.analysis.head_weights import Head, HeadWeights
from t2t.config.fields import ConfigError
from t2t.data.batch import BOS_ID
from t2t.data.corpus import Pair
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.evaluation.load_models import ModelRequest, RunModel
from t2t.evaluation.significance import RESAMPLES
from t2t.storage.atomic_files import check_writable, explain_write_errors, write_file
from t2t.storage.paths import find_name, make_path
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

MAX_LENGTH = 256  # sub-words of a sentence with EOS; a larger map would not fit a screen
_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention of the decoder to the source",
}


@dataclasses.dataclass(frozen=True)
class HeadRequest:
    """The flags and the sentence of `t2t.inspect_heads`."""

    workdir: Path
    sentence: str
    checkpoint: str = "best"  # last | best | STEP | avg:COUNT | ema
    importance: int = 100  # validation pairs on which heads are measured; 0: no measurement
    measure: str = "loss"  # loss | bleu
    seed: int = 0  # of the random choice of these pairs
    output: str = ""  # empty: RUN/heads.html, or with a direction RUN/heads-en-de.html
    direction: str = ""  # such as en-de; may be empty if the run has only one


def show_attention(request: HeadRequest) -> Path:
    """Translates the sentence, measures all heads and writes the page; returns its path.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: the request names something that does
            not exist, does not fit the run, or cannot be written.
    """
    model = RunModel(ModelRequest((request.workdir,), direction=request.direction))
    config, vocabulary = model.config, model.vocabulary
    if config.model.kind != "transformer":
        raise ConfigError(
            f"model.kind={config.model.kind!r} has no heads to show; use the run of a transformer"
        )
    translator = model.make_translator()
    limit = min(MAX_LENGTH, translator.max_source_length)
    check_sentence(request.sentence, vocabulary, limit)
    sample = read_sample(config, vocabulary, request.importance, limit, request.seed)
    output = prepare_output(request)
    if sample:
        _log.info("measuring heads on %s", name_sample(sample))
    params, label = restore_params(request.workdir, request.checkpoint)
    with jax.set_mesh(model.mesh):
        [best] = translator.translate(model.place(params), [request.sentence])
    shown = (request.sentence, best.text)
    importance = (
        measure_importance(config, translator, params, sample, request.measure) if sample else None
    )
    [weights] = compute_pair_weights(translator, params, [shown])
    profiles = profile_heads(translator, params, sample, shown)
    page = HeadPage(
        run=find_name(request.workdir),
        checkpoint=label,
        sentence=request.sentence,
        translation=shown[1],
        stacks=make_stacks(vocabulary, shown, weights, profiles, importance),
        sample=describe_sample(sample),
        measure=describe_importance(importance, sample),
        rules=(head_roles.__doc__ or "").strip(),
    )
    write_page(output, render_heads(page))
    return output


def check_sentence(sentence: str, vocabulary: Vocabulary, limit: int) -> None:
    """Raises `ConfigError` for an empty sentence and for one that is too long for a map."""
    [ids] = vocabulary.src.encode([sentence])
    if not 1 < len(ids) <= limit:
        raise ConfigError(
            f"the sentence has {len(ids) - 1} sub-words; give one of 1 to {limit - 1}"
        )


def prepare_output(request: HeadRequest) -> Path:
    """Returns the path of the page; raises early if it cannot be written."""
    name = f"heads-{request.direction}.html" if request.direction else "heads.html"
    path = make_path(request.output or request.workdir / name)
    if path.is_dir():
        raise ConfigError(f"--output={path} is a folder; name a file such as {path / 'heads.html'}")
    with explain_write_errors(RunError, path.parent, "--output sets the path"):
        check_writable(path.parent)
    return path


def name_sample(sample: Sample) -> str:
    """Describes the sample by its size, split and seed."""
    drawn = f"{len(sample.pairs)} of {sample.drawn_from} sentences of the validation split"
    return f"{drawn}, drawn with seed {sample.seed}"


def describe_sample(sample: Sample | None) -> str:
    """Describes, for the page, the sentences over which the heads' profiles were averaged."""
    if sample is None:
        return "are of this sentence alone; rare tokens are known only with --importance"
    return f"are means over {name_sample(sample)}, under teacher forcing"


def describe_importance(importance: Importance | None, sample: Sample | None) -> str | None:
    """Defines, for the page, the importance of a head; None if it was not measured."""
    if importance is None or sample is None:
        return None
    if importance.measure == "loss":
        change = (
            f"the increase of the loss under teacher forcing ({importance.baseline:.4f} nats per "
            "sub-word with all heads, without smoothing)"
        )
    else:
        case = " of lower-cased text" if importance.measure == "bleu_lowercase" else ""
        change = f"the decrease of sacreBLEU{case} ({importance.baseline:.2f} with all heads)"
    return (
        f"{change} when this head alone is switched off, on {name_sample(sample)}. In brackets: "
        f"95% interval from a paired bootstrap over these sentences ({RESAMPLES} resamples), for "
        "each head alone. It covers the choice of the sentences, not the seed of the training"
    )


def make_stacks(
    vocabulary: Vocabulary,
    shown: Pair,
    weights: HeadWeights,
    profiles: Mapping[str, list[list[Profile]]],
    importance: Importance | None,
) -> list[StackView]:
    """Builds the page's view of every head, stack by stack."""
    changes = importance.changes if importance else {}
    [src], [tgt] = encode_pairs(vocabulary, [shown])
    source, output = make_labels(vocabulary.src, src), make_labels(vocabulary.tgt, tgt)
    tgt_in = make_labels(vocabulary.tgt, [BOS_ID, *tgt[:-1]])
    axes = {"encoder": (source, source), "decoder": (tgt_in, tgt_in), "cross": (output, source)}

    def view(head: Head, own: Float[np.ndarray, "T S"]) -> HeadView:
        profile = profiles[head.stack][head.layer][head.number]
        place = head.stack, head.layer + 1, head.number + 1
        change = changes.get(head)
        return HeadView(*place, own, profile, change and change.value, change and change.interval)

    return [
        StackView(
            stack,
            _TITLES[stack],
            *axes[stack],
            [
                [view(Head(stack, layer, number), own) for number, own in enumerate(heads)]
                for layer, heads in enumerate(layers)
            ],
        )
        for stack, layers in weights._asdict().items()
    ]


def make_labels(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns the pieces as labels, with a dot at the start of each word."""
    return [piece.replace("▁", "·") for piece in tokenizer.pieces(ids)]


def write_page(path: Path, html: str) -> None:
    """Writes the page atomically; raises `RunError` if it cannot be written."""
    with explain_write_errors(RunError, path):
        write_file(path, html)
