"""`show_attention`: writes the page that shows what every head attends to.

It is one self-contained HTML file with the attention maps of all heads of a model.
"""

import base64
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from t2t.analysis import head_roles
from t2t.analysis.head_importance import (
    Head,
    Importance,
    Sample,
    compute_pair_weights,
    measure_importance,
    profile_heads,
    read_sample,
)
from t2t.analysis.head_request import HeadRequest
from t2t.analysis.head_roles import Profile
from t2t.config.fields import ConfigError
from t2t.data.batch import BOS_ID
from t2t.data.corpus import Pair
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.attention_weights import HeadWeights
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.measure import RESAMPLES
from t2t.evaluation.requests import ModelRequest
from t2t.runtime.html_templates import render_page
from t2t.storage.atomic_files import check_writable, explain_write_errors, write_file
from t2t.storage.paths import make_path
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

MAX_LENGTH = 256  # sub-words of a sentence with EOS; a larger map would not fit a screen
_MAX_UNFOLDED = 48  # heads; with more, only the last layer of each stack is unfolded
_TEMPLATE = Path(__file__).with_suffix(".html")
_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention of the decoder to the source",
}


class HeadView(NamedTuple):
    """A head as the page shows it."""

    stack: str
    layer: int  # counted from 1
    number: int  # counted from 1
    pixels: str  # the weights as bytes in units of 1/255, row by row, encoded in base64
    profile: Profile
    importance: str  # with its interval; empty if it was not measured
    rank: tuple[float, float]  # heads are listed by it

    @property
    def anchor(self) -> str:
        """The target of links to this head."""
        return f"{self.stack}-{self.layer}-{self.number}"


def show_attention(request: HeadRequest) -> Path:
    """Translates the sentence, measures all heads and writes the page; returns its path.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: the request names something that does
            not exist, does not fit the run, or cannot be written.
    """
    model = RunModel(ModelRequest((request.workdir,), request.checkpoint, task=request.task))
    config, vocabulary = model.config, model.vocabulary
    if config.model.kind != "transformer":
        raise ConfigError(
            f"model.kind={config.model.kind!r}: the page shows the heads of an encoder and a "
            "decoder; use a run of model.kind='transformer'"
        )
    translator = model.make_translator()
    limit = min(MAX_LENGTH, translator.max_source_length)
    [ids] = vocabulary.src.encode([request.sentence])
    if not 1 < len(ids) <= limit:
        raise ConfigError(
            f"the sentence has {len(ids) - 1} sub-words; give one of 1 to {limit - 1}"
        )
    sample = read_sample(config, vocabulary, request.importance, limit, request.seed)
    output = find_output(request)
    if sample:
        _log.info("measuring heads on %s", sample)
    params, [label] = model.restore()
    with jax.set_mesh(model.mesh):
        [found] = translator.translate(model.place(params), [request.sentence])
    shown = request.sentence, found.text
    importance = (
        measure_importance(config, translator, params, sample, request.measure) if sample else None
    )
    unsharded = jax.device_put(params)
    [weights] = compute_pair_weights(translator, unsharded, [shown])
    profiles = profile_heads(translator, unsharded, sample, shown)
    stacks = view_heads(weights, profiles, importance)
    heads = [head for layers in stacks.values() for layer in layers for head in layer]
    html = render_page(
        _TEMPLATE,
        run=request.workdir.resolve().name,
        checkpoint=label,
        sentence=request.sentence,
        translation=found.text,
        titles=_TITLES,
        stacks=stacks,
        heads=sorted(heads, key=lambda head: head.rank),
        is_unfolded=len(heads) <= _MAX_UNFOLDED,
        sample=describe_sample(sample),
        measure=describe_importance(importance),
        rules=(head_roles.__doc__ or "").strip(),
        tokens=make_labels(vocabulary, shown),
    )
    with explain_write_errors(RunError, output):
        write_file(output, html)
    return output


def find_output(request: HeadRequest) -> Path:
    """Returns the path of the page; raises early if it cannot be written."""
    name = f"heads-{request.task}.html" if request.task else "heads.html"
    path = make_path(request.output or request.workdir / name)
    if path.is_dir():
        raise ConfigError(f"--output={path} is a folder; name a file such as {path / 'heads.html'}")
    with explain_write_errors(RunError, path.parent, "--output sets the path"):
        check_writable(path.parent, path.name)
    return path


def describe_sample(sample: Sample | None) -> str:
    """Describes, for the page, the sentences over which the heads' profiles were averaged."""
    if sample is None:
        return "are of this sentence alone; rare tokens are known only with --importance"
    return f"are means over {sample}, under teacher forcing"


def describe_importance(importance: Importance | None) -> str | None:
    """Defines, for the page, the importance of a head; None if it was not measured."""
    if importance is None:
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
        f"{change} when this head alone is switched off, on {importance.sample}. In brackets: "
        f"95% interval from a paired bootstrap over these sentences ({RESAMPLES} resamples), for "
        "each head alone. It covers the choice of the sentences, not the seed of the training"
    )


def view_heads(
    weights: HeadWeights,
    profiles: Mapping[str, list[list[Profile]]],
    importance: Importance | None,
) -> dict[str, list[list[HeadView]]]:
    """Returns what the page shows of each stack's heads, by layer and head."""

    def view(head: Head) -> HeadView:
        own = np.asarray(getattr(weights, head.stack)[head.layer, head.number])
        pixels = base64.b64encode(np.rint(own * 255).astype(np.uint8).tobytes()).decode()
        profile = profiles[head.stack][head.layer][head.number]
        text, value = "", 0.0
        if importance:
            value, (low, high) = importance.changes[head]
            text = f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"
        # The most important heads come first, and those whose importance is not finite before them.
        rank = -value if np.isfinite(value) else -np.inf, profile.entropy
        return HeadView(head.stack, head.layer + 1, head.number + 1, pixels, profile, text, rank)

    return {
        stack: [
            [view(Head(stack, layer, number)) for number in range(len(heads))]
            for layer, heads in enumerate(layers)
        ]
        for stack, layers in profiles.items()
    }


def make_labels(vocabulary: Vocabulary, shown: Pair) -> dict[str, dict[str, list[str]]]:
    """Returns the labels of each stack's queries (top to bottom) and keys (left to right)."""

    def label(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
        """Returns the pieces with a dot at the start of each word."""
        return [piece.replace("▁", "·") for piece in tokenizer.pieces(ids)]

    [(src, tgt)] = vocabulary.encode_pairs([shown])
    source, output = label(vocabulary.src, src), label(vocabulary.tgt, tgt)
    tgt_in = label(vocabulary.tgt, [BOS_ID, *tgt[:-1]])
    return {
        "encoder": {"queries": source, "keys": source},
        "decoder": {"queries": tgt_in, "keys": tgt_in},
        "cross": {"queries": output, "keys": source},
    }
