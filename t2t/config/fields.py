"""The typed configuration of a run.

A recipe in `configs/` returns a `Config`; the command line overrides single fields
(`--config.model.num_heads=1`). The type of a field says which values it may have, what it decides
(its `Role`), and with which values of other fields it has no effect. `rules.py` says which other
combinations are valid. Nothing here imports JAX.
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from t2t.config.field_types import (
    LEAVE,
    LOCAL,
    OF_RUN,
    OF_TASK,
    REGISTERED,
    SETTLED,
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
    Role,
    Sentinels,
    Share,
    Size,
    SourcePrefix,
    SpanLength,
    StackName,
    TopShare,
    Unused,
    Weights,
    WrittenFolder,
    beside,
    unless,
)
from t2t.config.measures import MEASURES, UTILITIES


class ConfigError(ValueError):
    """An invalid configuration; the message names the field, the rule and the remedy."""


class Fields:
    """Base of dataclasses whose only attributes are their fields: a misspelt name is an error.

    A section of the config cannot be set to a dictionary, which would silently reset the fields
    that it does not name. `notes` of a class are metadata, such as a role, for its fields without a
    role of their own.
    """

    NOTES = tuple[Any, ...]()  # not annotated, so it is not a field

    def __init_subclass__(cls, notes: tuple[Any, ...] = ()) -> None:
        """Keeps the notes."""
        cls.NOTES = notes or cls.NOTES

    if not TYPE_CHECKING:  # type checkers know the fields, and would take any name from here on

        def __new__(cls, *_: Any, **given: Any) -> Self:
            """Checks the names of keywords before `__init__`, which would raise a TypeError."""
            for name, value in given.items():
                if name not in getattr(cls, "__dataclass_fields__", {}):
                    raise _make_field_error(cls, name, f"={show(value)}")
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            """Sets a field; raises `ConfigError` if it is unknown or a section of another class."""
            field = getattr(self, "__dataclass_fields__", {}).get(name)
            is_section = field is not None and dataclasses.is_dataclass(field.type)
            if field is None or (is_section and type(value) is not field.type):
                raise _make_field_error(type(self), name, f"={show(value)}")
            super().__setattr__(name, value)


class PluginOptions(Fields, notes=(Role.OPTIONS,)):
    """Base of the options that a plugin registers: a dataclass whose fields have defaults."""

    def list_problems(self) -> Iterable[str]:
        """Returns a line for each rule that the values break, such as "mix=2 must be below 1"."""
        return ()

    def settle(self, src: Sequence[str], tgt: Sequence[str]) -> Self:
        """Returns the options with what follows from the pieces of both vocabularies, in order.

        So a part of the model knows ids: the place of a piece is its id. A run calls it when it
        starts, with the vocabulary made or read, and keeps the result in `config.json`.
        """
        del src, tgt
        return self


def option(default: Any, text: str) -> Any:
    """Returns a field of `PluginOptions`, with a text that explains it in messages."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class Section(Fields):
    """A section that is passed to variants without the rest of the config.

    Its attribute `plugin` holds the options of `Config.plugin`. It is not a field, so the options
    are saved once. `files.complete_options` sets it, and `dataclasses.replace` keeps it.
    """

    if TYPE_CHECKING:  # type checkers do not know that an `InitVar` may be an attribute

        @property
        def plugin(self) -> dict[str, Any]:
            """The options of plugins by their names, each a `PluginOptions`."""

    else:
        plugin: dataclasses.InitVar[Any] = dataclasses.field(default=None, kw_only=True)

        def __post_init__(self, plugin: Any) -> None:
            """Keeps the options; there are none before `files.complete_options`."""
            self.plugin = plugin or {}

        def __setattr__(self, name: str, value: Any) -> None:
            """Sets a field; options are set in the config, from where sections get them."""
            options = value.values() if isinstance(value, dict) else [value]
            if name == "plugin" and not all(isinstance(each, PluginOptions) for each in options):
                raise _make_field_error(type(self), name, f"={show(value)}")
            super().__setattr__(name, value)


# Notes of fields that have no effect with some values of another field. If several apply, messages
# name the first. So the wider cause stands first: with it the other causes have no effect either.
_OF_TRANSFORMER = beside("model.kind", "rnn", remedy=LEAVE)
_OF_ENCODER = beside("model.kind", "decoder_only", remedy=LEAVE)
_OF_DECODER = beside("model.kind", "encoder_only", remedy=LEAVE)
_OF_NORM = beside("model.norm", "none")
_OF_MUP = unless("model.parametrization", "mup")
_OF_FEED_FORWARD = beside("model.feed_forward", "none", "moe")
_OF_EXPERTS = unless("model.feed_forward", "moe", REGISTERED)
_OF_TEXT, _OF_TFDS, _OF_HF = (
    unless(
        "data.source", name, REGISTERED, remedy=f"choose data.source={name!r}, or leave it empty"
    )
    for name in ("text", "tfds", "hf")
)
_OF_SOURCES = beside("data.objective", "lm")
_OF_TRAINED_VOCABULARY = unless("tokenizer.path", "")
# Of vocabularies that are learned, not counted.
_OF_SUBWORDS = beside("tokenizer.kind", "symbols", "characters", "bytes")
_OF_BEAM = unless("decoding.strategy", "beam")
_OF_SAMPLING = unless(
    "decoding.strategy", "sampling", remedy=f"{LEAVE}, or set decoding.strategy='sampling'"
)


