"""`Run`, a trained model for notebooks and scripts: translations, scores and logits."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from t2t.config.fields import Config, MeshConfig
from t2t.config.files import load_config, override
from t2t.data.batch import PAD_ID, pad_sentences
from t2t.data.batch_sharding import put_batch
from t2t.data.corpus import DataError
from t2t.data.loader import make_batch
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.length_batching import group_by_length
from t2t.decoding.translation import Translation
from t2t.decoding.translator import Translator
from t2t.model.build import describe_model, merge
from t2t.model.interface import Params
from t2t.runtime.mesh import make_mesh
from t2t.training.checkpoint import restore_params
from t2t.training.step import make_eval_step
from t2t.training.validation import DTYPE

_NO_LIMIT = 2**30  # positions


def open_run(workdir: Path, checkpoint: str) -> "Run":
    """Reads a run directory; see `t2t.load`."""
    config = load_config(workdir / "config.json")
    vocabulary = Vocabulary.load(workdir / "vocab")
    params, label = restore_params(workdir, checkpoint)
    return Run(workdir, label, config, vocabulary, params)


class Run:
    """A run's model with the parameters of one checkpoint.

    Compiled functions are kept: a second call with sentences of similar lengths compiles nothing.

    Attributes:
        workdir: the run directory.
        checkpoint: the checkpoint's step, or "best-STEP" or "avgCOUNT-STEP".
        config: the run's config.
        vocabulary: the run's tokenizers, `src` and `tgt`.
        params: nested dictionaries of float32 arrays, on the default device.
    """

    def __init__(
        self, workdir: Path, checkpoint: str, config: Config, vocabulary: Vocabulary, params: Params
    ):
        """Places a copy of the parameters on the mesh of all devices.

        Raises:
            ConfigError: the parameters do not fit the config and vocabulary.
        """
        self.workdir, self.checkpoint = workdir, checkpoint
        self.config, self.vocabulary, self.params = config, vocabulary, params
        self._translators: dict[tuple[Any, ...], Translator] = {}  # by fields of config.decoding
        self._mesh = make_mesh(MeshConfig())
        with jax.set_mesh(self._mesh):
            self._placed = self._find_translator(config).place(params)
        limit = config.model.position_limit
        self._limit = _NO_LIMIT if limit is None else limit
        sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
        structure, _ = describe_model(dataclasses.replace(config.model, dtype=DTYPE), *sizes)
        self._eval_step = make_eval_step(structure)

        def compute_logits(
            params: Params, src: Int[Array, "B S"], tgt: Int[Array, "B T"]
        ) -> Float[Array, "B T V"]:
            return merge(structure, params)(src, tgt).astype(jnp.float32)

        self._compute_logits = jax.jit(compute_logits)

    def __repr__(self) -> str:
        return f"Run({str(self.workdir)!r}, checkpoint={self.checkpoint!r})"

    def translate(
        self,
        sentences: Sequence[str],
        beam_size: int | None = None,
        alpha: float | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        **decoding: float | str | None,
    ) -> list[str]:
        """Translates each sentence, like the program `t2t.translate`.

        Args:
            sentences: raw text.
            beam_size: by default the config's; 1 is greedy search.
            alpha: exponent of the length penalty; by default the config's.
            prefixes: text with which each translation begins, "" for none.
            decoding: other fields of `config.decoding`, for example strategy="sampling".

        Raises:
            ConfigError: a field of `config.decoding` is unknown or out of range, or a prefix is too
                long.
            DataError: `sentences` is a single string, or there are not as many prefixes.
        """
        decoding |= {"beam_size": beam_size, "alpha": alpha}
        found = self._translate(sentences, 1, prefixes, decoding)
        return [best.text for best, *_ in found]

    def translate_n_best(
        self,
        sentences: Sequence[str],
        n_best: int,
        *,
        prefixes: Sequence[str] | None = None,
        **decoding: float | str | None,
    ) -> list[list[Translation]]:
        """Finds `n_best` translations of each sentence, best first, with scores and lengths.

        With strategy="sampling" these are `n_best` samples, in the order of their numbers. For the
        other arguments and errors see `translate`.
        """
        return self._translate(sentences, n_best, prefixes, decoding)

    def _translate(
        self,
        sentences: Sequence[str],
        n_best: int,
        prefixes: Sequence[str] | None,
        decoding: Mapping[str, float | str | None],
    ) -> list[list[Translation]]:
        if isinstance(sentences, str):  # it would be treated as a list of characters
            raise DataError(f"sentences is one string, {sentences[:40]!r}; give a list of them")
        if prefixes is not None and len(prefixes) != len(sentences):
            raise DataError(
                f"{len(prefixes)} prefixes for {len(sentences)} sentences; give one for each, or "
                '"" for none'
            )
        given = {f"decoding.{k}": v for k, v in decoding.items() if v is not None}
        translator = self._find_translator(override(self.config, given))
        with jax.set_mesh(self._mesh):
            return translator.translate_n_best(self._placed, sentences, n_best, prefixes=prefixes)

    def score(self, pairs: Sequence[Sequence[str]]) -> Float[np.ndarray, "n"]:
        """Computes log p(tgt | src) of each pair (source, target) in nats, EOS included.

        Computes in float32 under teacher forcing, like the program `t2t.evaluate`.

        Raises:
            DataError: an element is not a pair, or a sentence has more sub-words than the model
                has positions.
        """
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2:
                raise DataError(f"{pair!r} is not a pair (source, target) of sentences")
        src = self._encode(self.vocabulary.src, [src for src, _ in pairs])
        tgt = self._encode(self.vocabulary.tgt, [tgt for _, tgt in pairs])
        lengths = [max(len(s), len(t)) for s, t in zip(src, tgt, strict=True)]
        log_probs = np.zeros(len(pairs))
        with jax.set_mesh(self._mesh):
            batches = group_by_length(lengths, self._limit, self.config.decoding.batch_size)
            for length, rows, indices in batches:
                sides = (
                    pad_sentences([side[i] for i in indices], rows, length) for side in (src, tgt)
                )
                batch = put_batch(make_batch(*sides), self._mesh)
                nats, _ = self._eval_step(self._placed, batch)
                log_probs[indices] = -np.asarray(nats)[: len(indices)]
        return log_probs

    def logits(self, src: ArrayLike, tgt: ArrayLike) -> Float[Array, "B T V"]:
        """Computes the model's logits in float32, without dropout, on the default device.

        Args:
            src: ids [B, S]; each row is a sentence ending in EOS (2), then padding (0).
            tgt: ids [B, T], the decoder's input; each row is BOS (1) and the target without EOS,
                then padding.

        Raises:
            DataError: the shapes, dtypes or values of the ids are invalid, or a row is longer than
                the model has positions.
        """
        sources = self._check_ids("src", src, self.vocabulary.src)
        targets = self._check_ids("tgt", tgt, self.vocabulary.tgt)
        if len(sources) != len(targets):
            raise DataError(
                f"src has {len(sources)} rows and tgt {len(targets)}; row i of both is one pair"
            )
        logits: Float[Array, "B T V"] = self._compute_logits(self.params, sources, targets)
        return logits

    def _find_translator(self, config: Config) -> Translator:
        key = dataclasses.astuple(config.decoding)
        if key not in self._translators:
            self._translators[key] = Translator(config, self.vocabulary)
        return self._translators[key]

    def _encode(self, tokenizer: Tokenizer, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, ending in EOS."""
        found = tokenizer.encode(sentences)
        for sentence, ids in zip(sentences, found, strict=True):
            if len(ids) > self._limit:
                raise DataError(
                    f"{sentence[:40]!r}... has {len(ids)} sub-words with EOS, but the model has "
                    f"model.max_positions={self._limit}; split the sentence"
                )
        return found

    def _check_ids(self, name: str, ids: ArrayLike, tokenizer: Tokenizer) -> Int[np.ndarray, "B T"]:
        try:
            array = np.asarray(ids)
        except ValueError:
            raise DataError(
                f"{name} has rows of different lengths; pad them with {PAD_ID}"
            ) from None
        if array.ndim != 2 or not array.size or not np.issubdtype(array.dtype, np.integer):
            raise DataError(
                f"{name} is {array.dtype}{list(array.shape)}; give integer ids, one row for each "
                "sentence"
            )
        if array.shape[1] > self._limit:
            raise DataError(
                f"{name} has {array.shape[1]} positions, but the model has "
                f"model.max_positions={self._limit}; give shorter rows"
            )
        wrong = array[(array < 0) | (array >= tokenizer.vocab_size)]
        if wrong.size:
            raise DataError(
                f"{name} holds the id {wrong[0]}; use ids of run.vocabulary.{name}, "
                f"0 to {tokenizer.vocab_size - 1}"
            )
        return array.astype(np.int32)
