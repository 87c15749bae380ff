"""MetricX as a measure: an mT5 that predicts the errors of a translation, from 0 to 25.

Sources: Juraska et al. 2023 (MetricX-23) and 2024 (MetricX-24), and the programs of their authors,
https://github.com/google-research/metricx. `t2t.import_model` makes a run of such a model. The
input has no EOS. The score is one logit of the first step of the decoder, that of the piece
`<extra_id_10>`. Scores of sentences are kept in memory and in the run, so each is computed once.
"""

import atexit
import functools
import hashlib
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jaxtyping import Array, Float, Int

from t2t.data.batch import BOS_ID, Batch, group_by_length, pad_sentences
from t2t.data.sentences import is_missing
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.measure import Measure, count_scores
from t2t.evaluation.requests import ModelRequest
from t2t.interop.metricx import read_settings
from t2t.model.parameters import Params, merge
from t2t.runtime.distributed import is_first
from t2t.runtime.mesh import reshard, spec
from t2t.storage.atomic_files import warn_of_write_errors, write_file
from t2t.training.provenance import identify_code, read_import

LIMITS = (0.0, 25.0)
DTYPE = "float32"  # of the computation, so that scores can be compared between devices
_REPORT = 30.0  # seconds between reports, at least; each also saves the scores

_log = logging.getLogger(__name__)


class InputFormat(NamedTuple):
    """The input of a version of MetricX; `{}` are source, hypothesis and reference."""

    text: str
    limit: int  # sub-words with EOS; the rest is cut off


INPUTS = {
    "23": InputFormat("candidate: {1} reference: {2}", 1024),
    "23-qe": InputFormat("candidate: {1} source: {0}", 1024),
    "24": InputFormat("source: {0} candidate: {1} reference: {2}", 1536),
    "24-qe": InputFormat("source: {0} candidate: {1}", 1536),
}


