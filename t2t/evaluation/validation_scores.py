"""`Validation`: the loss on the validation corpora, and how much the model uses the sources.

BLEU and other measures are in `validation_translations`.

A translator gives a reference a higher probability with its own source than with another one. The
difference, the source use, is 0 for a language model of the target, which is what a translator is
until its cross-attention has learned to find words. Its loss falls, too, so the loss alone does not
tell.
"""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from t2t.config.fields import Config, ConfigError, flatten
from t2t.data.batch import PAD_ID, DeviceBatch
from t2t.data.batch_plan import BatchPlan
from t2t.data.corpus import Corpus
from t2t.data.directions import find_route, list_tasks
from t2t.data.loader import Loader, find_row_shards, prefetch, put_batch
from t2t.data.objectives import make_objective
from t2t.data.preparation import tokenize
from t2t.data.token_cache import TokenizedCorpus
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.corpus_loss import DTYPE, CorpusLoss, compute_perplexity, sum_losses
from t2t.model.parameters import Params
from t2t.ops.build_model import abstract_model
from t2t.runtime.mesh import reshard
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training.sharing import Sharing
from t2t.training.step import make_eval_step

_log = logging.getLogger(__name__)

# Nats per token below which a model hardly uses its source. On the phrasebook a model that stayed
# at perplexity 344 reached 0.2 in 200 steps; one that learned had 0.7 after 50 steps and 5.3 after
# 300 (benchmarks/results/source_use/phrasebook.json).
HARDLY = 0.5
# With these a model learned to use it in the measurements of benchmarks/LOG.md.
HELPFUL = {"model.norm_position": "pre", "model.position": "rotary", "training.optimizer": "muon"}
_NORMAL_97_5 = 1.959964  # quantile of the normal distribution


class SourceUse(NamedTuple):
    """The source use of a model, as estimated from some pairs."""

    nats: float  # per target token
    margin: float  # half the width of the 95% interval over pairs


