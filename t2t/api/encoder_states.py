"""`EncoderStates`: the encoder's output for sentences; `export_states` writes it to files."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t2t.api.line_translator import decode_lines
from t2t.config.field_types import NonNegativeInt
from t2t.config.fields import ConfigError
from t2t.config.files import override, read_argument
from t2t.data.batch import find_limit, group_by_length, pad_sentences
from t2t.data.corpus import DataError
from t2t.data.unknown_characters import UnknownCharacters
from t2t.decoding.bulk import BulkPart, process_files
from t2t.evaluation.load_models import RunModel, identify_running_code
from t2t.evaluation.requests import ModelRequest
from t2t.interop.hugging_face_folder import format_safetensors
from t2t.model.parameters import Params, check_params, merge
from t2t.ops.build_model import abstract_model
from t2t.ops.select_kernels import choose_policy
from t2t.runtime.mesh import put_like, reshard, spec
from t2t.storage.open_text import open_text
from t2t.training.provenance import hash_params

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EncoderStates:
    """The encoder's output for sentences, to which a decoder attends; P sub-words in all.

    Attributes:
        states: the states of all sentences, one after the other, without padding.
        offsets: sentence n has the rows from `offsets[n]` up to `offsets[n + 1]`, so there is one
            number more than sentences.
        ids: the sub-word of each row, as `Run.encode` returns it: from the tag of a direction to
            EOS.
    """

    states: Float[np.ndarray, "P D"]
    offsets: Int[np.ndarray, "_"]
    ids: Int[np.ndarray, "P"]

    def split(self) -> list[Float[np.ndarray, "_ D"]]:
        """Returns the states of each sentence."""
        return [self.states[start:end] for start, end in itertools.pairwise(self.offsets)]

    def pad(
        self, length: int | None = None
    ) -> tuple[Float[np.ndarray, "B S D"], Bool[np.ndarray, "B S"]]:
        """Returns the states with zeros behind each sentence, and the mask, True at sub-words.

        Args:
            length: S; None: the length of the longest sentence.

        Raises:
            ConfigError: `length` is no number of sub-words.
            DataError: a sentence is longer.
        """
        length = read_argument("length", length, NonNegativeInt | None)
        lengths = np.diff(self.offsets)
        longest = int(lengths.max(initial=0))
        if length is not None and length < longest:
            raise DataError(
                f"length={length}, but a sentence has {longest} sub-words with EOS; give at least "
                f"{longest}, or shorter sentences"
            )
        mask = np.arange(longest if length is None else length) < lengths[:, None]
        padded = np.zeros((*mask.shape, self.states.shape[1]), self.states.dtype)
        padded[mask] = self.states
        return padded, mask


class StateEncoder:
    """Computes the encoder's output with a run's model; compiles once for each batch shape."""

    def __init__(self, model: RunModel, dtype: str | None = None, limit: int = 2**30):
        """Computes in `dtype`, a value of model.dtype; None: the run's.

        `limit` bounds a sentence, in sub-words with EOS.

        Raises:
            ConfigError: the dtype is unknown, or the model has no encoder, or several.
        """
        if (count := len(model.members.configs)) > 1:
            raise ConfigError(
                f"encoder states are those of one model, not of an ensemble of {count}; name one "
                "run and checkpoint"
            )
        config = model.config.model
        if dtype is not None:
            config = override(model.config, {"model.dtype": dtype}).model
        self._config = config
        self._describe = functools.partial(abstract_model, config, *model.vocabulary.sizes)
        structure, declared = self._describe()
        if not hasattr(merge(structure, declared), "encode"):
            raise ConfigError(
                f"model.kind={config.kind!r} has no encoder; name a run of "
                "model.kind='transformer', 'encoder_only' or 'rnn'"
            )
        self.limit = min(limit, config.position_limit or limit)
        self._batch_size = model.config.decoding.batch_size

        def encode(params: Params, src: Int[Array, "B S"]) -> Float[Array, "B S D"]:
            memory, _ = merge(structure, params).encode(src)
            return reshard(memory, None)

        self._encode = jax.jit(encode)
        traced = jax.make_jaxpr(encode)(declared, jax.ShapeDtypeStruct((2, 1), np.int32))
        [self._result] = traced.out_avals
        used = {id(variable) for operation in traced.eqns for variable in operation.invars}
        *reads, _ = (id(variable) in used for variable in traced.jaxpr.invars)
        self._reads = jax.tree.unflatten(jax.tree.structure(declared), reads)

    def record(self) -> dict[str, str | int]:
        """Returns the number formats, and the length of the longest sentence with states."""
        products = choose_policy(self._config).describe_products()
        return {"dtype": str(self._result.dtype), "products": products, "longest": self.limit}

    def select(self, params: Params) -> Params:
        """Returns the parameters that the encoder reads; the others are empty.

        Raises:
            ConfigError: the parameters do not fit the config and vocabulary.
        """
        check_params(self._describe()[1], params)
        empty = np.empty(0, np.float32)
        return jax.tree.map(lambda reads, leaf: leaf if reads else empty, self._reads, params)

    def place(self, selected: Params) -> Params:
        """Puts selected parameters on the current mesh, with the sharding that they declare."""
        _, declared = self._describe()
        return jax.tree.map(
            lambda reads, leaf, like: put_like(leaf, like) if reads else leaf,
            self._reads, selected, declared,
        )  # fmt: skip

    def encode(self, params: Params, sentences: Sequence[Sequence[int]]) -> EncoderStates:
        """Encodes sentences of ids ending in EOS; one that is longer than `limit` has no states.

        The parameters are on the current mesh.
        """
        lengths = np.array([len(ids) if len(ids) <= self.limit else 0 for ids in sentences], int)
        fits = [n for n, length in enumerate(lengths) if length]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        states = np.empty((offsets[-1], self._result.shape[-1]), self._result.dtype)

        def fetch(chosen: list[int], found: Float[Array, "B S D"]) -> None:
            for n, row in zip(chosen, np.asarray(found), strict=False):
                states[offsets[n] : offsets[n + 1]] = row[: lengths[n]]

        started = None
        groups = group_by_length(lengths[fits].tolist(), self.limit, self._batch_size)
        for width, rows, places in groups:
            chosen = [fits[place] for place in places]
            src = pad_sentences([sentences[n] for n in chosen], rows, width)
            found = self._encode(params, jax.device_put(src, spec("batch", None)))
            if started:  # the batch before, while the devices compute this one
                fetch(*started)
            started = chosen, found
        if started:
            fetch(*started)
        ids = [token for n in fits for token in sentences[n]]
        return EncoderStates(states, offsets, np.array(ids, np.int32))


def warn_of_long_sentences(count: int, total: int, longest: int) -> None:
    """Warns of sentences that are encoded whole though training had none of their length."""
    if count:
        _log.warning(
            "%d of %d sentences have more than data.max_length=%d sub-words with EOS; they are "
            "encoded whole, though training had none as long",
            count, total, longest,
        )  # fmt: skip


def export_states(
    request: ModelRequest,
    inputs: Mapping[Path, Path],
    part: BulkPart = BulkPart(),  # noqa: B008  (immutable)
    shard_lines: int = 1000,
    *,
    dtype: str | None = None,
) -> None:
    """Writes the states of this process's part of the files; continues after existing shards.

    A shard is a file of safetensors with the arrays of `EncoderStates`. A line that is too long has
    no states, which is reported after the last file.

    `inputs` are those of `t2t.decoding.bulk.find_inputs`: the folder of each file's shards. For
    `dtype` see `StateEncoder`.

    Raises:
        ConfigError: as in `StateEncoder`; a file has no lines, or the output exists with other
            settings or cannot be written.
        RunError: a checkpoint does not exist or cannot be read.
    """
    model = RunModel(request)
    encoder = StateEncoder(model, dtype, find_limit(model.config, model.members.position_limit))
    for path in inputs:
        with open_text(path) as file:
            if not file.read(1):
                raise ConfigError(f"--input: {path} has no lines; leave it out")
    restored, labels = model.restore()
    settings = {
        "runs": [workdir.resolve().name for workdir, _ in request.members],
        "checkpoints": labels,
        "vocabulary": model.vocabulary.fingerprint(),
        "models": model.record_models(),
        **encoder.record(),
        **identify_running_code(__name__),
        "parameters": hash_params(restored),
    }
    selected = encoder.select(restored)
    del restored  # the host needs no room for a large decoder
    longest, counts = model.config.data.max_length, np.zeros(3, int)
    unknown = UnknownCharacters()

    with jax.set_mesh(model.mesh):
        params = encoder.place(selected)

        def process(lines: list[bytes], first: int) -> bytes:
            texts = [*decode_lines(iter(lines), first)]
            unknown.count(model.vocabulary.src, texts)
            ids = model.vocabulary.src.encode(texts)
            lengths = np.array([*map(len, ids)])
            counts[:] += [(lengths > longest).sum(), (lengths > encoder.limit).sum(), len(lengths)]
            return b"".join(format_safetensors(vars(encoder.encode(params, ids))))

        try:
            process_files(inputs, settings, process, shard_lines, part, ".safetensors")
        finally:  # also after Ctrl-C: the next start counts its own lines
            longer, too_long, total = counts.tolist()
            warn_of_long_sentences(longer - too_long, total, longest)
            unknown.warn()
            if too_long:
                _log.warning(
                    "%d of %d lines have no states: they have more than %d sub-words with EOS",
                    too_long, total, encoder.limit,
                )  # fmt: skip
