"""The typed configuration of a run.

A recipe in `configs/` returns a `Config`; the command line overrides single fields
(`--config.model.num_heads=1`). `rules.py` says which combinations are valid. Nothing here imports
JAX.
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from t2t.config.field_types import (
    LOCAL,
    REGISTERED,
    Coverage,
    Depth,
    Exponent,
    FieldType,
    Filters,
    InputPath,
    InputPaths,
    Int32,
    Language,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveInt32,
    Probability,
    Sentinels,
    Share,
    Size,
    SpanLength,
    TopShare,
    Weights,
    WrittenFolder,
)


class ConfigError(ValueError):
    """An invalid configuration; the message names the field, the rule and the remedy."""


class Fields:
    """Base of dataclasses that have no other attributes, so a misspelt one is an error at once.

    A section of the config is a dataclass of its own class, not a dictionary: that would set the
    fields which it does not name to their defaults.
    """

    if not TYPE_CHECKING:  # type checkers know the fields, and would take any name from here on

        def __new__(cls, *_: Any, **given: Any) -> Self:
            """Checks the names of keywords before `__init__`, which would raise a TypeError."""
            for name, value in given.items():
                if name not in getattr(cls, "__dataclass_fields__", {}):
                    raise _make_field_error(cls, name, f"={show(value)}")
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            """Sets a field; raises `ConfigError` for a section that is none of its class."""
            field = getattr(self, "__dataclass_fields__", {}).get(name)
            is_section = field is not None and dataclasses.is_dataclass(field.type)
            if field is None or (is_section and type(value) is not field.type):
                raise _make_field_error(type(self), name, f"={show(value)}")
            super().__setattr__(name, value)


class PluginOptions(Fields):
    """Base of the options that a plugin registers: a dataclass whose fields have defaults."""

    def list_problems(self) -> Iterable[str]:
        """Returns a line for each rule that the values break, such as "mix=2 must be below 1"."""
        return ()


def option(default: Any, text: str) -> Any:
    """Returns a field of `PluginOptions`, with a text that explains it in messages."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class Section(Fields):
    """A section that variants get alone, with the options that `Config.plugin` has.

    `plugin` is no field, since the options stand in the config once. `files.complete_options` sets
    it, and a copy by `dataclasses.replace` keeps it.
    """

    if TYPE_CHECKING:  # type checkers do not know that an `InitVar` may be an attribute

        @property
        def plugin(self) -> dict[str, Any]:
            """The options of plugins by their names, each a `PluginOptions`."""

    else:
        plugin: dataclasses.InitVar[Any] = dataclasses.field(default=None, kw_only=True)

        def __post_init__(self, plugin: Any) -> None:
            """Keeps the options; a section that no config has completed has none."""
            self.plugin = plugin or {}


POSITIONS = (
    "sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "learned", "rotary", "relative",
    "relative_by_layer", "alibi", "none",
)  # fmt: skip