def make_metricx(
    _: str, num_references: int, *, model: Path, has_reference: bool = True
) -> Measure:
    """The errors of translations by the MetricX that `t2t.import_model` made the run `model` of.

    Raises:
        ConfigError: the run is no imported MetricX, its name says no version, or it is for texts
            without reference alone, or with one.
    """
    scorer = open_scorer(model, has_reference=has_reference)
    count = num_references if has_reference else 1

    def segments(
        sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Float[np.ndarray, "n 2"]:
        rows = references[:count]
        scores = [scorer.score(sources, hypotheses, lines) for lines in rows]
        given = np.array([[not x for x in map(is_missing, sources, lines)] for lines in rows])
        given |= ~given.any(axis=0)  # without any reference it is scored with the empty one
        return count_scores(np.average(scores, axis=0, weights=given))

    several = f", mean over {count} references, missing ones left out" if count > 1 else ""
    return Measure(
        "", scorer.definition + several, segments,
        limits=LIMITS, is_stored=True,
    )  # fmt: skip


class MetricXScorer:
    """Scores translations; the parameters are read when the first sentence is scored."""

    def __init__(self, workdir: Path, *, has_reference: bool = True):
        """Opens a run; for arguments and errors see `make_metricx`."""
        self._name = "metricx" if has_reference else "metricx_qe"
        flag = f"--measure_model={self._name}={workdir}"
        origin = read_import(workdir) or {}
        version, self._column = read_settings(workdir, origin, flag, has_reference=has_reference)
        self.format = INPUTS[version]
        self._model = RunModel(ModelRequest((workdir,), "last"))
        files = origin["files"].items()
        weights = [x["sha256"] for name, x in files if name.endswith((".safetensors", ".bin"))]
        vocabulary = self._model.vocabulary.fingerprint()
        digest = hashlib.sha256("".join([*sorted(weights), vocabulary]).encode()).hexdigest()
        self.definition = (
            f"MetricX-{version}, errors from 0 to 25, mean of the sentences, in {DTYPE}, inputs of "
            f"at most {self.format.limit} sub-words, weights and vocabulary {digest[:8]}"
        )
        # Scores of other code, weights or devices are not used again, and stay in their own files.
        code = identify_code((), [__name__])
        identity = _hash(json.dumps([digest, jax.devices()[0].device_kind, code]))
        self._path = workdir / f"metricx_scores-{identity}.json"
        self._scores = self._read_scores()
        self._params: Params | None = None
        # Since the last report: sentences that were scored, those that had been, seconds.
        self._new, self._known, self._seconds, self._reported = 0, 0, 0.0, -_REPORT
        size = self._model.vocabulary.tgt.vocab_size
        structure, _ = self._model.members.with_dtype(DTYPE).abstract(size, size)

        def compute(params: Params, src: Int[Array, "B S"]) -> Float[Array, "B"]:
            start = jnp.zeros_like(src[:, :1]) + BOS_ID  # sharded as `src` is
            batch = Batch(src, start, start, jnp.ones_like(start, jnp.float32))
            found = merge(structure, params).predict(batch)
            row = reshard(found.table[self._column].astype(jnp.float32), None)
            logits = jnp.sum(found.hidden[:, 0].astype(jnp.float32) * row, axis=-1)
            return reshard(jnp.clip(logits, *LIMITS), None)

        self._compute = jax.jit(compute)
        atexit.register(self._report)

    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> Float[np.ndarray, "n"]:
        """Returns the errors of each sentence, from 0 to 25: less is better."""
        triples = zip(sources, hypotheses, references, strict=True)
        texts = [self.format.text.format(*triple) for triple in triples]
        keys = [*map(_hash, texts)]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._scores}
        if new:
            started = time.perf_counter()
            self._scores |= zip(new, self._score_texts([*new.values()]).tolist(), strict=True)
            self._seconds += time.perf_counter() - started
        self._new, self._known = self._new + len(new), self._known + len(keys) - len(new)
        if new and time.monotonic() - self._reported > _REPORT:
            self._report()
        return np.array([self._scores[key] for key in keys])

    def _score_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "n"]:
        longest = self.format.limit - 1  # EOS, which the authors remove after cutting
        rows = [ids[:-1] for ids in self._model.vocabulary.src.encode_words(texts)]
        if cut := sum(len(ids) > longest for ids in rows):
            _log.warning(
                "%s: %d of %d inputs have more than %d sub-words; the end of each was cut off",
                self._name, cut, len(rows), longest,
            )  # fmt: skip
        rows = [ids[:longest] for ids in rows]
        params = self._restore()
        found = np.zeros(len(rows))
        size = self._model.config.decoding.batch_size
        started = []
        with jax.set_mesh(self._model.mesh):
            lengths = [len(ids) for ids in rows]
            for length, count, indices in group_by_length(lengths, self.format.limit, size):
                src = pad_sentences([rows[index] for index in indices], count, length)
                placed = jax.device_put(src, spec("batch", None))
                started.append((indices, self._compute(params, placed)))
        shown = is_first() and sys.stderr.isatty()
        with tqdm.tqdm(total=len(rows), unit="sentence", desc=self._name, disable=not shown) as bar:
            for indices, scores in started:
                found[indices] = np.asarray(scores)[: len(indices)]
                bar.update(len(indices))
        return found

    def _restore(self) -> Params:
        if self._params is None:
            params, _ = self._model.restore()
            self._params = self._model.place(params)
        return self._params

    def _read_scores(self) -> dict[str, float]:
        """Reads the scores of earlier programs, by the hash of the input.

        Processes that compute together might read different files, so they read none.
        """
        if jax.process_count() > 1:
            return {}
        try:
            saved = json.loads(self._path.read_text("utf-8"))
            return {str(key): float(score) for key, score in saved.items()}
        except (OSError, ValueError, AttributeError, TypeError):  # none yet, or damaged
            return {}

    def _report(self) -> None:
        """Says how fast scores were computed since the last report, and saves them."""
        new, known, seconds = self._new, self._known, self._seconds
        if not new or not is_first():
            return
        self._new, self._known, self._seconds, self._reported = 0, 0, 0.0, time.monotonic()
        _log.info(
            "%s: %d sentences in %.1f s with compilation (%.1f sentences/s), %d known before",
            self._name, new, seconds, new / seconds, known,
        )  # fmt: skip
        scores = self._read_scores() | self._scores  # another program may have added some
        with warn_of_write_errors(f"the scores of {self._name} are not kept for other programs"):
            write_file(self._path, json.dumps(scores))


open_scorer = functools.cache(MetricXScorer)  # a program has one of each model and kind


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
