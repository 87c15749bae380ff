r"""Your own parallel text: a model, a vocabulary and a training that fit its size.

    python -m t2t.train --config=configs/text.py --workdir=runs/mine \
        --config.data.train_src=train.en --config.data.train_tgt=train.de \
        --config.data.validation_src=dev.en --config.data.validation_tgt=dev.de

The files have one sentence per line, plain or .gz, .bz2, .xz, .zst; for several files repeat the
flags. Options follow a colon. `configs/text.py:minutes=30` trains for about half an hour on this
machine, `:steps=2000` for so many steps, `:size=base` the paper's width and depth. Commas join
them: `:size=base,minutes=90`. The log says what was chosen, and why. A flag such as
--config.model.dropout=0.2 takes the place of a choice.

Unlike the paper's model (configs/base.py) this one has pre-norm, rotary positions and the optimiser
Muon with a cosine. With little text they learn in minutes what takes post-norm and Adam an hour, if
these learn it at all (benchmarks/LOG.md).
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from t2t.config import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    TrainingConfig,
)
from t2t.config.fitted_config import Choices, FittedConfig, show_number
from t2t.runtime.machine_speed import may_have_accelerator, measure_speed

if TYPE_CHECKING:
    from t2t.data.text_facts import Subwords, TextFacts

SIZES = {  # width; layers of each stack; the fewest target sub-words an epoch
    "small": (128, 4, 0),
    "medium": (256, 4, 3_000_000),
    "base": (512, 6, 30_000_000),
}
MERGES, MERGED_WORDS, MERGES_GROWTH = 8000, 700_000, 0.6  # of BPE; words; exponent of more words
DROPOUT = (4, 0.0), (10, 0.1), (20, 0.2), (math.inf, 0.3)  # at most so many epochs, rate
LEAST_TOKENS = 1024  # positions of a batch
LONGEST = 1024  # sub-words of a sentence
LONGEST_SPELLED = 4096  # characters or bytes of a sentence
LEAST_EXTRA = 50  # sub-words of an output beyond its source, the paper's
FEWEST_STEPS = 1000  # a size or a batch is taken only if the minutes pay for so many
STARTUP = 90  # seconds of the minutes for reading, compiling and validating
# An epoch of so many target sub-words is read so often; the exponent is for larger ones.
TUNED_EPOCH, TUNED_EPOCHS, STEPS_GROWTH = 400_000, 30, 0.75
SHORTEST = 300  # steps of the training of a small text
# The rate for so many steps of such a width, and exponents for others; it grows no more below the
# last number.
PEAK, PEAK_STEPS, PEAK_WIDTH = 0.005, 1000, 128
PEAK_DECAY, PEAK_NARROWING, PEAK_LEAST_STEPS = 0.2, 0.25, 700
PEAK_OF_ADAM = 0.6  # times that of Muon


@dataclasses.dataclass
class TextConfig(FittedConfig):
    """The recipe before its text is known."""

    minutes: float = 0.0  # of training on this machine; 0: as the text needs
    size: str = ""  # one of SIZES; empty: by the text, and the minutes

    def fit(self, choices: Choices) -> None:
        """Chooses the values; docs/own-data.md has the measurements that they are from."""
        from t2t.data.text_facts import measure_text  # which imports JAX

        config = choices.config
        text = measure_text(config.data, config.tokenizer)
        subwords, pieces, reason = find_vocabulary(choices, text)
        epoch = choose_lengths(choices, text, subwords)
        choose_vocabulary(choices, pieces, reason)
        seconds = 60 * self.minutes
        choose_model(choices, epoch, subwords.vocab_size, self.size, seconds)
        choose_steps(choices, epoch, subwords.vocab_size, seconds)
        choose_training(choices, epoch)
        choose_checkpoints(choices)


def find_vocabulary(choices: Choices, text: "TextFacts") -> tuple["Subwords", int, str]:
    """Finds as many merges as make pieces about as frequent as in the recipes that were tuned.

    Returns:
        The sub-words of the sample, the number of pieces before sentinels are added, and the reason
        for it.
    """
    from t2t.data.counted_vocabulary import COUNTED, count_special  # which imports SentencePiece

    data, tokenizer = choices.config.data, choices.config.tokenizer
    if tokenizer.path or not choices.is_open("tokenizer.vocab_size"):
        path = tokenizer.path or str(choices.vocabulary or "")
        subwords = text.count_subwords(data, dataclasses.replace(tokenizer, path=path))
        return subwords, subwords.vocab_size, ""
    others = 4 + text.tags + tokenizer.sentinels  # pieces that stand for no text
    if tokenizer.kind in COUNTED:
        pieces = text.types + count_special(tokenizer, text.tags)
        own = dataclasses.replace(tokenizer, vocab_size=pieces)
        reason = f"{text.types:,} {tokenizer.kind} in the text, {pieces - text.types:,} others"
        return text.count_subwords(data, own), pieces, reason
    others += 1 + text.characters + 256 * tokenizer.byte_fallback  # 1: the space
    merges = int(clip(MERGES * (text.words / MERGED_WORDS) ** MERGES_GROWTH, 200, 32_000))
    merges = int(clip(merges, 1, text.forms))
    for halved in (merges >> n for n in range(merges.bit_length())):
        pieces = halved + others
        own = dataclasses.replace(tokenizer, vocab_size=pieces + count_devices(choices.config) - 1)
        subwords = text.count_subwords(data, own)
        if subwords.vocab_size < own.vocab_size:  # more than the text has, which few kinds do
            continue
        reason = f"{halved:,} merges for {text.words:,} words, {others:,} characters, bytes, ..."
        return subwords, pieces, reason
    raise ConfigError("no vocabulary fits this text; choose tokenizer.vocab_size")


def count_devices(config: Config) -> int:
    """Returns over how many devices the mesh splits the vocabulary and the heads."""
    return max(config.mesh.tensor, 1)  # -1: as many as there are; training checks whether that fits


def choose_lengths(choices: Choices, text: "TextFacts", subwords: "Subwords") -> int:
    """Chooses the longest sentence and output; returns the target sub-words of an epoch.

    Rows are packed, so that one or two batch shapes have to compile.
    """
    data = choices.config.data
    longer = np.maximum(subwords.src, subwords.tgt)
    usual = int(np.quantile(longer, 0.99, weights=text.uses, method="inverted_cdf"))
    step = math.lcm(32, data.length_multiple)
    is_spelled = choices.config.tokenizer.kind in ("characters", "bytes")
    most = LONGEST_SPELLED if is_spelled else LONGEST
    longest = step * min(math.ceil(1.2 * usual / step), max(most // step, 1))
    reason = f"99% of the {text.pairs:,} pairs have at most {usual:,} sub-words"
    if longest < usual:
        reason = f"longer pairs are dropped, though {reason}"
    choices.choose("data.max_length", longest, reason)
    choices.choose("data.packed_length", max(data.max_length, 2 * step), "several pairs a row")
    kept = longer <= data.max_length
    if not kept.any():
        raise ConfigError(
            f"all of the text is longer than data.max_length={data.max_length} sub-words, often "
            f"{usual}; put one sentence on a line, or raise data.max_length"
        )
    extra = int((subwords.tgt - subwords.src)[kept].max())
    is_longer = extra > LEAST_EXTRA and not data.is_text_alone
    choices.choose(
        "decoding.max_extra_length",
        10 * math.ceil(1.2 * extra / 10) if is_longer else LEAST_EXTRA,
        f"targets have up to {extra:,} sub-words more than their sources" * is_longer,
    )
    if not (epoch := text.count_epoch(subwords, data)):
        raise ConfigError(
            f"no pair is left by data.max_length={data.max_length} and data.max_length_ratio="
            f"{data.max_length_ratio:g}; raise them"
        )
    return epoch


def choose_vocabulary(choices: Choices, pieces: int, reason: str) -> None:
    """Chooses the vocabulary's size: with the sentinels that `data.max_length` asks for."""
    from t2t.data.objectives import count_sentinels  # which imports JAX

    tokenizer, devices = choices.config.tokenizer, count_devices(choices.config)
    pieces += max(count_sentinels(choices.config.data) - tokenizer.sentinels, 0)
    # Symbols and characters are no more than the text has.
    is_counted = tokenizer.kind in ("symbols", "characters")
    pieces += -(pieces % devices) if is_counted else -pieces % devices
    choices.choose("tokenizer.vocab_size", pieces, reason)