def _of_pairs(remedy: str = LEAVE, also: Unused | None = None) -> Unused:
    """Returns the note of a field for sentence pairs; all other objectives read text alone."""
    end = f"it reads text alone; {remedy}"
    return unless("data.objective", "translation", remedy=end, also=also)


def _of_source_side(remedy: str) -> Unused:
    """Returns the note of a field for sources; a registered source may find text alone by it."""
    return _of_pairs(remedy, also=unless("data.source", REGISTERED))


POSITIONS = (
    "sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "learned", "rotary", "relative",
    "relative_by_layer", "alibi", "none",
)  # fmt: skip
# Schedules whose rates do not depend on `training.steps`, unless they have a cooldown. A cosine's
# rates depend on it, and a registered schedule's may.
OPEN_ENDED_SCHEDULES = ("noam", "inverse_sqrt", "constant")


@dataclasses.dataclass
class ModelConfig(Section, notes=(Role.MODEL,)):
    """The architecture; the defaults are the paper's base model (table 3)."""

    # transformer (encoder and decoder) | decoder_only (source and target in one sequence) |
    # encoder_only (predicts masked tokens) | rnn (recurrent, with additive attention), or a
    # registered family
    kind: Annotated[
        str, Literal["transformer", "decoder_only", "encoder_only", "rnn"], REGISTERED
    ] = "transformer"
    # True: the tokens of the source see each other (prefix LM); False: each sees only those before
    # it, and relative positions use all their buckets for tokens on the left
    prefix: Annotated[bool, unless("model.kind", "decoder_only", REGISTERED, remedy=LEAVE)] = True
    # N: layers of the encoder, and layers of the decoder
    num_layers: Annotated[
        Depth,
        unless("model.decoder_layers", None, also=beside("model.kind", "decoder_only")),
        unless("model.encoder_layers", None, also=beside("model.kind", "encoder_only")),
        unless("model.encoder_layers", None, also=unless("model.decoder_layers", None)),
    ] = 6
    # layers of the encoder; None: num_layers
    encoder_layers: Annotated[Depth | None, _OF_ENCODER] = None
    # layers of the decoder; None: num_layers
    decoder_layers: Annotated[Depth | None, _OF_DECODER] = None
    d_model: Size = 512  # width of the embeddings and of every sub-layer's output
    # standard: as in the paper; the best learning rate falls with the width | mup (maximal update
    # parametrisation: Yang et al. 2022): models of all widths share the rate of base_width, where
    # both are the same. All factors: t2t/model/parametrization.py
    parametrization: Annotated[
        str, Literal["standard", "mup"], beside("model.kind", "rnn", remedy=LEAVE)
    ] = "standard"
    # d_model of the model whose rate was tuned; d_ff and heads times d_k grow with d_model
    base_width: Annotated[Size | None, _OF_MUP] = None
    # layers of each stack of that model: residual branches are divided by the ratio (CompleteP: Dey
    # et al. 2025); None: as many as here
    base_layers: Annotated[Depth | None, _OF_MUP] = None
    # d_k of that model; None: d_k grows with d_model, the number of heads is the same
    base_d_k: Annotated[Size | None, _OF_MUP] = None
    # width of the feed-forward's hidden layer
    d_ff: Annotated[Size, _OF_TRANSFORMER, beside("model.feed_forward", "none")] = 2048
    num_heads: Annotated[Size, _OF_TRANSFORMER] = 8  # h: attention heads
    # key/value heads, each shared by num_heads / num_kv_heads query heads; None: num_heads
    num_kv_heads: Annotated[Size | None, _OF_TRANSFORMER] = None
    # width of a query and of a key; None: d_model / num_heads
    d_k: Annotated[Size | None, _OF_TRANSFORMER] = None
    # width of a value; None: d_model / num_heads
    d_v: Annotated[Size | None, _OF_TRANSFORMER] = None
    # dot_product (equation 1), or a registered variant
    attention: Annotated[str, Literal["dot_product"], REGISTERED, _OF_TRANSFORMER] = "dot_product"
    attention_scale: Annotated[bool, _OF_TRANSFORMER] = True  # divide Q K^T by sqrt(d_k)
    # add biases to queries, keys, values and the output of attention
    attention_bias: Annotated[bool, _OF_TRANSFORMER] = False
    # kind of positions: sinusoidal (the paper's) | sinusoidal_halves (all sines, then all cosines:
    # Marian's) | sinusoidal_fairseq (halves, at other rates, counted from 2: NLLB's) | learned |
    # rotary (Su et al. 2021) | relative (Raffel et al. 2020) | relative_by_layer (with biases for
    # each layer: umT5's) | alibi (Press et al. 2022) | none, or a registered kind
    position: Annotated[str, Literal[POSITIONS], REGISTERED, _OF_TRANSFORMER] = "sinusoidal"
    # rows of the table: the longest sentence in sub-words, EOS included; others have no limit
    max_positions: Annotated[
        Size, _OF_TRANSFORMER, unless("model.position", "learned", REGISTERED)
    ] = 1024
    # layer (layer normalisation) | rms (root mean square) | none, or a registered norm
    norm: Annotated[str, Literal["layer", "rms", "none"], REGISTERED, _OF_TRANSFORMER] = "layer"
    # added to the variance, or to the mean square, in a norm
    norm_epsilon: Annotated[PositiveFloat, _OF_TRANSFORMER, _OF_NORM] = 1e-6
    # post: norm(x + f(x)), as in the paper | pre: x + f(norm(x))
    norm_position: Annotated[str, Literal["post", "pre"], _OF_TRANSFORMER, _OF_NORM] = "post"
    residual: bool = True  # True: x + f(x) around every sub-layer f; False: f(x)
    # relu | gelu (its approximation by tanh) | gelu_exact (BART's) | silu | swiglu | geglu | moe (a
    # mixture of experts, each relu without biases: Shazeer et al. 2017) | none, or a registered
    # variant
    feed_forward: Annotated[
        str,
        Literal["relu", "gelu", "gelu_exact", "silu", "swiglu", "geglu", "moe", "none"],
        REGISTERED,
        _OF_TRANSFORMER,
    ] = "relu"
    # the biases b1 and b2 of the feed-forward (equation 2)
    feed_forward_bias: Annotated[bool, _OF_TRANSFORMER, _OF_FEED_FORWARD] = True
    num_experts: Annotated[Size, _OF_TRANSFORMER, _OF_EXPERTS] = 8  # experts, each of width d_ff
    # experts that a router chooses for each token
    experts_per_token: Annotated[Size, _OF_TRANSFORMER, _OF_EXPERTS] = 2
    # weight of the load-balancing loss of each layer (Fedus et al. 2022), which is 1 if all experts
    # are used alike. It is part of train/loss. With accumulation_steps it is computed for each part
    # of the batch
    load_balance: Annotated[NonNegativeFloat, Role.REGULARIZATION, _OF_TRANSFORMER, _OF_EXPERTS] = (
        0.01
    )
    # gru (Cho et al. 2014) | lstm (Hochreiter and Schmidhuber 1997)
    rnn_cell: Annotated[
        str, Literal["gru", "lstm"], unless("model.kind", "rnn", REGISTERED, remedy=LEAVE)
    ] = "gru"
    # all: one table for source, target and output (logits) | decoder: one for target and output |
    # input: one for source and target, another for output | none: three tables
    tie_embeddings: Annotated[str, Literal["all", "decoder", "input", "none"]] = "all"
    # each encoder and decoder with a name (data.encoder, data.decoder) has its own tables of
    # embeddings; False: all tasks share the tables
    own_tables: bool = False
    embedding_scale: bool = True  # multiply embeddings by sqrt(d_model) (section 3.4)
    # normalise the sums of embeddings and positions (BART's)
    embedding_norm: Annotated[bool, _OF_TRANSFORMER, _OF_NORM] = False
    # the first input of the decoder: bos | eos (NLLB's) | unk (MADLAD-400's)
    decoder_start: Annotated[
        str, Literal["bos", "eos", "unk"], beside("model.kind", "encoder_only")
    ] = "bos"
    output_bias: bool = False  # add a trained bias to the logit of each sub-word
    # dropout rate of every sub-layer's output and of the sums of embeddings and positions
    dropout: Annotated[Probability, Role.REGULARIZATION] = 0.1
    # dropout rate of the attention weights
    attention_dropout: Annotated[Probability, Role.REGULARIZATION, _OF_TRANSFORMER] = 0.0
    # dropout rate of the feed-forward's hidden layer
    feed_forward_dropout: Annotated[
        Probability, Role.REGULARIZATION, _OF_TRANSFORMER, _OF_FEED_FORWARD
    ] = 0.0
    # dtype of activations and products: auto (bfloat16 on GPU and TPU, float32 on CPU; a new run on
    # a CPU with bfloat16 instructions gets mixed) | float32 | bfloat16 | mixed (float32, but
    # products with weights have bfloat16 operands); parameters are always float32
    dtype: Annotated[
        str, Literal["auto", "float32", "bfloat16", "mixed"], SETTLED, Role.COMPUTATION
    ] = "auto"
    # auto: the fast implementations in t2t/ops | textbook: the plain formulas in t2t/model |
    # fused_norm: auto, and on GPUs dropout, residual connection and norm in one kernel that no GPU
    # has timed
    kernels: Annotated[str, Literal["auto", "textbook", "fused_norm"], Role.COMPUTATION] = "auto"
    # run a stack's layers in a loop, so that the time to compile does not grow with their number;
    # checkpoints are the same
    scan_layers: Annotated[bool, _OF_TRANSFORMER, Role.COMPUTATION] = False

    @property
    def depth(self) -> tuple[int, int]:
        """(encoder layers, decoder layers)."""
        return (
            self.num_layers if self.encoder_layers is None else self.encoder_layers,
            self.num_layers if self.decoder_layers is None else self.decoder_layers,
        )

    @property
    def reference_width(self) -> int:
        """The width that tables of embeddings and the rate of noam are made for."""
        base = self.base_width if self.parametrization == "mup" else None
        return self.d_model if base is None else base

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
class DataConfig(Section, notes=(Role.TEXT,)):
    """The corpus, the pairs of it that are used, and the size of batches."""

    # phrasebook (embedded, synthetic) | multi30k | tfds | hf (Hugging Face datasets) | text (your
    # own files) | cogs | scan | inflection (published tasks), or a registered source. Several are
    # joined by "+", such as "multi30k+text": all are trained on; another split comes from text if
    # its files are given, else from the first source that has it
    source: Annotated[
        str,
        Literal["phrasebook", "multi30k", "tfds", "hf", "text", "cogs", "scan", "inflection"],
        REGISTERED,
    ] = "phrasebook"
    # language code, such as en, deu or zho_Hans: the file suffix in multi30k, the feature in tfds,
    # the column in hf. Empty: en with the phrasebook, multi30k and tfds, unknown with other sources
    src_language: Annotated[Language, Role.LANGUAGES] = ""
    # the same of the target; empty: de, or unknown. Measures choose their tokenisers by it
    tgt_language: Annotated[Language, Role.LANGUAGES] = ""
    # folder of the files of multi30k (empty: download) or of a published task, or data_dir of TFDS
    # (empty: its default)
    directory: Annotated[
        InputPath,
        Role.STORE,
        unless("data.source", "multi30k", "tfds", "cogs", "scan", "inflection", REGISTERED),
    ] = ""
    # a TFDS translation dataset
    tfds_name: Annotated[str, unless("data.source", "tfds", REGISTERED)] = "wmt14_translate/de-en"
    # the dataset of all splits but train, such as "wmt14_translate/de-en" where training reads
    # "wmt17_translate/de-en"; if this is empty, tfds_name
    tfds_held_out_name: Annotated[str, Role.HELD_OUT, _OF_TFDS] = ""
    # a data set on the Hub, as "OWNER/NAME", "OWNER/NAME:CONFIGURATION" or with "@REVISION" at its
    # end, or a folder that save_to_disk wrote; empty: the files of hf_files
    hf_name: Annotated[str, LOCAL, _OF_HF] = ""
    # files that hold both sides, each as "SPLIT=FILE": .parquet or .arrow, or .tsv, .csv, .jsonl or
    # .json, also compressed as .gz, .zst, .bz2 or .xz; a split may have several
    hf_files: Annotated[InputPaths, Role.FILES, _OF_HF] = ()
    # read the Hub's files over the network; False: through the cache of `datasets` on this machine
    hf_streaming: Annotated[
        bool, Role.FILES, unless("data.source", "hf", REGISTERED), unless("data.hf_files", ())
    ] = True
    # column of source sentences; "translation.en": key "en" in the column "translation";
    # "translation.0": item of a list; a number: column of a file without a line of names, from 0;
    # empty: the language, in the column "translation" if there is one
    src_column: Annotated[str, _OF_HF, _of_source_side("name the column in data.tgt_column")] = ""
    tgt_column: Annotated[str, _OF_HF] = ""  # column of their translations
    # of several training sets of a task in one folder, part of the name of its files, such as jump
    # for scan, or eng_100 for inflection
    subset: Annotated[str, Role.FILES, unless("data.source", "scan", "inflection", REGISTERED)] = ""
    # files of source sentences for training, one sentence per line, plain or packed by gzip, bzip2,
    # xz or zstd
    train_src: Annotated[
        InputPaths, Role.FILES, _OF_TEXT, _of_source_side("name the files in data.train_tgt")
    ] = ()
    train_tgt: Annotated[InputPaths, Role.FILES, _OF_TEXT] = ()  # their translations, line by line
    # how often an epoch uses the pairs of each training corpus. A corpus is a source, or one file
    # of train_src. 0.5: each epoch uses another half (with subword_sampling a random half). At
    # least one pair must be left. Empty: once
    train_weights: Weights = ()
    # stages of training, each with its own train_weights: "STEP: WEIGHTS" until that step, and
    # WEIGHTS in the last stage; 0 leaves a corpus out. "2000: 1,1" and "1,0": the second corpus
    # only up to step 2000. Each stage begins an epoch. Empty: one stage, with train_weights
    stages: Annotated[tuple[str, ...], Role.BATCHES] = ()
    # T above 0: the share of a corpus in an epoch grows as size ** (1 / T), and the largest corpus
    # is used once. 1: as they are; 5: small ones far more often (Arivazhagan et al. 2019). Sizes
    # are counted before max_length and max_length_ratio drop pairs
    temperature: Annotated[NonNegativeFloat, OF_RUN] = 0.0
    # source sentences of the validation split
    validation_src: Annotated[
        InputPath, Role.FILES, _OF_TEXT, _of_source_side("name the files in data.validation_tgt")
    ] = ""
    validation_tgt: Annotated[InputPath, Role.FILES, _OF_TEXT] = ""  # their translations
    # source sentences of the test split
    test_src: Annotated[
        InputPath, Role.FILES, _OF_TEXT, _of_source_side("name the files in data.test_tgt")
    ] = ""
    test_tgt: Annotated[InputPath, Role.FILES, _OF_TEXT] = ""  # their translations
    # filters of training pairs by their text, in order: duplicates (equal to an earlier pair) |
    # identical (both sides equal, apart from case) | script (most letters of a side are of another
    # script than usual) | overlap (a side is a sentence of another split of the same direction).
    # Text is compared as the vocabulary spells it: single spaces, lower case with
    # tokenizer.lowercase
    filters: Filters = ()
    # several directions in one model, such as en-de and en-fr; each source sentence gets the tag of
    # its target language, "<2de>". Each data.source is opened once for each direction. In names of
    # files, data sets and columns, {src} and {tgt} stand for the languages of the direction, {pair}
    # for both in alphabetical order (de-en). Empty: src_language to tgt_language, without tags
    directions: Annotated[tuple[str, ...], _of_pairs()] = ()
    # what the model learns to predict: translation (the target of a pair) | lm (each sub-word of a
    # text from those before it) | prefix_lm (the rest of a text from its beginning: Raffel et al.
    # 2020) | span_corruption (spans that are left out of a text: T5, Raffel et al. 2020) |
    # denoising (a whole text, whose source has a mask for each span: BART, Lewis et al. 2020) |
    # masked_lm (masked sub-words of a text: BERT, Devlin et al. 2019). All but translation read
    # text alone: the files of train_tgt, validation_tgt and test_tgt, or the target sides of other
    # sources; so does a registered objective
    objective: Annotated[
        str,
        Literal["translation", "lm", "prefix_lm", "span_corruption", "denoising", "masked_lm"],
        REGISTERED,
        Role.BATCHES,
        OF_TASK,
    ] = "translation"
    # share of a text's sub-words that are left out or masked; at least one
    noise_density: Annotated[
        Share,
        Role.BATCHES,
        OF_TASK,
        unless("data.objective", "span_corruption", "denoising", "masked_lm", REGISTERED),
    ] = 0.15
    # mean number of sub-words of a span; the number of spans in a text follows from it and
    # noise_density, rounded
    mean_span_length: Annotated[
        SpanLength,
        Role.BATCHES,
        OF_TASK,
        unless("data.objective", "span_corruption", "denoising", REGISTERED),
    ] = 3.0
    # tags of a direction: target (the source begins with the tag of the target language) | both
    # (each side begins with the tag of its own language, as in NLLB)
    direction_tags: Annotated[
        str, Literal["target", "both"], beside("data.directions", (), remedy=LEAVE)
    ] = "target"
    # folder of tokenised corpora and their vocabularies, shared between runs
    cache_directory: Annotated[WrittenFolder, Role.STORE] = "~/.cache/t2t"
    # training drops pairs with more sub-words than this on either side, EOS and a tag included.
    # With tokenizer.kind=characters or bytes these are what it counts, about five a word
    max_length: Annotated[PositiveInt, Role.BATCHES] = 256
    # training drops pairs whose longer side has more than this times the sub-words of the shorter;
    # 0: no limit
    max_length_ratio: Annotated[NonNegativeFloat, Role.BATCHES, OF_TASK, _of_pairs()] = 0.0
    # size of a batch, padding included: at most this many source positions and at most this many
    # target positions
    batch_tokens: Annotated[PositiveInt32, Role.BATCHES] = 25_000
    # packing: each row holds several pairs; the side with more sub-words has this many positions,
    # the other as many as the text needs; 0: one pair per row
    packed_length: Annotated[
        NonNegativeInt,
        Role.BATCHES,
        beside(
            "model.kind",
            "rnn",
            remedy="it would carry its state between the sentences of a row; "
            "set data.packed_length=0",
        ),
    ] = 0
    # subword regularisation: each epoch segments the training text anew, at random; 0: never. With
    # tokenizer.kind="bpe" the probability that a merge is left out (BPE-dropout), with "unigram"
    # the exponent of a segmentation's probability; needs packed_length
    subword_sampling: Annotated[
        Probability,
        Role.BATCHES,
        beside(
            "tokenizer.kind",
            *("symbols", "characters", "bytes"),
            remedy="a sentence has one segmentation; set it to 0",
        ),
    ] = 0.0
    # sides that subword_sampling segments anew
    sampled_sides: Annotated[
        str, Literal["both", "src", "tgt"], Role.BATCHES, beside("data.subword_sampling", 0.0)
    ] = "both"
    # at most this many batch shapes (rows, source length, target length), each compiled once.
    # Packed rows have one shape, and a second one for pairs that are too long for the shorter side
    # of the first; with num_shapes=1 that side is long enough for all pairs
    num_shapes: Annotated[PositiveInt, Role.BATCHES] = 12
    # source and target lengths of batch shapes are multiples of this, in packed rows of 8 if this
    # is less; packed_length itself is not rounded
    length_multiple: Annotated[PositiveInt, Role.BATCHES] = 1
    # rows of a batch are a multiple of this. If it is not a multiple of mesh.data x mesh.fsdp x
    # training.accumulation_steps, empty rows are added
    rows_multiple: Annotated[PositiveInt, Role.BATCHES] = 8
    # text with which each source begins, so that one model knows what to do with it, such as
    # "translate English to German:" (T5's). A word in angle brackets, such as <fill>, is a symbol
    # of the vocabulary, which no text is tokenised to. Programs that use the model add the prefix;
    # a text must not have it
    prefix: Annotated[
        SourcePrefix,
        beside(
            "data.objective",
            "lm",
            "masked_lm",
            remedy=f"their sources have no room for it; {LEAVE}",
        ),
    ] = ""
    # tasks that one run learns at once, each "NAME: FIELD=VALUE FIELD=VALUE": this section with
    # some fields of its own, such as "fill: objective=span_corruption train_tgt=news.de
    # prefix=<fill>". Quotes hold a value with spaces, commas separate several. Fields of batches
    # are common to all. The first task is the main one: it chooses the best checkpoint, and
    # programs use it by default. train_weights, and each of stages, have a weight for each task,
    # by which those of its own corpora are multiplied. Empty: one task, this section
    mixture: Annotated[tuple[str, ...], OF_RUN] = ()
    # name of the stack that encodes the sources: tasks that name the same one share it, and ""
    # is one that all others share. In a run with `directions` {src} and {tgt} stand for the
    # languages, so encoder="{src}" gives each source language its own. A batch holds examples
    # of one encoder and one decoder
    encoder: Annotated[StackName, Role.MODEL, _OF_ENCODER] = ""
    # name of the stack that decodes the targets, as `encoder`
    decoder: Annotated[StackName, Role.MODEL, _OF_DECODER] = ""

    @property
    def task(self) -> str:
        """The name of the task or direction that this section describes (`directions.list_tasks`).

        Empty if it describes all text of a run without `mixture` and `directions`.
        """
        return self.mixture[0].partition(":")[0] if self.mixture else "".join(self.directions[:1])

    @property
    def is_text_alone(self) -> bool:
        """True if the objective reads text alone, the target side of the sources."""
        return self.objective != "translation"


