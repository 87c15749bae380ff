"""Warnings about a config, each from a measurement: one sentence for the log."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from t2t.config.fields import Config
from t2t.config.stages import read_stages
from t2t.config.variants import CHOICES
from t2t.data.batch_plan import BatchShape
from t2t.ops.cudnn_attention import supports_device
from t2t.ops.select_kernels import choose_policy, uses_gpu_twins
from t2t.training.schedule import make_schedule

# With post-norm on Multi30k, a peak of 0.004 left the validation loss at 2.96 nats and BLEU at 13,
# where 0.002 came to 34.7 (benchmarks/LOG.md), with four layers; the paper's is 0.0007.
HIGH_PEAK, SHALLOW = 0.003, 2
# A vocabulary of 8,000 on 2,000 pairs, six occurrences a piece, is one of whole words.
FEW_OCCURRENCES = 10
# A step compiles about as long as this many steps take.
COMPILING, FEW_SHAPES = 100, 3


def doubt_outputs(
    config: Config,
    src: Int[np.ndarray, "n"],
    tgt: Int[np.ndarray, "n"],
    pairs: str = "training pairs",
    remedy: str = "set decoding.max_extra_length",
) -> Iterator[str]:
    """Yields a warning if a search would cut outputs that are as long as the targets of `pairs`.

    `src` and `tgt` are lengths in sub-words, EOS included, and `remedy` is what may be raised.
    """
    if not len(src):
        return
    most, extra = config.decoding.max_extra_length, tgt.astype(int) - src
    if count := int((extra > most).sum()):
        worst = int(extra.argmax())
        yield (
            f"{count} of {len(src)} {pairs} have a target of more than decoding."
            f"max_extra_length={most} sub-words beyond its source, up to {tgt[worst]} for "
            f"{src[worst]}: a search would cut such outputs; {remedy}={extra[worst]} or more"
        )


def doubt_shapes(config: Config, shapes: Sequence[BatchShape]) -> Iterator[str]:
    """Yields a warning if some of these batch shapes are too odd for a GPU's fast attention."""
    model = config.model
    if model.kind == "rnn" or model.attention_dropout or not uses_gpu_twins(model):
        return
    if not supports_device() or choose_policy(model).dtype != jnp.bfloat16:
        return

    def is_odd(shape: BatchShape) -> bool:
        if model.kind == "decoder_only":
            return (shape.src_length + shape.tgt_length) % 2 == 1
        return shape.src_length % 2 + shape.tgt_length % 2 > 0

    if odd := [shape for shape in shapes if is_odd(shape)]:
        is_packed, first = bool(config.data.packed_length), odd[0]
        yield (
            f"{len(odd)} of {len(shapes)} batch shapes have an odd length, as {first.src_length} + "
            f"{first.tgt_length}: cuDNN does not compute their attention, but t2t/ops/"
            "recomputed_attention.py, which is slower; set "
            f"{'an even data.packed_length' if is_packed else 'data.length_multiple=8'}"
        )


def list_doubts(
    config: Config, occurrences: float, start: int = 0, num_shapes: int = 1
) -> Iterator[str]:
    """Yields what is likely to go wrong, as far as it can still be changed after step `start`.

    `occurrences` is how often the training text has a piece of the vocabulary, on average, and
    `num_shapes` how many batch shapes will be compiled at most.
    """
    if start <= config.training.schedule_start:
        yield from _doubt_schedule(config)
    if start == 0:
        yield from _doubt_run(config, occurrences, num_shapes)
    steps = config.training.steps
    later = [each.first for each in read_stages(config.data.stages) if each.first >= steps]
    if later:
        yield (
            f"training.steps={steps} ends before the last {len(later)} of data.stages="
            f"{config.data.stages}; give more than {later[-1]} steps to reach all of them"
        )


def _doubt_schedule(config: Config) -> Iterator[str]:
    training, model = config.training, config.model
    steps = training.steps - training.schedule_start
    is_known = training.schedule in CHOICES["training.schedule"]
    is_known &= training.optimizer in CHOICES["training.optimizer"]
    if is_known and training.warmup_steps >= steps:
        last = float(make_schedule(training, model.reference_width)(training.steps - 1))
        yield (
            f"the learning rate only rises, to {last:.2g}: "
            f"training.warmup_steps={training.warmup_steps}, but training has {steps} steps; lower "
            f"training.warmup_steps, for example to {max(steps // 10, 1)}"
        )
    is_noam = training.schedule == "noam"
    width = model.reference_width
    peak = training.noam_peak(width) if is_noam else training.learning_rate
    longer = (training.learning_rate / 0.002) ** 2 / width  # where noam's peak is 0.002
    is_post = model.norm_position == "post" and max(model.depth) > SHALLOW
    is_new = not training.init_from and not training.schedule_start
    if is_known and is_new and is_post and peak >= HIGH_PEAK:
        yield (
            f"the learning rate rises to {peak:.2g} with model.norm_position='post', which did not "
            "learn to translate at 0.004 in measurements; set model.norm_position=pre, or "
            + (
                f"training.warmup_steps={longer:,.0f} or more"
                if is_noam
                else "training.learning_rate=0.002 or less"
            )
        )


def _doubt_run(config: Config, occurrences: float, num_shapes: int) -> Iterator[str]:
    training = config.training
    if not config.tokenizer.path and 0 < occurrences < FEW_OCCURRENCES:
        size, smaller = config.tokenizer.vocab_size, config.tokenizer.vocab_size * occurrences / 20
        yield (
            f"the text has a piece of the vocabulary {occurrences:.1f} times on average, too "
            "rarely to learn it; "
            + (
                f"lower tokenizer.vocab_size={size}, for example to {smaller:.0f}, which cuts "
                "words into more pieces"
                if smaller > 1000 and config.tokenizer.kind in ("bpe", "unigram")
                else "bring more text, or fine-tune a model that exists"
            )
        )
    if training.ema_decay and 1 / (1 - training.ema_decay) > training.steps:
        yield (
            f"training.ema_decay={training.ema_decay:g} averages the last "
            f"{1 / (1 - training.ema_decay):,.0f} steps, but training has {training.steps}; lower "
            f"it, for example to {1 - 10 / max(training.steps, 20):.3g}"
        )
    if num_shapes > FEW_SHAPES and COMPILING * num_shapes > 2 * training.steps:
        yield (
            f"{num_shapes} batch shapes for training.steps={training.steps}: each compiles about "
            f"as long as {COMPILING} steps take; set "
            f"data.num_shapes={max(training.steps // COMPILING, 1)}"
        )