def choose_model(choices: Choices, epoch: int, vocab_size: int, size: str, seconds: float) -> None:
    """Chooses size and batch: as the text needs, or as the seconds allow."""
    config, choose = choices.config, choices.choose
    wanted = LEAST_TOKENS * 2 ** round(clip(math.log2(epoch / 1e6) / 2, 0, 5))
    least, rows = count_least_tokens(config.data)
    if not choices.is_open("data.batch_tokens"):
        least = wanted = config.data.batch_tokens
    tokens = max(wanted, least)
    sizes = [size] if size else [name for name in SIZES if epoch >= SIZES[name][2]]
    size = sizes[-1]
    if seconds:  # the largest size, and for it the largest batch, that get enough steps
        batches = [tokens >> n for n in range(6) if tokens >> n >= max(least, LEAST_TOKENS)]
        tried = [(name, batch) for name in reversed(sizes) for batch in batches or [tokens]]

        def pays(pair: tuple[str, int]) -> bool:
            name, batch = pair
            step = estimate_step(config, size_model(choices, name), batch, vocab_size)
            return count_training_seconds(seconds) / step >= FEWEST_STEPS

        size, tokens = next(filter(pays, tried), tried[-1])
    reason = f"{epoch:,} target sub-words an epoch"
    if tokens != wanted:
        reason = rows if tokens == least else f"so that the minutes pay for {FEWEST_STEPS:,} steps"
    choose("data.batch_tokens", tokens, reason)
    model = size_model(choices, size)
    reason = f"size {size}{', as the minutes allow' * (size != sizes[-1])}"
    for field in ("d_model", "num_layers", "d_ff", "num_heads"):
        choose(f"model.{field}", getattr(model, field), reason)


