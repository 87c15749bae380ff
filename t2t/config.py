"""The typed configuration of a run: what can be chosen, and which choices fit together.

A recipe in `configs/` returns a `Config`; the command line overrides single fields
(`--config.model.num_heads=1`); `validate` turns a bad value into one sentence that names the
field, the value, the rule and the remedy, before any device work. Nothing here imports JAX.
"""

import dataclasses
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the field, the rule and the remedy."""


@dataclasses.dataclass
class ModelConfig:
    """The architecture; the defaults are the paper's base model (table 3)."""

    num_layers: int = 6  # N, of the encoder and of the decoder
    encoder_layers: int | None = None  # unset: num_layers
    decoder_layers: int | None = None  # unset: num_layers
    d_model: int = 512  # width of embeddings and of every sub-layer's output
    d_ff: int = 2048  # inner width of the feed-forward
    num_heads: int = 8  # h
    num_kv_heads: int | None = None  # groups that share a key and a value; unset: num_heads
    d_k: int | None = None  # width of a query and a key; unset: d_model / num_heads
    d_v: int | None = None  # width of a value; unset: d_model / num_heads
    position: str = "sinusoidal"  # sinusoidal | learned | rotary | relative | alibi | none
    max_positions: int = 1024  # rows of the learned position table; other kinds have no limit
    norm: str = "layer"  # layer | rms | none
    norm_position: str = "post"  # post (the paper) | pre
    residual: bool = True  # False: x -> f(x) instead of x + f(x)
    feed_forward: str = "relu"  # relu | gelu | swiglu | geglu | none
    tie_embeddings: str = "all"  # all: source, target, output | decoder: target, output | none
    dropout: float = 0.1  # on every sub-layer's output and on the sums of embedding and position
    attention_dropout: float = 0.0  # on the attention weights
    feed_forward_dropout: float = 0.0  # on the inner activations of the feed-forward
    dtype: str = "auto"  # compute: auto (bfloat16 on GPU and TPU) | float32 | bfloat16

    @property
    def depth(self) -> tuple[int, int]:
        """(encoder layers, decoder layers)."""
        return (
            self.num_layers if self.encoder_layers is None else self.encoder_layers,
            self.num_layers if self.decoder_layers is None else self.decoder_layers,
        )

    @property
    def key_width(self) -> int:
        """d_k."""
        return self.d_model // self.num_heads if self.d_k is None else self.d_k

    @property
    def value_width(self) -> int:
        """d_v."""
        return self.d_model // self.num_heads if self.d_v is None else self.d_v

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


@dataclasses.dataclass
class DataConfig:
    """Which text is read, and how it becomes batches."""

    source: str = "phrasebook"  # phrasebook | multi30k | tfds | text
    src_language: str = "en"  # language code, the file suffix in multi30k and the key in tfds
    tgt_language: str = "de"
    directory: str = ""  # multi30k: its folder (empty: download); tfds: data_dir (empty: default)
    tfds_name: str = "wmt14_translate/de-en"  # any TFDS translation dataset
    train_src: tuple[str, ...] = ()  # text: files, plain or .gz, one sentence a line
    train_tgt: tuple[str, ...] = ()
    train_weights: tuple[float, ...] = ()  # text: uses of a pair per epoch, per file; empty: 1 each
    validation_src: str = ""  # text
    validation_tgt: str = ""
    test_src: str = ""  # text
    test_tgt: str = ""
    cache_directory: str = "~/.cache/t2t"  # tokenised corpora, shared between runs
    max_length: int = 256  # longer pairs (sub-words with end mark, either side) leave training
    max_length_ratio: float = 0.0  # pairs whose lengths differ by more leave training; 0: no limit
    batch_tokens: int = 25_000  # padded source and padded target positions per update, each
    num_shapes: int = 12  # at most so many batch shapes, hence compilations
    length_multiple: int = 1  # source and target lengths of a shape are multiples of this
    rows_multiple: int = 8  # rows of a shape are a multiple of this: as many devices share a batch


@dataclasses.dataclass
class TokenizerConfig:
    """SentencePiece, trained on the training split only."""

    kind: str = "bpe"  # bpe | unigram
    vocab_size: int = 37_000  # per vocabulary, special pieces included
    shared: bool = True  # one vocabulary for both languages
    character_coverage: float = 1.0  # share of characters kept as pieces
    byte_fallback: bool = True  # spell unknown characters as UTF-8 bytes, so none is lost


