"""The typed configuration of a run: what can be chosen, and which choices fit together.

A recipe in `configs/` returns a `Config`; the command line overrides single fields
(`--config.model.num_heads=1`). What fits together is in `rules.py`. Nothing here imports
JAX.
"""

import dataclasses
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the field, the rule and the remedy."""


@dataclasses.dataclass
class ModelConfig:
    """The architecture; the defaults are the paper's base model (table 3)."""

    kind: str = "transformer"  # transformer | rnn: recurrent with additive attention
    num_layers: int = 6  # N, of the encoder and of the decoder
    encoder_layers: int | None = None  # unset: num_layers
    decoder_layers: int | None = None  # unset: num_layers
    d_model: int = 512  # width of embeddings and of every sub-layer's output
    d_ff: int = 2048  # inner width of the feed-forward
    num_heads: int = 8  # h
    num_kv_heads: int | None = None  # groups that share a key and a value; unset: num_heads
    d_k: int | None = None  # width of a query and a key; unset: d_model / num_heads
    d_v: int | None = None  # width of a value; unset: d_model / num_heads
    attention: str = "dot_product"  # equation 1, or a variant that a plugin registers
    attention_scale: bool = True  # False: Q K^T is not divided by sqrt(d_k)
    position: str = "sinusoidal"  # sinusoidal | learned | rotary | relative | alibi | none
    max_positions: int = 1024  # rows of the learned position table; other kinds have no limit
    norm: str = "layer"  # layer | rms | none
    norm_position: str = "post"  # post (the paper) | pre
    residual: bool = True  # False: x -> f(x) instead of x + f(x)
    feed_forward: str = "relu"  # relu | gelu | swiglu | geglu | none
    rnn_cell: str = "gru"  # gru | lstm, of the kind rnn alone
    tie_embeddings: str = "all"  # all: source, target, output | decoder: target, output | none
    dropout: float = 0.1  # on every sub-layer's output and on the sums of embedding and position
    attention_dropout: float = 0.0  # on the attention weights
    feed_forward_dropout: float = 0.0  # on the inner activations of the feed-forward
    # compute: auto (bfloat16 on GPU and TPU) | float32 | bfloat16 | mixed (float32, but products
    # with weights have bfloat16 operands: twice as fast on CPUs that multiply them)
    dtype: str = "auto"
    kernels: str = "auto"  # auto: the fast twins in t2t/ops | textbook: the formulas alone

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
    def position_limit(self) -> int | None:
        """The longest sentence that the model can take, EOS included; None: any."""
        return self.max_positions if self.position == "learned" else None

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


@dataclasses.dataclass
class DataConfig:
    """Which text is read, and how it becomes batches."""

    source: str = "phrasebook"  # phrasebook | multi30k | tfds | text, or a registered one
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
    max_length: int = 256  # longer pairs (sub-words with EOS, either side) leave training
    max_length_ratio: float = 0.0  # pairs whose lengths differ by more leave training; 0: no limit
    batch_tokens: int = 25_000  # padded source and padded target positions per update, each
    packed_length: int = 0  # rows of so many positions, with several pairs in each; 0: one a row
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
    # noam | inverse_sqrt | cosine | constant, all with warm-up; or a registered one
    schedule: str = "noam"
    warmup_steps: int = 4000
    learning_rate: float = 1.0  # noam: factor on the paper's formula; others: the peak rate
    optimizer: str = "adam"  # adam, or a registered one
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
    batch_size: int = 64  # sentences searched together; one device searches two batches at a time


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
    plugins: tuple[str, ...] = ()  # modules that register variants; see variants.py


def flatten(config: Config) -> dict[str, Any]:
    """{"model.d_model": 512, ...}."""
    flat: dict[str, Any] = {}
    for section, fields in dataclasses.asdict(config).items():
        if isinstance(fields, dict):
            flat |= {f"{section}.{name}": value for name, value in fields.items()}
        else:
            flat[section] = fields
    return flat
