"""Shows what every head attends to: `python -m t2t.inspect_heads --workdir=RUN "A girl climbs."`.

Writes one HTML page, RUN/heads.html: heads of encoder, decoder and cross-attention as maps,
each with its entropy, its role and what the model loses without it. It needs no network.
"""

import dataclasses
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from absl import flags
from jaxtyping import Float

from t2t.analysis import head_roles
from t2t.analysis.head_importance import (
    Importance,
    Sample,
    encode_pairs,
    measure_importance,
    profile_heads,
    read_sample,
    weigh_pairs,
)
from t2t.analysis.head_page import HeadPage, HeadView, StackView, render_heads
from t2t.analysis.head_roles import Profile
from t2t.analysis.head_weights import Head, HeadWeights
from t2t.config.fields import ConfigError, MeshConfig
from t2t.config.files import load_config
from t2t.data.batch import BOS_ID
from t2t.data.corpus import Pair
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation.scores import RESAMPLES
from t2t.model.interface import Params
from t2t.runtime import program
from t2t.runtime.compilation_cache import enable_compilation_cache
from t2t.runtime.mesh import make_mesh
from t2t.storage.atomic_files import write_file
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

MAX_LENGTH = 256  # sub-words of a sentence, EOS included: no screen shows more
_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention: the decoder looks at the source",
}


@dataclasses.dataclass(frozen=True)
class HeadRequest:
    """What to show, as on the command line."""

    workdir: Path
    sentence: str
    checkpoint: str = "best"  # last | best | STEP | avg:COUNT
    importance: int = 100  # validation pairs on which heads are measured; 0: none
    measure: str = "loss"  # loss | bleu
    seed: int = 0  # draws those pairs
    output: str = ""  # empty: RUN/heads.html


def show_attention(request: HeadRequest) -> Path:
    """Translates, weighs, measures and writes; where the page is.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: what is asked for is not there, does not
            fit together, or cannot be written.
    """
    config = load_config(request.workdir / "config.json")
    if config.model.kind != "transformer":
        raise ConfigError(
            f"model.kind={config.model.kind!r} has no heads to show; use the run of a transformer"
        )
    vocabulary = Vocabulary.load(request.workdir / "vocab")
    translator = Translator(config, vocabulary)
    limit = min(MAX_LENGTH, translator.limit)
    check_sentence(request.sentence, vocabulary, limit)
    sample = read_sample(config, vocabulary, request.importance, limit, request.seed)
    output = prepare_output(request)
    if sample:
        _log.info("heads are measured on %s", name_sample(sample))
    params, label = restore_params(request.workdir, request.checkpoint)
    shown = (request.sentence, translate(translator, params, request.sentence))
    importance = (
        measure_importance(config, translator, params, sample, request.measure) if sample else None
    )
    [weights] = weigh_pairs(translator, params, [shown])
    profiles = profile_heads(translator, params, sample, shown)
    page = HeadPage(
        run=request.workdir.resolve().name,
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
    """Refuses what makes no map."""
    [ids] = vocabulary.src.encode([sentence])
    if not 1 < len(ids) <= limit:
        raise ConfigError(
            f"the sentence has {len(ids) - 1} sub-words; give one of 1 to {limit - 1}"
        )


def prepare_output(request: HeadRequest) -> Path:
    """Where the page goes; that it cannot be written is found out before the work."""
    path = Path(request.output or request.workdir / "heads.html").expanduser()
    if path.is_dir():
        raise ConfigError(f"--output={path} is a folder; name a file, as {path / 'heads.html'}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise RunError(
            f"{path.parent} cannot be written: {error.strerror}; choose another --output"
        ) from None


def name_sample(sample: Sample) -> str:
    """Names the sentences on which heads are measured: how many, of which split, by which seed."""
    drawn = f"{len(sample.pairs)} of {sample.drawn_from} sentences of the validation split"
    return f"{drawn}, drawn with seed {sample.seed}"


def describe_sample(sample: Sample | None) -> str:
    """On what the heads' profiles rest, as the page says it."""
    if sample is None:
        return "are of this sentence alone; rare tokens are told only with --importance"
    return f"are means over {name_sample(sample)}, under teacher forcing"


def describe_importance(importance: Importance | None, sample: Sample | None) -> str | None:
    """What a head's importance is, as the page says it."""
    if importance is None or sample is None:
        return None
    if importance.measure == "loss":
        what = (
            f"what the loss under teacher forcing, {importance.whole:.4f} nats a sub-word without "
            "smoothing, gains"
        )
    else:
        what = f"what sacreBLEU, {importance.whole:.2f} with all heads, loses"
    return (
        f"{what} when this head alone is off, on {name_sample(sample)}. In brackets 95% intervals: "
        f"a paired bootstrap over these sentences ({RESAMPLES} resamples), for one head each, of "
        "what other sentences would give; not of what another seed of training would give"
    )


def translate(translator: Translator, params: Params, sentence: str) -> str:
    """The model's own translation, on all devices."""
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        [found] = translator.translate(translator.place(params), [sentence])
    return found.text


def make_stacks(
    vocabulary: Vocabulary,
    shown: Pair,
    weights: HeadWeights,
    profiles: Mapping[str, list[list[Profile]]],
    importance: Importance | None,
) -> list[StackView]:
    """All heads as the page shows them."""
    changes = importance.changes if importance else {}
    [src], [tgt] = encode_pairs(vocabulary, [shown])
    source, written = spell(vocabulary.src, src), spell(vocabulary.tgt, tgt)
    read = spell(vocabulary.tgt, [BOS_ID, *tgt[:-1]])
    axes = {"encoder": (source, source), "decoder": (read, read), "cross": (written, source)}

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


def spell(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Pieces for narrow labels, with a dot where a word begins."""
    return [piece.replace("▁", "·") for piece in tokenizer.pieces(ids)]


def write_page(path: Path, html: str) -> None:
    """Writes a file that is never seen half."""
    try:
        write_file(path, html)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; make space there") from None


def main(operands: Sequence[str]) -> None:
    """Shows what the flags ask for; the sentence may be given as several words."""
    values = flags.FLAGS
    enable_compilation_cache()
    request = HeadRequest(
        program.read_workdir(),
        " ".join(operands),
        values.checkpoint,
        values.importance,
        values.measure,
        values.seed,
        values.output,
    )
    print(show_attention(request))


if __name__ == "__main__":
    program.define_workdir()
    flags.DEFINE_string("checkpoint", "best", "last, best, a step, or avg:5 for the last 5's mean.")
    flags.DEFINE_integer(
        "importance",
        100,
        "Heads are measured, and switched off in turn, on so many validation sentences; 0: not.",
    )
    flags.DEFINE_enum(
        "measure", "loss", ["loss", "bleu"], "What tells a head's importance; bleu takes longer."
    )
    flags.DEFINE_integer("seed", 0, "Draws the sentences of --importance.", lower_bound=0)
    flags.DEFINE_string("output", "", "Where the page goes; default: RUN/heads.html.")
    program.run(main, operands="the sentence")