def choose_steps(choices: Choices, epoch: int, vocab_size: int, seconds: float) -> None:
    """Chooses as many steps as the text needs, or as the seconds allow, but at most twice as many.

    The time is said as well, but an accelerator is measured for the seconds alone.
    """
    if not choices.is_open("training.steps"):
        return
    config = choices.config
    tokens = config.data.batch_tokens
    positions = TUNED_EPOCHS * TUNED_EPOCH * (epoch / TUNED_EPOCH) ** STEPS_GROWTH
    needed = max(positions / tokens, SHORTEST)
    if not seconds and may_have_accelerator():
        choices.choose("training.steps", int(round_to(needed)), "as many as the text needs")
        return
    step = estimate_step(config, config.model, tokens, vocab_size)
    most = count_training_seconds(seconds) / step if seconds else needed
    steps = max(int(round_to(min(most, 2 * needed))), 10)
    enough = ", twice as many as the text needs" if most > 2 * needed else ""
    choices.choose("training.steps", steps, f"{describe_time(steps * step + STARTUP)} here{enough}")


def count_training_seconds(seconds: float) -> float:
    """Returns what is left of the seconds for the steps."""
    return max(seconds - STARTUP, seconds / 4)


def count_least_tokens(data: DataConfig) -> tuple[int, str]:
    """Returns the positions of the fewest rows that a batch may have, and how they come about."""
    field = "packed_length" if data.packed_length else "max_length"
    length = getattr(data, field)
    return data.rows_multiple * length, f"{data.rows_multiple} rows of data.{field}={length}"