@dataclasses.dataclass
class ModelConfig(Section):
    """The architecture; the defaults are the paper's base model (table 3)."""

    # transformer (encoder and decoder) | decoder_only (source and target in one sequence) |
    # encoder_only (predicts masked tokens) | rnn (recurrent, with additive attention), or a
    # registered family
    kind: Annotated[
        str, Literal["transformer", "decoder_only", "encoder_only", "rnn"], REGISTERED
    ] = "transformer"
    # kind="decoder_only": True: the tokens of the source see each other (prefix LM); False: each
    # sees only those before it, and relative positions have all their buckets for the past
    prefix: bool = True
    num_layers: Depth = 6  # N: layers of the encoder, and layers of the decoder
    encoder_layers: Depth | None = None  # layers of the encoder; None: num_layers
    decoder_layers: Depth | None = None  # layers of the decoder; None: num_layers
    d_model: Size = 512  # width of the embeddings and of every sub-layer's output
    d_ff: Size = 2048  # width of the feed-forward's hidden layer
    num_heads: Size = 8  # h: attention heads
    # key/value heads, each shared by num_heads / num_kv_heads query heads; None: num_heads
    num_kv_heads: Size | None = None
    d_k: Size | None = None  # width of a query and of a key; None: d_model / num_heads
    d_v: Size | None = None  # width of a value; None: d_model / num_heads
    # dot_product (equation 1), or a registered variant
    attention: Annotated[str, Literal["dot_product"], REGISTERED] = "dot_product"
    attention_scale: bool = True  # divide Q K^T by sqrt(d_k)
    attention_bias: bool = False  # add biases to queries, keys, values and the output of attention
    # kind of positions: sinusoidal (the paper's) | sinusoidal_halves (all sines, then all cosines:
    # Marian's) | sinusoidal_fairseq (halves, at other rates, counted from 2: NLLB's) | learned |
    # rotary (Su et al. 2021) | relative (Raffel et al. 2020) | relative_by_layer (with biases for
    # each layer: umT5's) | alibi (Press et al. 2022) | none, or a registered kind
    position: Annotated[str, Literal[POSITIONS], REGISTERED] = "sinusoidal"
    # rows of the table of learned positions: the longest sentence in sub-words, EOS included; only
    # with position="learned", since the other kinds have no limit, or a registered one
    max_positions: Size = 1024
    # layer (layer normalisation) | rms (root mean square) | none, or a registered norm
    norm: Annotated[str, Literal["layer", "rms", "none"], REGISTERED] = "layer"
    norm_epsilon: PositiveFloat = 1e-6  # added to the variance, or to the mean square, in a norm
    # post: norm(x + f(x)), as in the paper | pre: x + f(norm(x))
    norm_position: Annotated[str, Literal["post", "pre"]] = "post"
    residual: bool = True  # True: x + f(x) around every sub-layer f; False: f(x)
    # relu | gelu (its approximation by tanh) | gelu_exact (BART's) | silu | swiglu | geglu | moe (a
    # mixture of experts, each relu without biases: Shazeer et al. 2017) | none, or a registered
    # variant
    feed_forward: Annotated[
        str,
        Literal["relu", "gelu", "gelu_exact", "silu", "swiglu", "geglu", "moe", "none"],
        REGISTERED,
    ] = "relu"
    feed_forward_bias: bool = True  # the biases b1 and b2 of the feed-forward (equation 2)
    num_experts: Size = 8  # feed_forward="moe": experts, each of width d_ff
    # feed_forward="moe": experts that a router chooses for each token
    experts_per_token: Size = 2
    # feed_forward="moe": weight of the load-balancing loss of each layer (Fedus et al. 2022), which
    # is 1 if all experts are used alike. It is part of train/loss. With accumulation_steps it is
    # that of each part of the batch
    load_balance: NonNegativeFloat = 0.01
    rnn_cell: Annotated[str, Literal["gru", "lstm"]] = "gru"  # only with kind="rnn"
    # all: one table for source, target and output (logits) | decoder: one for target and output |
    # input: one for source and target, another for output | none: three tables
    tie_embeddings: Annotated[str, Literal["all", "decoder", "input", "none"]] = "all"
    embedding_scale: bool = True  # multiply embeddings by sqrt(d_model) (section 3.4)
    embedding_norm: bool = False  # normalise the sums of embeddings and positions (BART's)
    # the first input of the decoder: bos | eos (NLLB's) | unk (MADLAD-400's)
    decoder_start: Annotated[str, Literal["bos", "eos", "unk"]] = "bos"
    output_bias: bool = False  # add a trained bias to the logit of each sub-word
    # dropout rate of every sub-layer's output and of the sums of embeddings and positions
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0  # dropout rate of the attention weights
    # dropout rate of the feed-forward's hidden layer
    feed_forward_dropout: Probability = 0.0
    # dtype of activations and products: auto (bfloat16 on GPU and TPU, float32 on CPU; a new run on
    # a CPU with bfloat16 instructions gets mixed) | float32 | bfloat16 | mixed (float32, but
    # products with weights have bfloat16 operands); parameters are always float32
    dtype: Annotated[str, Literal["auto", "float32", "bfloat16", "mixed"]] = "auto"
    # auto: the fast implementations in t2t/ops | textbook: the plain formulas in t2t/model
    kernels: Annotated[str, Literal["auto", "textbook"]] = "auto"
    # run a stack's layers in a loop, so that the time to compile does not grow with their number;
    # checkpoints are the same
    scan_layers: bool = False

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
        """The longest sentence that the model accepts, EOS included; None: no limit.

        In a decoder-only model, source and target share the positions, and get half of them each.
        """
        if self.position != "learned":
            return None
        return self.max_positions // 2 if self.kind == "decoder_only" else self.max_positions

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