@dataclasses.dataclass
class TokenizerConfig(Fields, notes=(Role.VOCABULARY,)):
    """SentencePiece, trained on the training split only, unless `path` names a vocabulary."""

    # an existing vocabulary, which is copied into the run: a SentencePiece model for both
    # languages, or the vocab/ of a run. All other fields then follow from it. Empty: train one
    path: Annotated[InputPath, Role.COPIED] = ""
    # bpe | unigram | symbols (each symbol between spaces is one piece, for sequences that are not a
    # language; neighbouring symbols outside the vocabulary become one unknown piece) | characters
    # (Unicode's code points) | bytes (those of UTF-8, with ByT5's ids plus one)
    kind: Annotated[
        str, Literal["bpe", "unigram", "symbols", "characters", "bytes"], _OF_TRAINED_VOCABULARY
    ] = "bpe"
    # sub-words per vocabulary, special tokens included. Of symbols and characters it has those of
    # the training text, at most so many; bytes have 256 and the special tokens
    vocab_size: Annotated[
        Size, SETTLED, _OF_TRAINED_VOCABULARY, beside("tokenizer.kind", "bytes")
    ] = 37_000
    # one vocabulary for both languages; False: one per language
    shared: Annotated[bool, _OF_TRAINED_VOCABULARY] = True
    # share of the text's characters that become sub-words
    character_coverage: Annotated[Coverage, _OF_TRAINED_VOCABULARY, _OF_SUBWORDS] = 1.0
    # encode characters outside the vocabulary as UTF-8 bytes; False: as the unknown token
    byte_fallback: Annotated[
        bool, _OF_TRAINED_VOCABULARY, beside("tokenizer.kind", "symbols", "bytes")
    ] = True
    # lower-case both languages, as Multi30k's literature does. Outputs are lower-case too, so
    # compare by measures that ignore case, as the validation BLEU does
    lowercase: Annotated[bool, _OF_TRAINED_VOCABULARY] = False
    # number of pieces <extra_id_0>, <extra_id_1>, ...; a run raises it to what data.objective
    # needs: with span_corruption one for each span that a text may have, with masked_lm one. The
    # same characters in a text are ordinary text
    sentinels: Annotated[Sentinels, SETTLED, _OF_TRAINED_VOCABULARY] = 0