@dataclasses.dataclass
class TrainingConfig:
    """Section 5 of the paper: optimiser, schedule, regularisation, and how often to look."""

    steps: int = 100_000  # batches until the end
    schedule: str = "noam"  # noam | inverse_sqrt | cosine | constant, all with warm-up
    warmup_steps: int = 4000
    learning_rate: float = 1.0  # noam: factor on the paper's formula; others: the peak rate
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_eps: float = 1e-9
    label_smoothing: float = 0.1
    clip_norm: float = 0.0  # limit of the gradient's global norm; 0: none
    accumulation_steps: int = 1  # a batch is computed in so many parts
    max_nonfinite_steps: int = 10  # so many skipped steps in a row end the run
    log_every: int = 100  # steps; also TensorBoard
    validate_every: int = 1000  # steps between validation losses
    bleu_every: int = 0  # steps between validation BLEU by beam search; 0: never


@dataclasses.dataclass
class CheckpointConfig:
    """Which checkpoints are written, and which are kept."""

    every: int = 1000  # steps
    keep_last: int = 5
    keep_every: int = 0  # besides, keep each whose step is a multiple; 0: none
    keep_best: int = 1  # besides, keep so many by `best_metric`
    best_metric: str = "loss"  # loss | bleu, on the validation split


@dataclasses.dataclass
class MeshConfig:
    """Sizes of the device mesh; one may be -1 and takes what is left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass
class DecodingConfig:
    """Section 6.1 of the paper."""

    beam_size: int = 4
    alpha: float = 0.6  # length penalty ((5 + length) / 6) ** alpha
    max_extra_length: int = 50  # output length is at most source length + this
    batch_size: int = 64  # sentences searched together


@dataclasses.dataclass
class Config:
    """Everything that makes a run."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    checkpoints: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)
    seed: int = 0  # initial parameters, dropout and data order


_CHOICES = {
    "model.position": ("sinusoidal", "learned", "rotary", "relative", "alibi", "none"),
    "model.norm": ("layer", "rms", "none"),
    "model.norm_position": ("post", "pre"),
    "model.feed_forward": ("relu", "gelu", "swiglu", "geglu", "none"),
    "model.tie_embeddings": ("all", "decoder", "none"),
    "model.dtype": ("auto", "float32", "bfloat16"),
    "data.source": ("phrasebook", "multi30k", "tfds", "text"),
    "tokenizer.kind": ("bpe", "unigram"),
    "training.schedule": ("noam", "inverse_sqrt", "cosine", "constant"),
    "checkpoints.best_metric": ("loss", "bleu"),
}
_POSITIVE = """
    model.d_model model.d_ff model.num_heads model.num_kv_heads model.d_k model.d_v
    model.num_layers model.encoder_layers model.decoder_layers model.max_positions
    data.max_length data.batch_tokens data.num_shapes data.length_multiple data.rows_multiple
    tokenizer.vocab_size training.steps training.warmup_steps training.learning_rate
    training.adam_eps tokenizer.character_coverage training.accumulation_steps
    training.max_nonfinite_steps training.log_every training.validate_every checkpoints.every
    checkpoints.keep_last decoding.beam_size decoding.max_extra_length decoding.batch_size
""".split()
_NOT_NEGATIVE = """
    data.max_length_ratio training.clip_norm training.bleu_every checkpoints.keep_every
    checkpoints.keep_best decoding.alpha seed
""".split()
_PROBABILITIES = """
    model.dropout model.attention_dropout model.feed_forward_dropout training.label_smoothing
    training.adam_b1 training.adam_b2
""".split()


def validate(config: Config) -> Config:
    """The same config, or `ConfigError` with every rule that it breaks, one a line."""
    values = flatten(config)
    problems = [
        f"{name}={values[name]!r} is unknown; use one of {', '.join(choices)}"
        for name, choices in _CHOICES.items()
        if values[name] not in choices
    ]
    problems += [
        f"{name}={values[name]!r} must be positive"
        for name in _POSITIVE
        if values[name] is not None and not values[name] > 0  # NaN is not either
    ]
    problems += [
        f"{name}={values[name]!r} must not be negative"
        for name in _NOT_NEGATIVE
        if not values[name] >= 0
    ]
    problems += [
        f"{name}={values[name]!r} must lie in [0, 1)"
        for name in _PROBABILITIES
        if not 0 <= values[name] < 1
    ]
    if problems:  # the rules below divide by these values
        raise ConfigError("\n".join(problems))
    problems += _model_problems(config.model) + _data_problems(config.data)
    problems += _combination_problems(config)
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _model_problems(model: ModelConfig) -> list[str]:
    problems = []
    heads, d_model = model.num_heads, model.d_model
    if d_model % heads and (model.d_k is None or model.d_v is None):
        fits = ", ".join(str(h) for h in range(1, heads * 2) if d_model % h == 0)
        problems.append(
            f"model.num_heads={heads} does not divide model.d_model={d_model}; "
            f"use one of {fits}, or set model.d_k and model.d_v"
        )
    if heads % model.kv_heads:
        problems.append(
            f"model.num_kv_heads={model.kv_heads} does not divide model.num_heads={heads}; "
            f"use one of {', '.join(str(g) for g in range(1, heads + 1) if heads % g == 0)}"
        )
    if model.position == "sinusoidal" and d_model % 2:
        problems.append(
            f"model.d_model={d_model} is odd, but sinusoidal positions pair a sine with a cosine; "
            "use an even width or another model.position"
        )
    if model.position == "rotary" and model.key_width % 2:
        problems.append(
            f"model.d_k={model.key_width} is odd, but rotary positions turn pairs of dimensions; "
            "use an even model.d_k or another model.position"
        )
    return problems