class Validation:
    """Scores parameters on the validation corpora; without corpora it has no scores."""

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        mesh: Mesh,
        corpora: Mapping[str, Corpus],
        programs: SavedPrograms | None = None,
    ):
        """Plans the scoring of each task's corpus, keyed by the name of the task or direction.

        The identity of `programs` covers the config and the vocabulary's size.
        """
        self._every, self._last = config.training.translate_every, config.training.steps
        self._source_use_pairs, self._main = config.training.source_use_pairs, ""
        if config.data.mixture:
            self._main = next(iter(corpora), "")
        tasks = {
            task.task: dataclasses.replace(config, data=task) for task in list_tasks(config.data)
        }
        self._pairs = {name for name in corpora if not tasks[name].data.is_text_alone}
        own = flatten(config)
        self._helpful = {name: value for name, value in HELPFUL.items() if own[name] != value}
        # The step from which it is said that the source is hardly used: later, if all that helped
        # is there, since little text takes longer.
        self._warns_from = max(self._last // (10 if self._helpful else 2), 1)
        sharing = Sharing(config)
        self._pick = {  # the parameters of each task among those of the run
            name: functools.partial(sharing.pick, route=find_route(task.data))
            for name, task in tasks.items()
        }
        self._scorers = {
            name: make_scorer(tasks[name], vocabulary, corpus, mesh, programs=programs)
            for name, corpus in corpora.items()
        }
        self._translations = None
        if self._every and self._pairs:
            from t2t.evaluation.validation_translations import ValidationTranslations

            self._translations = ValidationTranslations(
                tasks, vocabulary, {name: corpora[name] for name in corpora if name in self._pairs}
            )

    def compile(self, params: Params) -> None:
        """Compiles what scoring runs, so that its errors come early."""
        started = time.perf_counter()
        for name, scorer in self._scorers.items():
            scorer.compile(self._pick[name](params))
        if self._translations:
            self._translations.compile(self._pick[next(iter(self._pairs))](params))
        if self._scorers:
            _log.info("compiled validation in %.0f s", time.perf_counter() - started)
        if self._translations:
            self._translations.explain()

    def __call__(self, params: Params, step: int) -> dict[str, float]:
        """Returns the scores of these parameters by name.

        With data.directions they are the loss of all tokens and the means of the directions' other
        scores, and each direction's own scores, such as "loss/en-de". With data.mixture they are
        the scores of the main task, and each task's own.
        """
        if not self._scorers:
            return {}
        losses, scores = {}, {}
        for name, scorer in self._scorers.items():
            own = self._pick[name](params)
            sentences = scorer.score_sentences(own)
            losses[name] = sum_losses(sentences)
            scores[name] = average_loss(losses[name])
            num_pairs = self._source_use_pairs if name in self._pairs else 0
            use = scorer.measure_source_use(own, sentences, num_pairs)
            if use:
                scores[name] |= {"source_use": use.nats, "source_use_margin": use.margin}
                self._warn_of_little_use(step, name, use)
        if self._translations and (step % self._every == 0 or step == self._last):
            for name in self._pairs:
                scores[name] |= self._translations.score(self._pick[name](params), name)
        by_task = {f"{key}/{name}": v for name in scores if name for key, v in scores[name].items()}
        if self._main:
            return scores[self._main] | by_task
        nats, tokens = map(sum, zip(*losses.values(), strict=True))
        first = next(iter(scores.values()))
        shared = [key for key in first if all(key in each for each in scores.values())]
        means = {key: sum(each[key] for each in scores.values()) / len(scores) for key in shared}
        return means | average_loss(CorpusLoss(nats, tokens)) | by_task

    def _warn_of_little_use(self, step: int, name: str, use: SourceUse) -> None:
        """Says once, after a tenth or half of the steps, that the model hardly uses its source."""
        if self._warns_from <= step < self._last and use.nats + use.margin < HARDLY:
            self._warns_from = self._last
            helped = [f"{name}={value}" for name, value in self._helpful.items()]
            _log.warning(
                "step %d:%s the true source is worth %.3f +- %.3f nats a token to the model, so it "
                "is still a language model of the target; what helped in measurements: %s",
                step, f" {name}:" if name else "", use.nats, use.margin,
                ", ".join(helped) or "more pairs, or more steps",
            )  # fmt: skip


class CorpusScorer:
    """Computes the loss of a corpus; compiles once for each of its few batch shapes."""

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        corpus: TokenizedCorpus,
        mesh: Mesh,
        *,
        count_right: bool = False,
        programs: SavedPrograms | None = None,
    ):
        """Plans the batches of the corpus.

        A pair is left out if one of its sides has more sub-words, EOS included, than the model has
        positions. The filters of training do not apply; an empty sentence is kept,
        as a lone EOS. Everything is computed in `DTYPE` instead of `config.model.dtype`.

        Raises:
            ConfigError: no pair is left.
        """
        # `BatchPlan` drops pairs with an empty sentence (only EOS, length 1); length 2 keeps them.
        objective = make_objective(config.data, vocabulary)
        sides = objective.plan_lengths(corpus.lengths)
        lengths = [np.maximum(side, 2) for side in sides]
        longer = np.maximum(*lengths)
        positions = config.model.position_limit
        limit = min(x for x in (positions, int(longer.max())) if x is not None)
        self.num_left_out = int((longer > limit).sum())
        if self.num_left_out == len(longer):
            shortest = longer.min()
            raise ConfigError(
                f"none of the {len(longer)} pairs can be scored: model.max_positions={limit}, but "
                f"even the shortest has {shortest} sub-words, EOS included; train a model with "
                f"model.max_positions={shortest} or more, or split the sentences"
            )
        data = dataclasses.replace(
            config.data, max_length=limit, max_length_ratio=0.0, num_shapes=4
        )
        if positions is not None:
            # Padding takes positions, too. If the multiple divides `limit`, rounding a length up to
            # a multiple never exceeds `limit`.
            data.length_multiple = math.gcd(data.length_multiple, limit)
        model = dataclasses.replace(config.model, dtype=DTYPE)
        structure, _ = abstract_model(model, *vocabulary.sizes)
        self._plan = BatchPlan([(lengths[0], lengths[1])], data, seed=0)
        self._num_pairs = len(longer)
        shards = find_row_shards(mesh)
        self._loader = Loader(self._plan, [corpus], row_shards=shards, objectives=[objective])
        programs = programs or SavedPrograms()
        eval_step = make_eval_step(structure, count_right=count_right)
        self._eval_step = programs.keep(eval_step, closure=("count_right", count_right))
        self._empty = (math.nan, 0.0, 0.0)[: 3 if count_right else 2]
        self._rotate_sources = programs.keep(jax.jit(rotate_sources))
        self._mesh = mesh

    def compile(self, params: Params) -> None:
        """Compiles the step for each batch shape, by running it once."""
        steps = {self._plan.batch(step).shape: step for step in range(self._plan.steps_per_epoch)}
        for step in steps.values():
            batch, _ = self._rotate_sources(put_batch(self._loader.batch(step), self._mesh))
            jax.block_until_ready(self._eval_step(params, batch))

    def score_sentences(self, params: Params) -> Float[np.ndarray, "n _"]:
        """Computes each pair's nats and predicted sub-words, EOS included if it is predicted.

        The parameters must be on the mesh.
        With `count_right` also how many of them are the most probable ones. Pairs that were left
        out have NaN and 0.
        """
        losses = np.full((self._num_pairs, len(self._empty)), self._empty)
        batches = prefetch(self._loader.iterate(0, self._plan.steps_per_epoch), self._mesh)
        sums = [self._eval_step(params, batch) for batch in batches]
        for step, rows in enumerate(jax.device_get(sums)):
            planned = self._plan.batch(step)
            losses[planned.indices] = np.stack(rows, axis=-1)[planned.rows]
        return losses

    def measure_source_use(
        self, params: Params, sentences: Float[np.ndarray, "n _"], num_pairs: int
    ) -> SourceUse | None:
        """Measures what the true sources are worth, from the first batches with `num_pairs` pairs.

        `sentences` are those of `score_sentences`. Pairs whose batch has no other source are left
        out; None if fewer than two are left.
        """
        sizes = [len(self._plan.batch(step).indices) for step in range(self._plan.steps_per_epoch)]
        steps = int(np.searchsorted(np.cumsum([0, *sizes]), min(num_pairs, sum(sizes))))
        sums = []
        for batch in prefetch(self._loader.iterate(0, steps), self._mesh):
            rotated, is_other = self._rotate_sources(batch)
            sums.append((*self._eval_step(params, rotated)[:2], is_other))
        true, other = [], []
        for step, (nats, tokens, is_other) in enumerate(jax.device_get(sums)):
            planned = self._plan.batch(step)
            kept = planned.rows[is_other[planned.rows]]
            true.append(sentences[planned.indices[is_other[planned.rows]], :2])
            other.append(np.stack([nats, tokens], axis=-1)[kept])
        if sum(map(len, true)) < 2:
            return None
        return estimate_source_use(np.concatenate(true), np.concatenate(other))