@dataclasses.dataclass
class DataConfig(Section):
    """The corpus, the pairs of it that are used, and the size of batches."""

    # phrasebook (embedded, synthetic) | multi30k | tfds | hf (Hugging Face datasets) | text (your
    # own files), or a registered source; several are joined by "+", such as "multi30k+text": all
    # are trained on; another split is that of text if its files are given, else that of the first
    # source that has it
    source: Annotated[str, Literal["phrasebook", "multi30k", "tfds", "hf", "text"], REGISTERED] = (
        "phrasebook"
    )
    # language code, such as en, deu or zho_Hans: the file suffix in multi30k, the feature in tfds,
    # the column in hf. Empty: en with the phrasebook, multi30k and tfds, unknown with other sources
    src_language: Language = ""
    # likewise, of the target: empty is de, or unknown. Measures choose their tokenisers by it
    tgt_language: Language = ""
    # source="multi30k": folder of its files (empty: download); source="tfds": data_dir (empty: the
    # default of TFDS)
    directory: InputPath = ""
    tfds_name: str = "wmt14_translate/de-en"  # source="tfds": a TFDS translation dataset
    # source="tfds": the dataset of all splits but train, such as "wmt14_translate/de-en" for
    # training on "wmt17_translate/de-en"; empty: tfds_name
    tfds_held_out_name: str = ""
    # source="hf": a data set on the Hub, as "OWNER/NAME", "OWNER/NAME:CONFIGURATION" or with
    # "@REVISION" at its end, or a folder that save_to_disk wrote; empty: the files of hf_files
    hf_name: Annotated[str, LOCAL] = ""
    # source="hf": files that hold both sides, each as "SPLIT=FILE": .parquet or .arrow, or .tsv,
    # .csv, .jsonl or .json, also compressed as .gz, .zst, .bz2 or .xz; a split may have several
    hf_files: InputPaths = ()
    # source="hf": read the Hub's files while they are copied; False: through the cache of
    # `datasets` on this machine
    hf_streaming: bool = True
    # source="hf": column of source sentences; "translation.en": key "en" in the column
    # "translation"; "translation.0": item of a list; a number: column of a file without a line of
    # names, from 0; empty: the language, in the column "translation" if there is one
    src_column: str = ""
    tgt_column: str = ""  # source="hf": column of their translations
    # source="text": files of source sentences for training, one sentence per line, plain or packed
    # by gzip, bzip2, xz or zstd
    train_src: InputPaths = ()
    train_tgt: InputPaths = ()  # source="text": their translations, line by line
    # for each training corpus (each source is one, source="text" one for each file of train_src),
    # how often an epoch uses its pairs; 0.5: each epoch uses another half of them (a random half
    # with subword_sampling); it must come to one pair or more; empty: once
    train_weights: Weights = ()
    # stages of training, each with weights of its own: "STEP: WEIGHTS" until that step, and WEIGHTS
    # in the last one, as in train_weights; 0 leaves a corpus out. "2000: 1,1" and "1,0": the second
    # corpus up to step 2000. Each stage begins an epoch. Empty: one stage, of train_weights
    stages: tuple[str, ...] = ()
    # with T above 0, corpora have shares of an epoch that grow as size ** (1 / T), and the largest
    # is used once: 1: as they are, 5: small ones far more often (Arivazhagan et al. 2019); sizes
    # are those before max_length and max_length_ratio
    temperature: NonNegativeFloat = 0.0
    validation_src: InputPath = ""  # source="text": source sentences of the validation split
    validation_tgt: InputPath = ""  # source="text": their translations
    test_src: InputPath = ""  # source="text": source sentences of the test split
    test_tgt: InputPath = ""  # source="text": their translations
    # filters of training pairs by their text, in order: duplicates (equal to an earlier pair) |
    # identical (both sides equal, apart from case) | script (most letters of a side are of another
    # script than usual) | overlap (a side is a sentence of another split of the same direction).
    # Text is compared as the vocabulary spells it: single spaces, lower case with
    # tokenizer.lowercase
    filters: Filters = ()
    # several directions in one model, such as en-de and en-fr; each source sentence gets the tag of
    # its target language, "<2de>". Each source is opened once for each, with these languages; in
    # names of files, data sets and columns {src}, {tgt} and {pair} (de-en: in alphabetical order)
    # stand for them. Empty: src_language to tgt_language, without tags
    directions: tuple[str, ...] = ()
    # what the model learns to predict: translation (the target of a pair) | lm (each sub-word of a
    # text from those before it) | span_corruption (spans that are left out of a text: T5, Raffel et
    # al. 2020) | masked_lm (masked sub-words of a text: BERT, Devlin et al. 2019). The last three
    # read text alone: the files of train_tgt, validation_tgt and test_tgt, or the target sides of
    # other sources; so does a registered objective
    objective: Annotated[
        str, Literal["translation", "lm", "span_corruption", "masked_lm"], REGISTERED
    ] = "translation"
    # objective="span_corruption", "masked_lm": share of a text's sub-words that are left out or
    # masked; at least one
    noise_density: Share = 0.15
    # objective="span_corruption": mean number of sub-words of a span; a text has
    # as many spans as this number and noise_density say, rounded
    mean_span_length: SpanLength = 3.0
    # tags of a direction: target (the source begins with that of the target language) | both (each
    # side begins with that of its own language, as in NLLB)
    direction_tags: Annotated[str, Literal["target", "both"]] = "target"
    # folder of tokenised corpora, shared between runs
    cache_directory: WrittenFolder = "~/.cache/t2t"
    # training drops pairs with more sub-words than this on either side, EOS and a tag included
    max_length: PositiveInt = 256
    # training drops pairs whose longer side has more than this times the sub-words of the shorter;
    # 0: no limit
    max_length_ratio: NonNegativeFloat = 0.0
    # positions of a batch, padding included: at most this many source positions and at most this
    # many target positions
    batch_tokens: PositiveInt32 = 25_000
    # packing: each row holds several pairs; the side with more sub-words has this many positions,
    # the other as many as the text needs; 0: one pair per row
    packed_length: NonNegativeInt = 0
    # subword regularisation: each epoch segments the training text anew, at random; 0: never. With
    # tokenizer.kind="bpe" the probability that a merge is left out (BPE-dropout), with "unigram"
    # the exponent of a segmentation's probability; needs packed_length
    subword_sampling: Probability = 0.0
    # sides that subword_sampling segments anew
    sampled_sides: Annotated[str, Literal["both", "src", "tgt"]] = "both"
    # batch shapes (rows, source length, target length), each compiled once: at most this many.
    # Packed rows have one, and a second one for pairs that are too long for its shorter side; with
    # 1 that side is as long as they need
    num_shapes: PositiveInt = 12
    # source and target lengths of batch shapes are multiples of this, or in packed rows of 8 if
    # that is more; packed_length stays as it is
    length_multiple: PositiveInt = 1
    # rows of a batch are a multiple of this; unless it is a multiple of mesh.data x mesh.fsdp x
    # training.accumulation_steps, empty rows are added to batches
    rows_multiple: PositiveInt = 8