@dataclasses.dataclass
class TrainingConfig(Section, notes=(Role.UPDATES,)):
    """Section 5 of the paper: optimiser, schedule, regularisation; and intervals of reports."""

    # length of training in steps, one batch each
    steps: Annotated[PositiveInt, Role.SCHEDULE] = 100_000
    # noam | inverse_sqrt | cosine | constant, all with warm-up; or a registered schedule
    schedule: Annotated[
        str, Literal["noam", "inverse_sqrt", "cosine", "constant"], REGISTERED, Role.SCHEDULE
    ] = "noam"
    # steps of linear warm-up of the learning rate
    warmup_steps: Annotated[PositiveInt32, Role.SCHEDULE] = 4000
    # noam: factor on the paper's formula (equation 3); other schedules: the peak learning rate, for
    # built-in ones at most 0.1
    learning_rate: Annotated[PositiveFloat, Role.SCHEDULE] = 1.0
    # fine-tuning: run whose parameters a new run begins with, as RUN or RUN:CHECKPOINT; set by
    # `t2t.train --init_from`
    init_from: Annotated[InputPath, SETTLED] = ""
    # parameters without updates and without optimiser state, by patterns of their names, such as
    # "encoder.*"
    frozen: tuple[str, ...] = ()
    # factors on the learning rate, each as "PATTERN=FACTOR", such as "encoder.*=0.1"; the first
    # pattern that matches a parameter's name counts
    rate_factors: tuple[str, ...] = ()
    # step at which the schedule starts; updates before it do not count; set by `t2t.train --extend`
    schedule_start: Annotated[Int32, Role.SCHEDULE] = 0
    # cooldown: over this many steps at the end, the rate falls linearly to 0; 0: none
    cooldown_steps: Annotated[
        Int32,
        Role.SCHEDULE,
        unless(
            "training.schedule",
            *OPEN_ENDED_SCHEDULES,
            remedy="it decides itself how it ends; leave it at 0, or use one of "
            f"{', '.join(OPEN_ENDED_SCHEDULES)}",
        ),
    ] = 0
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
    # each update subtracts the learning rate times this times the parameters
    weight_decay: Annotated[
        NonNegativeFloat,
        unless(
            "training.optimizer",
            "nadamw",
            "schedule_free_adamw",
            "muon",
            REGISTERED,
            remedy="leave it at 0, or use 'nadamw', 'schedule_free_adamw' or 'muon'",
        ),
    ] = 0.0
    # loss of training: cross_entropy (label-smoothed, section 5.4), or a registered one; validation
    # computes the cross-entropy without smoothing
    loss: Annotated[str, Literal["cross_entropy"], REGISTERED, Role.LOSS] = "cross_entropy"
    # probability that label smoothing spreads over the vocabulary
    label_smoothing: Annotated[Probability, Role.LOSS] = 0.1
    # R-Drop (Liang et al. 2021): alpha, the weight of the divergence between two passes of each
    # batch with different dropout masks, for example 5; 0: one pass
    r_drop: NonNegativeFloat = 0.0
    # scheduled sampling (Mihaylova and Martins 2019): probability that a target input is
    # replaced by what the model, in a first pass without gradient, predicts in its place; 0: never
    scheduled_sampling: Annotated[Probability, _OF_DECODER] = 0.0
    # decay of an exponential moving average of the parameters, for example 0.999; 0: no
    # average. It is part of checkpoints, and --checkpoint=ema evaluates it
    ema_decay: Probability = 0.0
    clip_norm: NonNegativeFloat = 0.0  # maximum global norm of the gradient; 0: no clipping
    # gradient accumulation: split each batch into this many parts, computed one after the other;
    # less memory, the same gradient apart from dropout masks
    accumulation_steps: PositiveInt = 1
    # consecutive steps skipped for a non-finite loss or gradient after which training fails
    max_nonfinite_steps: Annotated[PositiveInt, Role.LOGGING] = 10
    # steps between log lines and TensorBoard points
    log_every: Annotated[PositiveInt, Role.LOGGING] = 100
    # steps between computations of the validation loss
    validate_every: Annotated[PositiveInt, Role.VALIDATION] = 1000
    # steps between translations of the validation split by beam search, which give its BLEU and
    # chrF, of symbols the exact match, and checkpoints.best_metric; the last step translates, too;
    # 0: never
    translate_every: Annotated[NonNegativeInt, Role.VALIDATION, _of_pairs()] = 0
    # validation pairs by which validation/source_use measures how much the model uses the source;
    # 0: it is not computed
    source_use_pairs: Annotated[NonNegativeInt, Role.LOGGING] = 1000

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
class CheckpointConfig(Fields, notes=(Role.CHECKPOINTS,)):
    """The checkpoints that are written, and those that are kept."""

    every: PositiveInt = 1000  # steps between checkpoints
    keep_last: PositiveInt = 5  # keep this many of the newest checkpoints
    # also keep checkpoints whose step is a multiple of this; 0: none
    keep_every: NonNegativeInt = 0
    # also keep this many checkpoints that are best by best_metric; 0: none
    keep_best: NonNegativeInt = 1
    # the loss of the validation split, or a measure of its translations (training.translate_every),
    # also of a plugin (evaluation.measure). With tokenizer.lowercase it is the measure without case
    best_metric: Annotated[
        str,
        Literal[("loss", *(name for name, row in MEASURES.items() if not row.architecture))],
        REGISTERED,
        _of_pairs(),
    ] = "loss"
    # training stops after so many validations in a row without a better best_metric; 0: never. They
    # count from the first one that translates (1 BLEU or an exact match), a loss from the start
    patience: NonNegativeInt = 0


