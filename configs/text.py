r"""Your own parallel text: a model, a vocabulary and a training that fit its size.

    python -m t2t.train --config=configs/text.py --workdir=runs/mine \
        --config.data.train_src=train.en --config.data.train_tgt=train.de \
        --config.data.validation_src=dev.en --config.data.validation_tgt=dev.de

The files have one sentence per line, plain or .gz, .bz2, .xz, .zst; for several files repeat the
flags. What the text does not decide may follow a colon: `configs/text.py:minutes=30` is a training
of about half an hour on this machine, `:steps=2000` one of so many steps, and `:size=base` the
paper's width and depth; `:size=base,minutes=90` is both. The log says what was chosen, and why. A
flag such as --config.model.dropout=0.2 has the last word.

Unlike the paper's model (configs/base.py) this one has pre-norm, rotary positions and the optimiser
Muon with a cosine. With little text they learn in minutes what takes post-norm and Adam an hour, if
these learn it at all (benchmarks/LOG.md).
"""

import dataclasses
import logging
import math
from typing import TYPE_CHECKING

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
from t2t.config.objective_rules import is_text_alone
from t2t.config.open_numbers import OPEN, Choices, OpenConfig
from t2t.runtime.machine_speed import measure_speed

if TYPE_CHECKING:
    from t2t.data.text_facts import TextFacts