@dataclasses.dataclass
class TokenizerConfig(Fields):
    """SentencePiece, trained on the training split only, unless `path` names a vocabulary."""

    # an existing vocabulary in place of a trained one, copied into the run: a SentencePiece model
    # for both languages, or the vocab/ of a run; all other fields then follow from it. Empty: train
    path: InputPath = ""
    # bpe | unigram | symbols (what stands between spaces is one piece, for sequences that are no
    # language; other symbols are unknown, neighbours together)
    kind: Annotated[str, Literal["bpe", "unigram", "symbols"]] = "bpe"
    vocab_size: Size = 37_000  # sub-words per vocabulary, special tokens included
    shared: bool = True  # one vocabulary for both languages; False: one per language
    # share of the text's characters that become sub-words
    character_coverage: Coverage = 1.0
    # encode characters outside the vocabulary as UTF-8 bytes; False: as the unknown token
    byte_fallback: bool = True
    # lower-case both languages, as Multi30k's literature does. Outputs are lower-case too: compare
    # measures that ignore case; the validation BLEU does
    lowercase: bool = False
    # pieces <extra_id_0>, <extra_id_1>, ..., at least those that data.objective needs, which a run
    # adds: one for each span that a text may have with span_corruption, one with masked_lm; text
    # with these characters is text
    sentinels: Sentinels = 0