def make_scorer(
    config: Config,
    vocabulary: Vocabulary,
    corpus: Corpus,
    mesh: Mesh,
    split: str = "validation",
    *,
    count_right: bool = False,
    programs: SavedPrograms | None = None,
) -> CorpusScorer:
    """Returns the scorer of the corpus of a split; says how many of its pairs are left out."""
    tokens = tokenize(corpus, vocabulary, config.data)
    scorer = CorpusScorer(
        config, vocabulary, tokens, mesh, count_right=count_right, programs=programs
    )
    if scorer.num_left_out:
        _log.warning(
            "%s: %d of %d %s have more sub-words than model.max_positions=%d and are left out of "
            "the scores",
            split, scorer.num_left_out, len(corpus),
            "texts" if config.data.is_text_alone else "pairs", config.model.max_positions,
        )  # fmt: skip
    return scorer


def average_loss(loss: CorpusLoss) -> dict[str, float]:
    """Returns a corpus's mean loss and its perplexity."""
    return {"loss": loss.nats / loss.tokens, "perplexity": compute_perplexity(*loss)}


def rotate_sources(batch: DeviceBatch) -> tuple[DeviceBatch, Bool[Array, "B"]]:
    """Gives each row the source of the row before it, and the first row the last one's.

    The rows of a batch have similar lengths, so the other source says as much about the length of
    the target as the true one. Empty rows, which are the last ones, stay empty. Also returns the
    rows whose source is another one than before.
    """
    src = reshard(batch.src, None, None)
    rows, count = jnp.arange(len(src)), jnp.sum(src[:, 0] != PAD_ID)
    rotated = src[jnp.where(rows < count, (rows - 1) % jnp.maximum(count, 1), rows)]
    is_other = jnp.any(rotated != src, axis=-1)
    return batch._replace(src=reshard(rotated, "batch", None)), is_other


def estimate_source_use(
    true: Float[np.ndarray, "n 2"], other: Float[np.ndarray, "n 2"]
) -> SourceUse:
    """Estimates the use from the nats and tokens of pairs with their true and with other sources.

    Its interval is for a ratio of two means, by the variance over n pairs, two or more.
    """
    gains, tokens = other[:, 0] - true[:, 0], true[:, 1]
    nats = gains.sum() / tokens.sum()
    spread = np.var(gains - nats * tokens, ddof=1) * len(gains)
    return SourceUse(float(nats), float(_NORMAL_97_5 * np.sqrt(spread) / tokens.sum()))