def size_model(choices: Choices, size: str) -> ModelConfig:
    """Returns the model with the values of a size in the fields that are open."""
    config, (width, layers, _) = choices.config, SIZES[size]
    if not choices.is_open("model.d_model"):
        width = config.model.d_model
    # Heads of about 64, which both the key/value heads and the devices can share evenly.
    unit = math.lcm(config.model.num_kv_heads or 1, count_devices(config))
    heads = [n for n in range(unit, max(4, width // 64, unit) + 1, unit) if width % (2 * n) == 0]
    values = {
        "d_model": width,
        "num_layers": layers,
        "d_ff": 4 * width,
        "num_heads": heads[-1] if heads else 1,
    }
    own: dict[str, Any] = {
        field: value for field, value in values.items() if choices.is_open(f"model.{field}")
    }
    return dataclasses.replace(config.model, **own)


def estimate_step(config: Config, model: ModelConfig, tokens: int, vocab_size: int) -> float:
    """Returns the seconds of a step of full rows."""
    from t2t.ops.flops import train_flops  # which imports JAX

    length = config.data.packed_length or config.data.max_length
    src_length = 1 if config.data.objective == "lm" else length  # whose source is empty
    flops = train_flops(model, vocab_size, np.array([src_length]), np.array([length]))
    speed, extra = measure_speed()
    return flops * tokens / length * config.training.num_passes / speed + extra


def describe_time(seconds: float) -> str:
    """Formats a time in minutes, from two hours on in hours, and from two days on in days."""
    units = [("minutes", 60), ("hours", 3600), ("days", 86_400)]
    unit, length = next((each for each in units[:0:-1] if seconds >= 2 * each[1]), units[0])
    return f"about {show_number(float(round_to(seconds / length)))} {unit}"


def choose_training(choices: Choices, epoch: int) -> None:
    """Chooses dropout by the number of epochs, and the rate by width and steps."""
    training, choose = choices.config.training, choices.choose
    steps, width = training.steps, choices.config.model.d_model
    epochs = steps * choices.config.data.batch_tokens / epoch
    choose(
        "model.dropout",
        next(rate for most, rate in DROPOUT if epochs <= most),
        f"{show_number(epochs)} epochs",
    )
    peak = PEAK * (PEAK_WIDTH / width) ** PEAK_NARROWING
    peak *= (PEAK_STEPS / max(steps, PEAK_LEAST_STEPS)) ** PEAK_DECAY
    if training.optimizer != "muon":
        peak *= PEAK_OF_ADAM
    is_noam = training.schedule == "noam"
    reason = "a factor" if is_noam else f"width {width}, {steps:,} steps"
    choose("training.learning_rate", 1.0 if is_noam else round_to(peak), reason)
    choose("training.warmup_steps", max(steps // 10, 1), "a tenth of the steps")
    choose("training.log_every", max(steps // 50, 1))


def choose_checkpoints(choices: Choices) -> None:
    """Chooses intervals, and the score that says which checkpoint is best.

    The loss is lowest long before translations are best, so it is their chrF, where there are any,
    and of symbols the share of exact matches.
    """
    config, choose = choices.config, choices.choose
    search = config.decoding.strategy, config.decoding.mbr
    translates = not config.data.is_text_alone
    best = "exact_match" if config.tokenizer.kind == "symbols" else "chrf"
    intervals = {
        "checkpoints.every": config.checkpoints.every,
        "training.translate_every": config.training.translate_every,
    }
    given = {name: value for name, value in intervals.items() if not choices.is_open(name)}
    is_scored = (
        translates and search == ("beam", "none") and given.get("training.translate_every") != 0
    )
    every = next(filter(None, given.values()), 0)
    choose("training.validate_every", every or int(clip(config.training.steps // 10, 1, 1000)))
    every = every or 2 * config.training.validate_every
    choose("training.translate_every", every if is_scored else 0)
    choose("checkpoints.every", every)
    choose("checkpoints.best_metric", best if is_scored else "loss")


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
    minutes, size = found.get("minutes", 0.0), found.get("size", "")
    kept = {"minutes": f"{minutes:g}" if minutes else "", "size": size}
    config = TextConfig(
        model=ModelConfig(position="rotary", norm_position="pre"),
        data=DataConfig(source="text"),
        training=TrainingConfig(optimizer="muon", schedule="cosine"),
        wishes=",".join(f"{name}={value}" for name, value in kept.items() if value),
        minutes=minutes,
        size=size,
        machine_bound="minutes" if minutes else "",
    )
    model, data, training = config.model, config.data, config.training
    # Fields that are open: `fit` chooses their values.
    del model.num_layers, model.d_model, model.d_ff, model.num_heads, model.dropout
    del data.max_length, data.packed_length, data.batch_tokens, config.tokenizer.vocab_size
    del training.learning_rate, training.warmup_steps, training.log_every
    del training.validate_every, training.translate_every
    del config.checkpoints.every, config.checkpoints.best_metric
    del config.decoding.max_extra_length
    if "steps" in found:
        training.steps = found["steps"]
    else:
        del training.steps
    return config