@dataclasses.dataclass
class TrainingConfig(Section):
    """Section 5 of the paper: optimiser, schedule, regularisation; and intervals of reports."""

    steps: PositiveInt = 100_000  # length of training in steps, one batch each
    # noam | inverse_sqrt | cosine | constant, all with warm-up; or a registered schedule
    schedule: Annotated[str, Literal["noam", "inverse_sqrt", "cosine", "constant"], REGISTERED] = (
        "noam"
    )
    warmup_steps: PositiveInt32 = 4000  # steps of linear warm-up of the learning rate
    # noam: factor on the paper's formula (equation 3); other schedules: the peak learning rate, for
    # built-in ones at most 0.1
    learning_rate: PositiveFloat = 1.0
    # fine-tuning: run whose parameters a new run begins with, as RUN or RUN:CHECKPOINT; set by
    # `t2t.train --init_from`
    init_from: InputPath = ""
    # parameters without updates and without optimiser state, by patterns of their names, such as
    # "encoder.*"
    frozen: tuple[str, ...] = ()
    # factors on the learning rate, each as "PATTERN=FACTOR", such as "encoder.*=0.1"; for a
    # parameter the first pattern counts that matches its name
    rate_factors: tuple[str, ...] = ()
    # step at which the schedule starts; updates before it do not count; set by `t2t.train --extend`
    schedule_start: Int32 = 0
    # cooldown: over this many steps at the end, the rate falls linearly to 0; 0: none. With noam,
    # inverse_sqrt and constant
    cooldown_steps: Int32 = 0
    # adam | nadamw (Adam with Nesterov momentum and decoupled weight decay: Dozat 2016) |
    # schedule_free_adamw (evaluates an average of its iterates: Defazio et al. 2024) | muon
    # (orthogonal updates of matrices, Adam for the rest: Jordan et al. 2024), or a registered
    # optimiser
    optimizer: Annotated[
        str, Literal["adam", "nadamw", "schedule_free_adamw", "muon"], REGISTERED
    ] = "adam"
    # beta_1 of Adam and nadamw, in [0, 1); beta of schedule_free_adamw, in (0, 1): the share of the
    # average in the parameters at which gradients are computed
    adam_b1: Probability = 0.9
    adam_b2: Probability = 0.98  # beta_2
    adam_eps: PositiveFloat = 1e-9  # epsilon
    # each update subtracts the learning rate times this times the parameters; with
    # optimizer="nadamw", "schedule_free_adamw" or a registered one
    weight_decay: NonNegativeFloat = 0.0
    # loss of training: cross_entropy (label-smoothed, section 5.4), or a registered one; validation
    # computes the cross-entropy without smoothing
    loss: Annotated[str, Literal["cross_entropy"], REGISTERED] = "cross_entropy"
    # probability that label smoothing spreads over the vocabulary
    label_smoothing: Probability = 0.1
    # R-Drop (Liang et al. 2021): alpha, the weight of the divergence between two passes of each
    # batch with different dropout masks, for example 5; 0: one pass
    r_drop: NonNegativeFloat = 0.0
    # scheduled sampling (Mihaylova and Martins 2019): probability that a target input is
    # replaced by what the model, in a first pass without gradient, predicts in its place; 0: never
    scheduled_sampling: Probability = 0.0
    # decay of an exponential moving average of the parameters, for example 0.999; 0: no
    # average. It is part of checkpoints, and --checkpoint=ema evaluates it
    ema_decay: Probability = 0.0
    clip_norm: NonNegativeFloat = 0.0  # maximum global norm of the gradient; 0: no clipping
    # gradient accumulation: split each batch into this many parts, computed one after the other;
    # less memory, the same gradient apart from dropout masks
    accumulation_steps: PositiveInt = 1
    # consecutive steps skipped for a non-finite loss or gradient after which training fails
    max_nonfinite_steps: PositiveInt = 10
    log_every: PositiveInt = 100  # steps between log lines and TensorBoard points
    validate_every: PositiveInt = 1000  # steps between computations of the validation loss
    # steps between translations of the validation split by beam search, which give its BLEU and
    # chrF, and the last; 0: never
    bleu_every: NonNegativeInt = 0
    # pairs of the validation split, of which validation/source_use says how much the model uses
    # their sources; 0: it is not computed
    source_use_pairs: NonNegativeInt = 1000

    @property
    def factor_by_pattern(self) -> dict[str, float]:
        """`rate_factors` as {pattern: factor}, in order."""
        split = (each.rpartition("=") for each in self.rate_factors)
        return {pattern: float(factor) for pattern, _, factor in split}

    @property
    def num_passes(self) -> float:
        """Forward and backward passes of each step; a forward pass alone is a third of both."""
        return 2 if self.r_drop else 4 / 3 if self.scheduled_sampling else 1

    def noam_peak(self, d_model: int) -> float:
        """The highest rate of noam, learning_rate * (d_model * warmup_steps)^-0.5 (equation 3)."""
        return float(self.learning_rate * (d_model * self.warmup_steps) ** -0.5)