SIZES = {  # width, layers of each stack, and the sub-words of an epoch from which a size is taken
    "small": (128, 4, 0),
    "medium": (256, 4, 3_000_000),
    "base": (512, 6, 30_000_000),
}
DROPOUT = (4, 0.0), (10, 0.1), (20, 0.2), (math.inf, 0.3)  # at most so many epochs, rate
FEWEST_STEPS = 300  # that a budget has to pay for; else a smaller model is taken
NOTICEABLE = 0.01  # share of pairs that repeat another, or are equal on both sides
STARTUP = 90  # seconds of a budget for reading, compiling and validating

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class TextConfig(OpenConfig):
    """The recipe before its text is known."""

    minutes: float = 0.0  # of training on this machine; 0: as the text needs
    size: str = ""  # one of SIZES; empty: by the text, and the minutes

    @property
    def machine_bound(self) -> str:
        """Minutes are steps that depend on the machine."""
        return "minutes" if self.minutes else ""

    def fit(self, choices: Choices) -> None:
        """Chooses the numbers; docs/own-data.md has the measurements that they are from."""
        from t2t.data.text_facts import measure_text  # which imports JAX

        config = choices.config
        text = measure_text(config.data, config.tokenizer)
        if not config.data.filters and max(text.equal, text.repeated) > NOTICEABLE:
            _log.warning(
                "%.1f%% of the pairs repeat another one, and of %.1f%% both sides are equal; "
                "--config.data.filters=duplicates --config.data.filters=identical leave them out",
                100 * text.repeated, 100 * text.equal,
            )  # fmt: skip
        choose_vocabulary(choices, text)
        epoch = choose_batches(choices, text)
        self.choose_model(choices, epoch)
        choose_training(choices, epoch)

    def choose_model(self, choices: Choices, epoch: int) -> None:
        """Chooses size and steps: as the text needs, or as the minutes allow."""
        config, choose = choices.config, choices.choose
        needed = 12e6 * (epoch / 4e5) ** 0.75 / config.data.batch_tokens
        steps, reason = max(round_to(needed), FEWEST_STEPS), f"{epoch:,} sub-words an epoch"
        sizes = [self.size] if self.size else [s for s in SIZES if epoch >= SIZES[s][2]]
        size = sizes[-1]
        if self.minutes:
            speed = measure_speed()
            paid = {each: self.count_steps(config, each, *speed) for each in sizes}
            size = next((each for each in reversed(sizes) if paid[each] >= FEWEST_STEPS), sizes[0])
            steps, reason = min(paid[size], 2 * steps), f"{self.minutes:g} minutes"
        width, layers, _ = SIZES[size]
        choose("model.d_model", width, f"size {size}")
        choose("model.num_layers", layers, f"size {size}")
        choose("model.d_ff", 4 * config.model.d_model)
        choose("model.num_heads", max(4, config.model.d_model // 64))
        choose("training.steps", steps, reason)

    def count_steps(self, config: Config, size: str, speed: float, extra: float) -> int:
        """Returns the steps that fit into the minutes with a model of this size."""
        width, layers, _ = SIZES[size]
        per_layer = (4 + 8 + 8 + 8) * width**2 + 6 * width * config.data.packed_length
        weights = layers * per_layer + width * config.tokenizer.vocab_size
        seconds = 6 * weights * config.data.batch_tokens / speed + extra
        return max(int(round_to(max(60 * self.minutes - STARTUP, 10) / seconds)), 10)


def choose_vocabulary(choices: Choices, text: "TextFacts") -> None:
    """Chooses as many merges as make a piece about as frequent as in the recipes that were tuned.

    Sennrich and Zhang (2019) use 2,000 merges for 100,000 words of the target, and 30,000 for three
    million.
    """
    data, tokenizer = choices.config.data, choices.config.tokenizer
    sentinels = tokenizer.sentinels or 100 * is_text_alone(data)
    special = 4 + sentinels + 2 * len(data.directions)
    if tokenizer.path:
        choices.choose("tokenizer.vocab_size", TokenizerConfig.vocab_size, "that of tokenizer.path")
        return
    if tokenizer.kind == "symbols":
        reason = f"{text.symbols:,} symbols"
        choices.choose("tokenizer.vocab_size", text.symbols + special, reason)
        return
    merges = clip(8000 * (text.words / 700_000) ** 0.6, 200, 32_000)
    merges = round_to(min(merges, text.forms))
    others = text.characters + special + 256 * tokenizer.byte_fallback
    reason = f"{merges:,} merges for {text.words:,} words, {others:,} characters and bytes"
    choices.choose("tokenizer.vocab_size", merges + others, reason)


def choose_batches(choices: Choices, text: "TextFacts") -> int:
    """Chooses lengths and the size of a batch; returns the target sub-words of an epoch.

    Rows are packed, so there is one batch shape, which compiles once.
    """
    data, choose = choices.config.data, choices.choose
    src, tgt = text.count_subwords(data, choices.config.tokenizer)
    longer = np.maximum(src, tgt)
    longest = 32 * math.ceil(1.2 * float(np.quantile(longer, 0.99)) / 32)
    choose("data.max_length", min(longest, 1024), "99% of the pairs have at most five sixths")
    choose("data.packed_length", max(data.max_length, 64), "several pairs a row")
    epoch = round(float(tgt[longer <= data.max_length].sum()) * text.pairs / len(tgt))
    tokens = 1024 * 2 ** round(clip(math.log2(max(epoch, 1) / 1e6) / 2, 0, 5))
    least = data.rows_multiple * (data.packed_length or data.max_length)
    choose("data.batch_tokens", max(tokens, least), f"{epoch:,} sub-words an epoch")
    return epoch


def choose_training(choices: Choices, epoch: int) -> None:
    """Chooses dropout by the number of epochs, and the rate by width and steps."""
    config, choose = choices.config, choices.choose
    steps, width = config.training.steps, config.model.d_model
    epochs = steps * config.data.batch_tokens / max(epoch, 1)
    dropout = next(rate for most, rate in DROPOUT if epochs <= most)
    choose("model.dropout", dropout, f"{epochs:.3g} epochs")
    peak = 0.005 * (1000 / max(steps, 700)) ** 0.2 * (128 / width) ** 0.25
    choose("training.learning_rate", round_to(peak), f"width {width}, {steps:,} steps")
    choose("training.warmup_steps", max(steps // 10, 1), "a tenth of the steps")
    # The loss is lowest long before translations are best, so these choose the checkpoint `best`.
    search = config.decoding.strategy, config.decoding.mbr, config.tokenizer.kind == "symbols"
    is_scored = search == ("beam", "none", False) and not is_text_alone(config.data)
    half = clip(steps // 10, 1, 1000)
    every = 2 * half if config.checkpoints.every == OPEN else config.checkpoints.every
    choose("training.validate_every", half if config.checkpoints.every == OPEN else every)
    choose("training.bleu_every", every if is_scored else 0)
    choose("checkpoints.every", every)
    if not is_scored and config.checkpoints.best_metric == "chrf":
        config.checkpoints.best_metric = "loss"
    choose("training.log_every", max(steps // 50, 1))


def round_to(value: float, digits: int = 2) -> int | float:
    """Rounds to so many significant digits; an integer if it is at least 10."""
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return int(rounded) if rounded >= 10 else rounded


def clip(value: float, least: float, most: float) -> float:
    """Returns the value, or the limit that it exceeds."""
    return min(max(value, least), most)


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
        checkpoints=CheckpointConfig(every=OPEN, best_metric="chrf"),
        minutes=found.get("minutes", 0.0),
        size=found.get("size", ""),
    )
