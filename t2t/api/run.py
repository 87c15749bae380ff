"""`Run`, a trained model for notebooks and scripts: translations, scores, logits, attention."""

import dataclasses
import functools
import html
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsInt

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from t2t.analysis.attention_map import AttentionMap, map_attention
from t2t.api.encoder_states import EncoderStates, StateEncoder, warn_of_long_sentences
from t2t.api.fill_gaps import make_filler
from t2t.api.text_arguments import read_ids, read_pairs, read_text, read_texts
from t2t.config.field_types import PositiveInt
from t2t.config.fields import Config, ConfigError
from t2t.config.files import override_decoding, read_argument
from t2t.data.batch import BOS_ID, PAD_ID
from t2t.data.corpus import DataError
from t2t.data.tokenizer import Tokenizer
from t2t.data.unknown_characters import UnknownCharacters
from t2t.decoding.continuation import Continuer
from t2t.decoding.translation import Translation
from t2t.decoding.translator import Translator
from t2t.evaluation.find_evaluations import list_evaluations
from t2t.evaluation.likelihood import (
    TEXT_MODELS,
    MaskedScorer,
    PairScorer,
    check_scores,
    count_several,
    warn_of_whole_pairs,
)
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.passport import Passport
from t2t.evaluation.plots import draw_by_step, embed_figure
from t2t.evaluation.requests import ModelRequest
from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError
from t2t.model.parameters import Params
from t2t.training.provenance import hash_params
from t2t.training.run_directory import RunError, read_curve


@functools.cache
def _find_process() -> int:
    """Returns the process that first asked for it, also in its forks."""
    return os.getpid()


def check_process() -> None:
    """Raises `RunError` in a fork of a process that has used JAX, where JAX would wait for ever."""
    if os.getpid() != _find_process():
        raise RunError(
            "this process is a fork of one that has used JAX, which cannot compute in it; start it "
            "with multiprocessing.get_context('spawn'), and call t2t.load in it"
        )