@dataclasses.dataclass
class MeshConfig(Fields, notes=(Role.DEVICES,)):
    """Sizes of the device mesh; their product is the number of devices.

    One of them may be -1: the number of devices divided by the other sizes.
    """

    data: int = -1  # data parallelism: parts of a batch, each with a copy of the parameters
    fsdp: int = 1  # fully sharded data parallelism: parts of a batch and of the parameters
    tensor: int = 1  # tensor parallelism: parts of heads, feed-forward and vocabulary


@dataclasses.dataclass
class DecodingConfig(Fields, notes=(Role.SEARCH, beside("data.objective", "masked_lm"))):
    """Beam search, section 6.1 of the paper, or sampling; masks are filled without a search."""

    # beam (beam search) | sampling (draws from the model's distribution)
    strategy: Annotated[str, Literal["beam", "sampling"]] = "beam"
    beam_size: Annotated[Size, _OF_BEAM] = 4  # hypotheses per sentence; 1: greedy search
    # exponent of the length penalty, by which log P is divided
    alpha: Annotated[Exponent, _OF_BEAM, beside("decoding.length_penalty", "none")] = 0.6
    # length penalty: gnmt ((5 + length) / 6) ** alpha, the paper's | length (length ** alpha, the
    # mean log P per sub-word if alpha is 1) | none (log P alone)
    length_penalty: Annotated[str, Literal["gnmt", "length", "none"], _OF_BEAM] = "gnmt"
    # least number of sub-words, without EOS, of the output of each sentence or piece that is
    # translated by itself
    min_length: NonNegativeInt = 0
    # a longer source is cut into pieces of at most this many sub-words, EOS and a tag included: at
    # the ends of sentences, else of clauses, else between words; 0: data.max_length, or the model's
    # positions if they are fewer
    max_source_length: Annotated[NonNegativeInt, _OF_SOURCES] = 0
    # translate each sentence of a line by itself: yes | no | auto (yes, if fewer than 10% of
    # training's source lines hold several sentences); not with a forced prefix
    split_sentences: Annotated[str, Literal["auto", "yes", "no"], _OF_SOURCES] = "auto"
    # an output has at most source length + this many sub-words; what follows a prompt has at most
    # this many, and EOS
    max_extra_length: PositiveInt = 50
    num_samples: Annotated[Size, _OF_SAMPLING] = 1  # samples per sentence
    temperature: Annotated[PositiveFloat, _OF_SAMPLING] = 1.0  # divides the logits
    # draw from this many most probable sub-words; 0: all
    top_k: Annotated[NonNegativeInt, _OF_SAMPLING] = 0
    # draw from the most probable sub-words that together have this probability (after temperature
    # and top_k); 1: all
    top_p: Annotated[TopShare, _OF_SAMPLING] = 1.0
    sampling_seed: Annotated[Int32, _OF_SAMPLING] = 0  # of the random numbers
    # minimum Bayes risk: of the samples, or of the whole beam, take the output with the highest
    # expected utility. The utility is a measure of sentences, or of a plugin (evaluation.measure);
    # a measure that a model computes needs --measure_model
    mbr: Annotated[str, Literal[("none", *UTILITIES)], REGISTERED] = "none"
    # sentences per batch of a search if they have up to 64 sub-words, half as many for twice the
    # length. All devices share a batch; a single device searches two batches at a time. Rounding
    # depends on the batch shape and may decide between hypotheses of nearly equal probability
    batch_size: Annotated[Size, Role.SEARCH_BATCHES] = 64

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
    # seed of the initial parameters, of dropout and of the order of the data
    seed: Annotated[Int32, Role.SEED] = 0
    # Python modules that register variants (t2t/config/variants.py). Programs that open the run
    # import them with --plugins or --trust_plugins
    plugins: Annotated[tuple[str, ...], Role.CODE] = ()
    # options that these modules register, as `--config.plugin.NAME.FIELD=VALUE`: each name with a
    # `PluginOptions`, or with a dictionary while the module is not imported
    plugin: Annotated[dict[str, Any], Role.OPTIONS] = dataclasses.field(default_factory=dict)
    # what the user asked of a recipe that fits itself to its text, such as minutes=30; the recipe
    # sets it, and a run continues only with the same
    wishes: Annotated[str, Role.WISHES] = ""