@dataclasses.dataclass
class CheckpointConfig(Fields):
    """The checkpoints that are written, and those that are kept."""

    every: PositiveInt = 1000  # steps between checkpoints
    keep_last: PositiveInt = 5  # keep this many of the newest checkpoints
    # also keep checkpoints whose step is a multiple of this; 0: none
    keep_every: NonNegativeInt = 0
    # also keep this many checkpoints that are best by best_metric; 0: none
    keep_best: NonNegativeInt = 1
    # on the validation split; all but loss need training.bleu_every
    best_metric: Annotated[str, Literal["loss", "bleu", "chrf"]] = "loss"


@dataclasses.dataclass
class MeshConfig(Fields):
    """Sizes of the device mesh; their product is the number of devices.

    One of them may be -1: the number of devices divided by the other sizes.
    """

    data: int = -1  # data parallelism: parts of a batch, each with a copy of the parameters
    fsdp: int = 1  # fully sharded data parallelism: parts of a batch and of the parameters
    tensor: int = 1  # tensor parallelism: parts of heads, feed-forward and vocabulary


@dataclasses.dataclass
class DecodingConfig(Fields):
    """Beam search, section 6.1 of the paper, or sampling."""

    # beam (beam search) | sampling (draws from the model's distribution)
    strategy: Annotated[str, Literal["beam", "sampling"]] = "beam"
    beam_size: Size = 4  # hypotheses per sentence; 1: greedy search
    alpha: Exponent = 0.6  # exponent of the length penalty, by which log P is divided
    # length penalty: gnmt ((5 + length) / 6) ** alpha, the paper's | length (length ** alpha, the
    # mean log P per sub-word if alpha is 1) | none (log P alone)
    length_penalty: Annotated[str, Literal["gnmt", "length", "none"]] = "gnmt"
    min_length: NonNegativeInt = 0  # least number of sub-words of an output, without EOS
    # a longer source is cut into pieces of at most this many sub-words, EOS and a tag included: at
    # the ends of sentences, else of clauses, else between words; 0: data.max_length, or the model's
    # positions if they are fewer
    max_source_length: NonNegativeInt = 0
    # translate each sentence of a line by itself: yes | no | auto (yes, if fewer than 10% of
    # training's source lines hold several sentences); not with a forced prefix
    split_sentences: Annotated[str, Literal["auto", "yes", "no"]] = "auto"
    # an output has at most source length + this many sub-words; what follows a prompt has at most
    # this many, and EOS
    max_extra_length: PositiveInt = 50
    num_samples: Size = 1  # strategy="sampling": samples per sentence
    temperature: PositiveFloat = 1.0  # strategy="sampling": divides the logits
    # strategy="sampling": draw from this many most probable sub-words; 0: all
    top_k: NonNegativeInt = 0
    # strategy="sampling": draw from the most probable sub-words that together have this
    # probability (after temperature and top_k); 1: all
    top_p: TopShare = 1.0
    sampling_seed: Int32 = 0  # strategy="sampling": of the random numbers
    # minimum Bayes risk: of the samples or of the whole beam, take the output with the highest
    # expected utility, a measure of sentences: none | chrf | bleu | chrf++ | spbleu | ter |
    # exact_match, metricx (--metricx), or one of a plugin (evaluation.measure)
    mbr: Annotated[
        str, Literal["none", "chrf", "bleu", "chrf++", "spbleu", "ter", "exact_match"], REGISTERED
    ] = "none"
    # sentences per batch of a search if they have up to 64 sub-words, half as many for twice the
    # length; all devices share a batch, a single one searches two at a time. Rounding depends on
    # the batch shape and may decide between hypotheses of nearly equal probability
    batch_size: Size = 64

    @property
    def label(self) -> str:
        """The search in file names: "beam4-alpha0.6", and other values than the defaults."""
        if self.strategy == "sampling":
            parts, names = ["sampling"], ["temperature", "top_k", "top_p"]
            parts.append(f"seed{self.sampling_seed}")
        else:
            parts, names = [f"beam{self.beam_size}", f"alpha{self.alpha:g}"], ["length_penalty"]
        default = DecodingConfig()
        names += ["min_length", "max_source_length", "split_sentences", "max_extra_length"]
        for name in names:
            if (value := getattr(self, name)) != getattr(default, name):
                parts.append(f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}")
        if self.mbr != "none":
            parts.append(f"{self.mbr}{self.num_samples}" if self.num_samples > 1 else self.mbr)
        return "-".join(parts)