class Run:
    """A run's model with the parameters of one checkpoint, or an ensemble.

    Compiled functions are kept: a second call with sentences of similar lengths compiles nothing.

    Attributes:
        workdir: the run directory; the first one of an ensemble.
        checkpoint: the checkpoint's step, or "best-STEP", "avgCOUNT-STEP" or "ema-STEP"; those of
            an ensemble joined by commas.
        config: the run's config.
        vocabulary: the run's tokenizers, `src` and `tgt`.
    """

    def __init__(self, model: RunModel):
        """Restores the parameters, and places them on the mesh of all devices.

        Raises:
            ConfigError, RunError: a checkpoint does not exist, or does not fit config and
                vocabulary.
        """
        self._loaded, self.workdir = model, model.request.workdir
        self.config, self.vocabulary = model.config, model.vocabulary
        self._restored, labels = model.restore()
        self.checkpoint = ",".join(labels)
        self._placed = model.place(self._restored)
        self._translators: dict[tuple[Any, ...], Translator] = {}  # by fields of config.decoding
        self._state_encoders: dict[str | None, StateEncoder] = {}  # by dtype
        self._scorer: PairScorer | MaskedScorer | None = None

    def __reduce__(self) -> Any:
        raise RunError(f"{self!r} cannot be sent to another process; call t2t.load there")

    @property
    def _model(self) -> RunModel:
        check_process()
        return self._loaded

    @functools.cached_property
    def params(self) -> Params:
        """Nested dictionaries of float32 arrays, whole on the default device.

        Of an ensemble {"models": {0: ..., 1: ...}}.
        """
        params: Params = jax.device_put(self._restored)
        return params

    @property
    def request(self) -> ModelRequest:
        """The run directories and checkpoints, as they were asked for."""
        return self._loaded.request

    @property
    def held(self) -> tuple[Params, list[str]]:
        """The parameters with which it computes, on the host, and their checkpoints' labels."""
        return self._restored, self.checkpoint.split(",")

    def find_evaluation(self, split: str) -> Evaluation:
        """Returns the newest evaluation, in the run directory, of the parameters that it holds.

        Raises:
            EvaluationError: there is none of this split.
        """
        members, digest = self._loaded.members, hash_params(self._restored)
        own = self._model.config.data
        combined = ([*members.weights], members.mean) if len(members.weights) > 1 else ([], "")

        def is_own(passport: Passport) -> bool:
            origin, data = passport.origin, passport.data
            saved = origin.get("ensemble", {"members": [], "mean": ""})
            weights = [member["weight"] for member in saved["members"]]
            direction = data.get("direction", "")
            if not own.mixture:  # which has facts of a task
                direction = self.request.task or direction
            return (
                (data["split"], origin.get("parameters")) == (split, digest)
                and (weights, saved["mean"]) == combined
                and data.get("direction", "") == direction
                and data.get("task", "") == (own.task if own.mixture else "")
            )

        found = [each for each in list_evaluations(self.workdir) if is_own(each.passport)]
        if not found:
            raise EvaluationError(
                f"{self.workdir} holds no evaluation of {split} with the parameters of {self!r}; "
                f"create one: t2t.evaluate(run, {split!r})"
            )
        return found[-1]

    def _find_scorer(self) -> PairScorer | MaskedScorer:
        model = self._model
        self._scorer = self._scorer or model.make_scorer()
        return self._scorer

    def __repr__(self) -> str:
        return f"Run({str(self.workdir)!r}, checkpoint={self.checkpoint!r})"

    def _repr_html_(self) -> str:
        """The curves of a training: losses, and what the true source is worth; in nats a token.

        An imported model has none.
        """
        names = "train/loss", "validation/loss", "validation/source_use"
        curves = {name: curve for name in names if (curve := read_curve(self.workdir, name))}
        figure = (
            embed_figure(draw_by_step(curves, "nats a token"), "curves by step") if curves else ""
        )
        return f"<p><code>{html.escape(repr(self))}</code></p>{figure}"

    def encode(self, sentences: Iterable[str], side: str = "src") -> list[list[int]]:
        """Returns the ids of each sentence's sub-words, from the tag of a direction to EOS.

        Args:
            sentences: as in `translate`.
            side: src or tgt.

        Raises:
            ConfigError: there is no such side.
            DataError: as in `translate`.
        """
        return self._find_tokenizer(side).encode(read_texts("sentences", sentences))

    def decode(self, ids: Iterable[Iterable[SupportsInt]], side: str = "tgt") -> list[str]:
        """Returns the text of each row of ids up to its first EOS, without special sub-words.

        Raises:
            ConfigError: there is no side of this name; it is src or tgt.
            DataError: `ids` are no rows of integers, or one is none of the vocabulary's.
        """
        tokenizer = self._find_tokenizer(side)
        return tokenizer.decode(read_ids("ids", ids, tokenizer.vocab_size))

    def translate(
        self,
        sentences: Iterable[str],
        beam_size: int | None = None,
        alpha: float | None = None,
        *,
        prefixes: Iterable[str] | None = None,
        **decoding: float | str | None,
    ) -> list[str]:
        """Translates each sentence, like `t2t.translate`.

        Args:
            sentences: raw text, in a list or anything that can be iterated over. White space at
                both ends is no part of a sentence, and a line break within is a space. A sentence
                without a visible character has an empty translation.
            beam_size: by default the config's; 1 is greedy search.
            alpha: exponent of the length penalty; by default the config's.
            prefixes: text with which each translation begins, "" for none.
            decoding: other fields of `config.decoding`, for example strategy="sampling".

        Raises:
            ConfigError: a field of `config.decoding` is unknown or out of range, or a prefix is too
                long.
            DataError: `sentences` is a single string, an element is no text, or there are not as
                many prefixes.
        """
        decoding |= {"beam_size": beam_size, "alpha": alpha}
        return self._find_best(*self._prepare(sentences, prefixes, decoding))

    def translate_n_best(
        self,
        sentences: Iterable[str],
        n_best: int,
        *,
        prefixes: Iterable[str] | None = None,
        **decoding: float | str | None,
    ) -> list[list[Translation]]:
        """Finds `n_best` translations of each sentence, best first, with scores and lengths.

        With strategy="sampling" these are `n_best` samples, in the order of their numbers. For the
        other arguments and errors see `translate`; `mbr`, which chooses one, and another
        `num_samples` are refused.
        """
        count = read_n_best(n_best, decoding)
        return self._find_n_best(count, *self._prepare(sentences, prefixes, decoding))

    def generate(
        self, prompts: Iterable[str], *, stop: Iterable[str] = (), **decoding: float | str | None
    ) -> list[str]:
        """Continues each prompt, like `t2t.generate`; returns prompts with what follows.

        Args:
            prompts: the beginnings of texts, which stay as they are; "" gives a whole text.
            stop: texts before the first of which an output ends.
            decoding: as in `translate`; lengths are of what follows a prompt.

        Raises:
            ConfigError: as in `translate`, or the run's model continues no text, or never writes a
                stop text.
            DataError: as in `translate`, or a prompt exceeds the model's positions.
        """
        return self._find_best(*self._prepare_prompts(prompts, stop, decoding))

    def generate_n_best(
        self,
        prompts: Iterable[str],
        n_best: int,
        *,
        stop: Iterable[str] = (),
        **decoding: float | str | None,
    ) -> list[list[Translation]]:
        """Finds `n_best` continuations of each prompt, best first, or draws as many samples.

        Scores, lengths and ids are those of what follows the prompt. For the arguments and errors
        see `generate` and `translate_n_best`.
        """
        count = read_n_best(n_best, decoding)
        return self._find_n_best(count, *self._prepare_prompts(prompts, stop, decoding))

    def fill(self, text: str, n_best: int = 1, **decoding: float | str | None) -> list[Translation]:
        """Fills the gaps of a text, like `t2t.generate --fill`; returns the `n_best`, best first.

        Args:
            text: gaps are <extra_id_0>, <extra_id_1>, ..., or [MASK] for each masked sub-word.
            n_best: number of outputs, or of samples. Of masks, output n has the n-th most probable
                sub-word of each.
            decoding: as in `translate`; masks take `batch_size` alone.

        Returns:
            Outputs with the whole text, which stays as it is around the gaps, and `gaps`, what
            fills each one with its log P.

        Raises:
            ConfigError: as in `translate`, or the run's model fills no gaps.
            DataError: the text has no gaps or others, or is too long.
        """
        texts, count = [read_text("text", text)], read_n_best(n_best, decoding)
        if decoding.get("split_sentences") is not None:
            raise ConfigError("split_sentences: gaps are filled in whole texts; leave it out")
        make = functools.partial(make_filler, self._model)
        translator = self._find_translator(override_decoding(self.config, decoding), make, "fill")
        [found] = self._find_n_best(count, texts, None, translator)
        return found

    def _find_best(
        self, texts: list[str], prefixes: list[str] | None, translator: Translator
    ) -> list[str]:
        if (count := translator.config.num_samples) > 1 and translator.config.mbr == "none":
            raise ConfigError(
                f"num_samples={count}, but one output is returned; use translate_n_best or "
                "generate_n_best, or mbr to choose one"
            )
        found = self._model.translate(translator, self._placed, texts, prefixes=prefixes)
        return [best.text for best, *_ in found]

    def _find_n_best(
        self, n_best: int, texts: list[str], prefixes: list[str] | None, translator: Translator
    ) -> list[list[Translation]]:
        if (mbr := translator.config.mbr) != "none":
            raise ConfigError(f"mbr={mbr!r} chooses one output; leave it out, or ask for one text")
        return self._model.translate(translator, self._placed, texts, n_best, prefixes=prefixes)

    def _prepare_prompts(
        self,
        prompts: Iterable[str],
        stop: Iterable[str],
        decoding: Mapping[str, float | str | None],
    ) -> tuple[list[str], None, Translator]:
        """Checks the arguments of a continuation; returns them in the order of `_prepare`."""
        texts, stops = read_texts("prompts", prompts), read_texts("stop", stop)
        config, members = override_decoding(self.config, decoding), self._model.members
        make = functools.partial(Continuer, vocabulary=self.vocabulary, members=members, stop=stops)
        return texts, None, self._find_translator(config, make, *stops)

    def _prepare(
        self,
        sentences: Iterable[str],
        prefixes: Iterable[str] | None,
        decoding: Mapping[str, float | str | None],
    ) -> tuple[list[str], list[str] | None, Translator]:
        """Checks the arguments of a translation; returns texts, prefixes and the translator."""
        texts = read_texts("sentences", sentences)
        starts = None if prefixes is None else read_texts("prefixes", prefixes)
        if starts is not None and len(starts) != len(texts):
            raise DataError(
                f"{len(starts)} prefixes for {len(texts)} sentences; give one for each, or "
                '"" for none'
            )
        return texts, starts, self._find_translator(override_decoding(self.config, decoding))

    def score(self, pairs: Iterable[Iterable[str]]) -> Float[np.ndarray, "n"]:
        """Computes log p(tgt | src) of each pair (source, target) in nats, EOS included.

        Computes in float32 under teacher forcing, like the program `t2t.evaluate`. A pair is scored
        whole, even if it is longer than those of training. A run of data.objective="lm" takes texts
        instead, and so does one of "masked_lm", whose score is the pseudo-log-likelihood without
        EOS (Salazar et al. 2020).

        Raises:
            DataError: an element is not a pair of strings, or a sentence has more sub-words than
                the model has positions.
        """
        tokens = self.score_tokens(pairs)
        return np.array([np.sum(each, dtype=np.float64) for each in tokens])

    def score_tokens(self, pairs: Iterable[Iterable[str]]) -> list[Float[np.ndarray, "_"]]:
        """Computes the log-probability of each sub-word of the targets, EOS included, in nats.

        Raises:
            DataError: as in `score`.
        """
        if self.config.data.objective in TEXT_MODELS:
            texts = [("", text) for text in read_texts("texts", pairs)]
        else:
            texts = read_pairs("pairs", pairs)
        encoded = self._encode_pairs(texts, "split the sentence")
        longest = self.config.data.max_length
        longer = sum(max(map(len, both)) > longest for both in encoded)
        several = count_several(self.config, self.vocabulary, [src for src, _ in texts])
        warn_of_whole_pairs(longer, several, len(encoded), longest)
        unknown = UnknownCharacters()
        unknown.count_pairs(self.vocabulary, texts)
        unknown.warn()
        with jax.set_mesh(self._model.mesh):
            return self._find_scorer().score(self._placed, encoded)

    def encode_states(self, sentences: Iterable[str], dtype: str | None = None) -> EncoderStates:
        """Computes the encoder's output for each sentence, to which a decoder attends.

        The states of a sentence do not depend on the others, but for rounding. A sentence is
        encoded whole, even if it is longer than those of training.

        Args:
            sentences: as in `translate`.
            dtype: of the computation and the states, float32 or bfloat16; None: that of
                `config.model.dtype`.

        Raises:
            ConfigError: the model has no encoder, or this is an ensemble.
            DataError: as in `translate`, or a sentence has more sub-words than the model has
                positions.
        """
        texts = read_texts("sentences", sentences)
        if dtype not in self._state_encoders:
            self._state_encoders[dtype] = StateEncoder(self._model, dtype)
        encoder, encoded = self._state_encoders[dtype], self.vocabulary.src.encode(texts)
        for text, ids in zip(texts, encoded, strict=True):
            _check_length(text, ids, encoder.limit, "split the sentence")
        longest = self.config.data.max_length
        warn_of_long_sentences(sum(len(ids) > longest for ids in encoded), len(encoded), longest)
        unknown = UnknownCharacters()
        unknown.count(self.vocabulary.src, texts)
        unknown.warn()
        with jax.set_mesh(self._model.mesh):
            return encoder.encode(self._placed, encoded)

    def attention(self, src: str, tgt: str | None = None, stack: str = "cross") -> AttentionMap:
        """Computes the attention weights of every head for one pair, on the default device.

        Args:
            src: the source sentence.
            tgt: the target, given to the decoder (teacher forcing); None: the translation.
            stack: encoder, decoder (both self-attention), or cross (of the decoder to the source).

        Returns:
            Weights [layer, head, query, key] with the sub-words of queries and keys. A notebook
            shows a map of each head.

        Raises:
            ConfigError: there is no such stack, or the model is no single Transformer.
            DataError: a side is no text, or has more sub-words than the model has positions.
        """
        if self.config.model.kind != "transformer" or len(self._model.members.configs) > 1:
            raise ConfigError(
                f"run.attention shows one model of model.kind='transformer', but {self!r} has "
                f"{len(self._model.members.configs)} of model.kind={self.config.model.kind!r}"
            )
        src = read_text("src", src)
        pair = src, self.translate([src])[0] if tgt is None else read_text("tgt", tgt)
        self._encode_pairs([pair], "give a shorter sentence")
        return map_attention(self._find_translator(self.config), self.params, pair, stack)

    def logits(self, src: ArrayLike | str, tgt: ArrayLike | str) -> Float[Array, "B T V"]:
        """Computes the model's logits in float32, without dropout, on the default device.

        Args:
            src: a sentence; or ids [B, S], of which each row is a sentence ending in EOS (2), then
                padding (0).
            tgt: its target; or ids [B, T], the decoder's input, of which each row is BOS (1) and
                the target without EOS, then padding.

        Returns:
            The logits of each next sub-word: [0, t] are those of `run.encode([tgt], "tgt")[0][t]`.

        Raises:
            DataError: the shapes, dtypes or values of the ids are invalid, or a row is longer than
                the model has positions.
        """
        check_scores(self.config)
        if isinstance(src, str) or isinstance(tgt, str):
            pair = read_text("src", src), read_text("tgt", tgt)
            [(src_ids, tgt_ids)] = self.vocabulary.encode_pairs([pair])
            src, tgt = [src_ids], [[BOS_ID, *tgt_ids[:-1]]]
        sources = self._read_rows("src", src, self.vocabulary.src)
        targets = self._read_rows("tgt", tgt, self.vocabulary.tgt)
        if len(sources) != len(targets):
            raise DataError(
                f"src has {len(sources)} rows and tgt {len(targets)}; row i of both is one pair"
            )
        scorer = self._find_scorer()
        assert isinstance(scorer, PairScorer)
        logits: Float[Array, "B T V"] = scorer.compute_logits(self.params, sources, targets)
        return logits

    def _encode_pairs(
        self, pairs: list[tuple[str, str]], remedy: str
    ) -> list[tuple[list[int], list[int]]]:
        """Returns the ids of pairs, if the model has positions for all sub-words with EOS."""
        encoded, limit = self.vocabulary.encode_pairs(pairs), self._find_scorer().limit
        for pair, both in zip(pairs, encoded, strict=True):
            for sentence, ids in zip(pair, both, strict=True):
                _check_length(sentence, ids, limit, remedy)
        return encoded

    def _find_tokenizer(self, side: str) -> Tokenizer:
        if side not in ("src", "tgt"):
            raise ConfigError(f"side={side!r} is unknown; use src or tgt")
        return self.vocabulary.src if side == "src" else self.vocabulary.tgt

    def _find_translator(
        self, config: Config, make: Callable[[Config], Translator] | None = None, *named: str
    ) -> Translator:
        """The translator, or what `make` creates and `named` tells apart, with these fields."""
        key = make and named, dataclasses.astuple(config.decoding)
        if key not in self._translators:
            own = make(config) if make else self._model.make_translator(config=config)
            self._translators[key] = own
        return self._translators[key]

    def _read_rows(self, name: str, ids: ArrayLike, tokenizer: Tokenizer) -> Int[np.ndarray, "B T"]:
        rows, limit = read_ids(name, ids, tokenizer.vocab_size), self._find_scorer().limit
        lengths = sorted({*map(len, rows)})
        if len(lengths) != 1 or lengths == [0]:
            found = ", ".join(map(str, lengths)) or "no"
            raise DataError(f"{name} has rows of {found} ids; pad them with {PAD_ID} to one length")
        if lengths[0] > limit:
            raise DataError(
                f"{name} has {lengths[0]} positions, but the model has "
                f"model.max_positions={limit}; give shorter rows"
            )
        return np.array(rows, np.int32)


def read_n_best(n_best: object, decoding: Mapping[str, object]) -> int:
    """Returns the number of outputs, which is the number of samples, too.

    Raises:
        ConfigError: it is no positive number, or `decoding` has another number of samples.
    """
    count: int = read_argument("n_best", n_best, PositiveInt)
    if (samples := decoding.get("num_samples")) not in (None, count):
        raise ConfigError(
            f"num_samples={samples} has no effect beside n_best={count}, which says how many "
            "samples are drawn; leave it out"
        )
    return count


def _check_length(sentence: str, ids: list[int], limit: int, remedy: str) -> None:
    if len(ids) > limit:
        raise DataError(
            f"{sentence[:40]!r}... has {len(ids)} sub-words with EOS, but the model has "
            f"model.max_positions={limit}; {remedy}"
        )