def list_types(kind: type[Fields], section: str) -> Iterator[tuple[str, FieldType]]:
    """Yields name and type of each field of a section; types have the section's notes, too."""
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # all are dataclasses
        found = FieldType.of(field.type)
        notes = found.notes if found.role else (*kind.NOTES, *found.notes)
        yield f"{section}.{field.name}", found._replace(notes=notes)


def _list_all_types() -> Iterator[tuple[str, FieldType]]:
    """Yields name and type of each single field of the config."""
    for section in dataclasses.fields(Config):
        if isinstance(section.type, type) and issubclass(section.type, Fields):
            yield from list_types(section.type, section.name)
        else:
            yield section.name, FieldType.of(section.type)


FIELD_TYPES = dict(_list_all_types())  # by names such as "model.d_model"


def holds(note: Unused, values: Mapping[str, Any]) -> bool:
    """Returns whether the cause has a value that takes the effect of a field away."""
    value, names = values[note.cause], FIELD_TYPES[note.cause].names
    are_listed = [
        each in note.values or (REGISTERED in note.values and each not in names)
        for each in (value.split("+") if note.cause == "data.source" else [value])
    ]
    found = all(are_listed) if note.is_beside else not any(are_listed)
    return found and (note.also is None or holds(note.also, values))


def fields_with(*roles: Role) -> list[str]:
    """Returns the names of the config's fields with one of these roles."""
    return [name for name, kind in FIELD_TYPES.items() if kind.role in roles]


def flatten(config: Config | Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Returns the config, or a section of it, as one flat dict: {"model.d_model": 512, ...}."""
    flat: dict[str, Any] = {}
    values = config if isinstance(config, Mapping) else dataclasses.asdict(config)
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{section}{name}.")
        else:
            flat[f"{section}{name}"] = value
    return flat


def describe_unknown_field(name: str, known: Collection[str] = ()) -> str:
    """Returns advice on a name that is not a single field; `known`: by default the config's."""
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
    """Returns the error for a field that is read but does not exist; None: of another object."""
    if isinstance(error.obj, Fields):
        return _make_field_error(type(error.obj), str(error.name))
    return None


def _make_field_error(kind: type[Fields], name: str, written: str = "") -> ConfigError:
    """Returns the error for an unknown field of a class; `written` is the text after its name."""
    sections = {field.type: f"{field.name}." for field in dataclasses.fields(Config)}
    place = f"{sections.get(kind, '')}{name}"
    own = dataclasses.fields(kind)  # type: ignore[arg-type]  # all are dataclasses
    known = [] if kind in (Config, *sections) else [field.name for field in own]
    return ConfigError(f"{place}{written}: {describe_unknown_field(place, known)}")