def _data_problems(data: DataConfig) -> list[str]:
    problems = []
    if data.source == "text":
        if not data.train_src or len(data.train_src) != len(data.train_tgt):
            problems.append(
                f"data.train_src has {len(data.train_src)} files and data.train_tgt "
                f"{len(data.train_tgt)}; data.source='text' needs as many of each, at least one"
            )
        if data.train_weights and len(data.train_weights) != len(data.train_src):
            problems.append(
                f"data.train_weights has {len(data.train_weights)} values for "
                f"{len(data.train_src)} files; give one for each, or none"
            )
        if any(weight <= 0 for weight in data.train_weights):
            problems.append(
                f"data.train_weights={data.train_weights} must all be positive; "
                "leave a corpus out to give it no weight"
            )
        for split in ("validation", "test"):
            src, tgt = getattr(data, f"{split}_src"), getattr(data, f"{split}_tgt")
            if bool(src) != bool(tgt):
                problems.append(
                    f"data.{split}_src={src!r} and data.{split}_tgt={tgt!r} go together; give both"
                )
    if data.max_length % data.length_multiple:
        problems.append(
            f"data.max_length={data.max_length} is no multiple of "
            f"data.length_multiple={data.length_multiple}; raise it to "
            f"{-(-data.max_length // data.length_multiple) * data.length_multiple}"
        )
    if data.batch_tokens < data.max_length * data.rows_multiple:
        problems.append(
            f"data.batch_tokens={data.batch_tokens} cannot hold data.rows_multiple="
            f"{data.rows_multiple} rows of data.max_length={data.max_length}; raise it to "
            f"{data.max_length * data.rows_multiple}, or lower one of the others"
        )
    return problems


def _combination_problems(config: Config) -> list[str]:
    problems = []
    model, data, training = config.model, config.data, config.training
    if config.tokenizer.character_coverage > 1:
        problems.append(
            f"tokenizer.character_coverage={config.tokenizer.character_coverage} is a share; "
            "use at most 1"
        )
    if model.tie_embeddings == "all" and not config.tokenizer.shared:
        problems.append(
            "model.tie_embeddings='all' needs one vocabulary, but tokenizer.shared=False; "
            "set tokenizer.shared=True or model.tie_embeddings='decoder'"
        )
    if model.position == "learned" and model.max_positions < data.max_length:
        problems.append(
            f"model.max_positions={model.max_positions} is less than data.max_length="
            f"{data.max_length}; raise it to {data.max_length} or more"
        )
    if data.rows_multiple % training.accumulation_steps:
        problems.append(
            f"training.accumulation_steps={training.accumulation_steps} does not divide "
            f"data.rows_multiple={data.rows_multiple}; raise data.rows_multiple to "
            f"{data.rows_multiple * training.accumulation_steps}"
        )
    if training.bleu_every % training.validate_every:
        problems.append(
            f"training.bleu_every={training.bleu_every} must be a multiple of "
            f"training.validate_every={training.validate_every}, or 0"
        )
    best = config.checkpoints.best_metric
    measured = training.bleu_every if best == "bleu" else training.validate_every
    if config.checkpoints.keep_best and (not measured or config.checkpoints.every % measured):
        field = "training.bleu_every" if best == "bleu" else "training.validate_every"
        problems.append(
            f"checkpoints.every={config.checkpoints.every} must be a multiple of "
            f"{field}={measured}, so that checkpoints.keep_best knows each checkpoint's {best}; "
            f"change one of them, or set checkpoints.keep_best=0"
        )
    sizes = dataclasses.astuple(config.mesh)
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        problems.append(f"mesh={sizes} must hold positive sizes, and -1 at most once")
    return problems


def flatten(config: Config) -> dict[str, Any]:
    """{"model.d_model": 512, ...}."""
    flat: dict[str, Any] = {}
    for section, fields in dataclasses.asdict(config).items():
        if isinstance(fields, dict):
            flat |= {f"{section}.{name}": value for name, value in fields.items()}
        else:
            flat[section] = fields
    return flat
