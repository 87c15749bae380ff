r"""Your own parallel text: a model, a vocabulary and a training that fit its size.

    python -m t2t.train --config=configs/text.py --workdir=runs/mine \
        --config.data.train_src=train.en --config.data.train_tgt=train.de \
        --config.data.validation_src=dev.en --config.data.validation_tgt=dev.de

The files have one sentence per line, plain or .gz, .bz2, .xz, .zst; for several files repeat the
flags. What the text does not decide may follow a colon: `configs/text.py:minutes=30` is a training
of about half an hour on this machine, `:steps=2000` one of so many steps, and `:size=base` the
paper's width and depth; `:size=base,minutes=90` is both. The log says what was chosen, and why. A
flag such as --config.model.dropout=0.2 takes the place of a choice.

Unlike the paper's model (configs/base.py) this one has pre-norm, rotary positions and the optimiser
Muon with a cosine. With little text they learn in minutes what takes post-norm and Adam an hour, if
these learn it at all (benchmarks/LOG.md).
"""

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from t2t.config import (
    CheckpointConfig,
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.config.objective_rules import count_sentinels, is_text_alone
from t2t.config.open_numbers import OPEN, OPEN_NAME, Choices, OpenConfig
from t2t.runtime.machine_speed import measure_speed

if TYPE_CHECKING:
    from t2t.data.text_facts import TextFacts

SIZES = {  # width; layers of each stack; the fewest target sub-words an epoch
    "small": (128, 4, 0),
    "medium": (256, 4, 3_000_000),
    "base": (512, 6, 30_000_000),
}
DROPOUT = (4, 0.0), (10, 0.1), (20, 0.2), (math.inf, 0.3)  # at most so many epochs, rate
LEAST_TOKENS = 1024  # positions of a batch
FEWEST_STEPS = 1000  # a size or a batch is taken only if the minutes pay for so many
STARTUP = 90  # seconds of the minutes for reading, compiling and validating


@dataclasses.dataclass
class TextConfig(OpenConfig):
    """The recipe before its text is known."""

    minutes: float = 0.0  # of training on this machine; 0: as the text needs
    size: str = ""  # one of SIZES; empty: by the text, and the minutes

    @property
    def machine_bound(self) -> str:
        """Minutes are a number of steps that depends on the machine."""
        return "minutes" if self.minutes else ""

    def fit(self, choices: Choices) -> None:
        """Chooses the values; docs/own-data.md has the measurements that they are from."""
        from t2t.data.text_facts import measure_text  # which imports JAX

        config = choices.config
        text = measure_text(config.data, config.tokenizer)
        lengths = choose_vocabulary(choices, text)
        epoch = choose_lengths(choices, text, lengths)
        choose_model(choices, epoch, lengths.vocab_size, self.size, 60 * self.minutes)
        choose_training(choices, epoch)
        choose_checkpoints(choices)


class Lengths(NamedTuple):
    """Sub-words of the sample's sentences, and the size of the vocabulary."""

    src: np.ndarray
    tgt: np.ndarray
    vocab_size: int


def choose_vocabulary(choices: Choices, text: "TextFacts") -> Lengths:
    """Chooses as many merges as make pieces about as frequent as in the recipes that were tuned."""
    data, tokenizer = choices.config.data, choices.config.tokenizer
    if tokenizer.path or not choices.is_open("tokenizer.vocab_size"):
        lengths = Lengths(*text.count_subwords(data, tokenizer))
        choices.choose("tokenizer.vocab_size", TokenizerConfig.vocab_size, "not used")
        return lengths
    others = 4 + text.tags + tokenizer.sentinels  # pieces that stand for no text
    if tokenizer.kind == "symbols":
        choices.choose("tokenizer.vocab_size", text.symbols + others, "the symbols of a sample")
        return Lengths(*text.count_subwords(data, tokenizer))
    others += 1 + text.characters + 256 * tokenizer.byte_fallback  # 1: the space
    merges = int(clip(8000 * (text.words / 700_000) ** 0.6, 200, 32_000))
    merges = int(clip(merges, 1, text.forms))
    for halved in (merges >> n for n in range(merges.bit_length())):
        size = halved + others
        size += -size % choices.config.mesh.tensor  # whose devices share its rows
        own = dataclasses.replace(tokenizer, vocab_size=size)
        try:
            lengths = Lengths(*text.count_subwords(data, own))
        except ConfigError:  # more than the text has, which few kinds of text do
            continue
        reason = f"{halved:,} merges for {text.words:,} words, {others:,} characters, bytes, ..."
        choices.choose("tokenizer.vocab_size", size, reason)
        return lengths
    raise ConfigError("no vocabulary fits this text; choose tokenizer.vocab_size")


def choose_lengths(choices: Choices, text: "TextFacts", lengths: Lengths) -> int:
    """Chooses the longest sentence; returns the target sub-words of an epoch.

    Rows are packed, so there is one batch shape, which compiles once.
    """
    data, tokenizer = choices.config.data, choices.config.tokenizer
    longer = np.maximum(lengths.src, lengths.tgt)
    usual = float(np.quantile(longer, 0.99))
    step = math.lcm(32, data.length_multiple)
    longest = min(step * math.ceil(1.2 * usual / step), 1024 // step * step)
    choices.choose("data.max_length", longest, f"99% of the pairs have at most {usual:.0f}")
    choices.choose("data.packed_length", max(data.max_length, 2 * step), "several pairs a row")
    if any(name == "tokenizer.vocab_size" for name, *_ in choices.rows) and not tokenizer.path:
        tokenizer.vocab_size += max(count_sentinels(data) - tokenizer.sentinels, 0)
    kept = lengths.tgt[longer <= data.max_length]
    if not len(kept):
        raise ConfigError(
            f"all of the text is longer than data.max_length={data.max_length} sub-words, often "
            f"{usual:.0f}; put one sentence on a line, or raise data.max_length"
        )
    return max(round(float(kept.sum()) * text.pairs / len(longer)), 1)


def choose_model(choices: Choices, epoch: int, vocab_size: int, size: str, seconds: float) -> None:
    """Chooses size, batch and steps: as the text needs, or as the seconds allow."""
    config, choose = choices.config, choices.choose
    least = config.data.rows_multiple * (config.data.packed_length or config.data.max_length)
    tokens = LEAST_TOKENS * 2 ** round(clip(math.log2(epoch / 1e6) / 2, 0, 5))
    if not choices.is_open("data.batch_tokens"):
        least = tokens = config.data.batch_tokens
    tokens = max(tokens, least)
    sizes = [size] if size else [name for name in SIZES if epoch >= SIZES[name][2]]
    size, left = sizes[-1], max(seconds - STARTUP, seconds / 4)
    if seconds:  # the largest size, and for it the largest batch, that get enough steps
        batches = [tokens >> n for n in range(6) if tokens >> n >= max(least, LEAST_TOKENS)]
        tried = [(name, batch) for name in reversed(sizes) for batch in batches or [tokens]]

        def pays(pair: tuple[str, int]) -> bool:
            return left / estimate_step(config, *pair, vocab_size) >= FEWEST_STEPS

        size, tokens = next(filter(pays, tried), tried[-1])
    width, layers, _ = SIZES[size]
    choose("data.batch_tokens", tokens, f"{epoch:,} target sub-words an epoch")
    choose("model.d_model", width, f"size {size}")
    width = config.model.d_model
    given = None not in (config.model.encoder_layers, config.model.decoder_layers)
    choose("model.num_layers", ModelConfig.num_layers if given else layers, f"size {size}")
    choose("model.d_ff", 4 * width)
    heads = [n for n in range(1, max(4, width // 64) + 1) if width % (2 * n) == 0]
    choose("model.num_heads", heads[-1] if heads else 1)
    step = estimate_step(config, size, config.data.batch_tokens, vocab_size)
    needed = max(12e6 * (epoch / 4e5) ** 0.75 / config.data.batch_tokens, 300)
    steps = min(left / step, 2 * needed) if seconds else needed
    steps = max(int(round_to(steps)), 10)
    choose("training.steps", steps, f"about {(steps * step + STARTUP) / 60:.2g} minutes here")


def estimate_step(config: Config, size: str, tokens: int, vocab_size: int) -> float:
    """Returns the seconds of a step, from the matrix products of a position.

    Without the products of embeddings: in encoder and decoder 4 and 8 of attention with d^2
    weights, 2 of the feed-forward with 4 d^2, 6 with the keys of a row, and the logits.
    """
    width, layers, _ = SIZES[size]
    width = config.model.d_model if config.model.d_model != OPEN else width
    layers = config.model.num_layers if config.model.num_layers != OPEN else layers
    keys = config.data.packed_length or config.data.max_length
    products = layers * (28 * width**2 + 6 * width * keys) + width * vocab_size
    speed, extra = measure_speed()
    return 6 * products * tokens * config.training.num_passes / speed + extra


def choose_training(choices: Choices, epoch: int) -> None:
    """Chooses dropout by the number of epochs, and the rate by width and steps."""
    training, choose = choices.config.training, choices.choose
    steps, width = training.steps, choices.config.model.d_model
    epochs = steps * choices.config.data.batch_tokens / epoch
    choose(
        "model.dropout", next(r for most, r in DROPOUT if epochs <= most), f"{epochs:.3g} epochs"
    )
    peak = 0.005 * (1000 / max(steps, 700)) ** 0.2 * (128 / width) ** 0.25
    if training.optimizer != "muon":
        peak *= 0.6
    is_noam = training.schedule == "noam"
    reason = "a factor" if is_noam else f"width {width}, {steps:,} steps"
    choose("training.learning_rate", 1.0 if is_noam else round_to(peak), reason)
    choose("training.warmup_steps", max(steps // 10, 1), "a tenth of the steps")
    choose("training.log_every", max(steps // 50, 1))


def choose_checkpoints(choices: Choices) -> None:
    """Chooses intervals, and the score that says which checkpoint is best.

    The loss is lowest long before translations are best, so it is their chrF, where there are any.
    """
    config, choose = choices.config, choices.choose
    search = config.decoding.strategy, config.decoding.mbr
    translates = not is_text_alone(config.data) and config.tokenizer.kind != "symbols"
    is_scored = translates and search == ("beam", "none") and config.training.bleu_every != 0
    given = [config.checkpoints.every, config.training.bleu_every]
    every = next((n for n in given if n > 0), 0)
    choose("training.validate_every", every or int(clip(config.training.steps // 10, 1, 1000)))
    every = every or 2 * config.training.validate_every
    choose("training.bleu_every", every if is_scored else 0)
    choose("checkpoints.every", every)
    choose("checkpoints.best_metric", "chrf" if is_scored else "loss")


def round_to(value: float) -> float:
    """Rounds to two significant digits."""
    return round(value, 1 - math.floor(math.log10(value)))


def clip(value: float, least: float, most: float) -> float:
    """Returns the value, or the limit that it exceeds; of two limits the least one counts."""
    return max(least, min(value, most))


def get_config(wishes: str = "") -> TextConfig:
    """`wishes`: minutes=30, steps=2000, size=small, medium or base; several joined by commas."""
    found = {}
    for wish in filter(None, wishes.split(",")):
        name, _, value = wish.partition("=")
        if name in found:
            raise ConfigError(f"configs/text.py:{wishes}: {name} is given twice")
        try:
            found[name] = {"minutes": float, "steps": int, "size": str}[name](value)
        except (KeyError, ValueError):
            raise ConfigError(
                f"configs/text.py:{wish}: write minutes=NUMBER, steps=NUMBER or "
                f"size={'|'.join(SIZES)}"
            ) from None
    if found.get("size", "base") not in SIZES:
        raise ConfigError(f"configs/text.py:size={found['size']}: use {', '.join(SIZES)}")
    for name in {"minutes", "steps"} & found.keys():
        if not 0 < found[name] < math.inf:
            raise ConfigError(f"configs/text.py:{name}={found[name]:g}: it has to be above 0")
    if {"minutes", "steps"} <= found.keys():
        raise ConfigError(f"configs/text.py:{wishes}: choose minutes or steps, not both")
    return TextConfig(
        model=ModelConfig(
            num_layers=OPEN,
            d_model=OPEN,
            d_ff=OPEN,
            num_heads=OPEN,
            dropout=OPEN,
            position="rotary",
            norm_position="pre",
        ),
        data=DataConfig(source="text", max_length=OPEN, packed_length=OPEN, batch_tokens=OPEN),
        tokenizer=TokenizerConfig(vocab_size=OPEN),
        training=TrainingConfig(
            optimizer="muon",
            schedule="cosine",
            steps=found.get("steps", OPEN),
            learning_rate=OPEN,
            warmup_steps=OPEN,
            log_every=OPEN,
            validate_every=OPEN,
            bleu_every=OPEN,
        ),
        checkpoints=CheckpointConfig(every=OPEN, best_metric=OPEN_NAME),
        minutes=found.get("minutes", 0.0),
        size=found.get("size", ""),
    )