@dataclasses.dataclass
class Config(Fields):
    """The whole configuration of a run."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    checkpoints: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)
    seed: Int32 = 0  # of the initial parameters, of dropout and of the order of the data
    # Python modules that register variants (t2t/config/variants.py). Programs that open the run
    # import them with --plugins or --trust_plugins
    plugins: tuple[str, ...] = ()
    # options that these modules register, as `--config.plugin.NAME.FIELD=VALUE`: each name with a
    # `PluginOptions`, or with a dictionary while the module is not imported
    plugin: dict[str, Any] = dataclasses.field(default_factory=dict)
    # wishes with which a recipe fitted itself to its text, such as minutes=30; it sets them itself,
    # and a run goes on with the same
    wishes: str = ""


# The type of each field that is no section, by its name, such as "model.d_model".
FIELD_TYPES = {
    f"{section.name}.{field.name}" if dataclasses.is_dataclass(section.type) else section.name: (
        FieldType.of(field.type)
    )
    for section in dataclasses.fields(Config)
    for field in (
        dataclasses.fields(section.type) if dataclasses.is_dataclass(section.type) else [section]
    )
}


def flatten(config: Config | Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """The config, or a section of it, as one flat dict: {"model.d_model": 512, ...}."""
    flat: dict[str, Any] = {}
    values = config if isinstance(config, Mapping) else dataclasses.asdict(config)
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{section}{name}.")
        else:
            flat[f"{section}{name}"] = value
    return flat


def describe_unknown_field(name: str, known: Collection[str] = ()) -> str:
    """Says what to write for a name that is no single field; `known`: by default the config's."""
    sections = {field.name: field.type for field in dataclasses.fields(Config)}
    kind = sections.get(name)
    if isinstance(kind, type) and issubclass(kind, Fields) and not known:
        first = dataclasses.fields(kind)[0].name  # type: ignore[arg-type]  # all are dataclasses
        return f"this section is a {kind.__name__}; set its fields, such as {name}.{first}"

    def similarity(other: str) -> float:
        """Returns the similarity, from 0 to 1, of the names without their sections."""
        last, other_last = (each.rpartition(".")[2] for each in (str(name), other))
        return difflib.SequenceMatcher(None, other_last, last).ratio()

    names = known or [*sections, *flatten(Config())]
    if name in names:  # of a section, but set as one of the config itself
        return f"write config.{name}"
    close = sorted(names, key=similarity, reverse=True)[:3]
    return f"no such field; perhaps {', '.join(close)}"


def show(value: object, width: int = 100) -> str:
    """The beginning of a value, in one line, for an error message."""
    return shorten(" ".join(repr(value).split()), width)


def shorten(text: str, width: int) -> str:
    """The beginning of a text, with dots if something is left out."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def explain_attribute(error: AttributeError) -> ConfigError | None:
    """The error for a field that is read but does not exist; None: for another attribute."""
    if isinstance(error.obj, Fields):
        return _make_field_error(type(error.obj), str(error.name))
    return None


def _make_field_error(kind: type[Fields], name: str, written: str = "") -> ConfigError:
    """The error for a name that is no field of a class; `written` is what followed it."""
    sections = {field.type: f"{field.name}." for field in dataclasses.fields(Config)}
    place = f"{sections.get(kind, '')}{name}"
    own = dataclasses.fields(kind)  # type: ignore[arg-type]  # all are dataclasses
    known = [] if kind in (Config, *sections) else [field.name for field in own]
    return ConfigError(f"{place}{written}: {describe_unknown_field(place, known)}")
