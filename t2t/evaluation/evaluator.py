"""Evaluates parameters of one run on one test set, and saves the scores and texts."""

import dataclasses
import functools
import hashlib
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from t2t.config.fields import FIELD_TYPES, Config, ConfigError
from t2t.config.files import override, overrides
from t2t.config.measures import MEASURE_MODULES
from t2t.data.batch import find_limit
from t2t.decoding.translation import Translation
from t2t.evaluation.find_evaluations import list_evaluations
from t2t.evaluation.likelihood import PairScorer, ReferencePerplexity
from t2t.evaluation.load_models import RunModel, identify_running_code, record_search
from t2t.evaluation.passport import Passport, leave_out_search
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.evaluation.text_scores import Output, TextScores, open_scores
from t2t.model.parameters import Params
from t2t.runtime.distributed import is_first
from t2t.training.config_warnings import doubt_outputs
from t2t.training.provenance import find_start, hash_params, now, summarize_ledger

_log = logging.getLogger(__name__)

# Scores depend on the code of these and of their imports, and on the measures of the table.
MODULES = (__name__, *MEASURE_MODULES)

# The facts that a saved evaluation has to share with a new one to be used in its place. The
# parameters are known by the start of training that wrote the checkpoint, without reading them.
_REUSED = (
    "checkpoint", "trained", "vocabulary", "data", "decoding", "backend", "code", "versions",
    "texts", *(name for name in FIELD_TYPES if name.startswith("model.")),
)  # fmt: skip


class Evaluator:
    """Evaluates any number of a run's parameters on one test set, with one compiled search."""

    modules: tuple[str, ...] = MODULES

    def __init__(self, request: EvaluationRequest, model: RunModel | None = None):
        """Loads everything that the request names, except the parameters.

        `model` is the request's model, if it has been read.
        """
        self._request = request
        self._model = model or RunModel(request)
        self.config = self._model.config
        self._ensemble: dict[str, Any] | None = None  # its members, as evaluations record them
        self.scores = self._open()

    def _open(self) -> TextScores:
        """Opens the test set and its measures, and makes what computes an `Output` of it."""
        request, decoding = self._request, self.config.decoding
        if decoding.num_samples > 1 and decoding.mbr == "none":
            raise ConfigError(
                f"decoding.num_samples={decoding.num_samples}, but an evaluation scores one "
                "translation of each sentence; leave it at 1, or set decoding.mbr"
            )
        scores = open_scores(request, request.split, self.config.data, self.config.tokenizer)
        self._translator = self._model.make_translator(request.backend, request.compute_type)
        return scores

    def restore(self, held: tuple[Params, list[str]] | None = None) -> tuple[Params, str]:
        """Restores the parameters that the request names; returns them and their label.

        `held` are those that a loaded run holds, and the labels of their checkpoints, instead.

        Raises:
            RunError: a checkpoint does not exist or cannot be read.
        """
        params, labels = held or self._model.restore()
        if len(labels) == 1:
            return params, labels[0]
        members = [
            {"workdir": workdir.resolve().name, "checkpoint": label, "weight": weight}
            for (workdir, _), label, weight in zip(
                self._model.request.members, labels, self._model.members.weights, strict=True
            )
        ]
        self._ensemble = {"members": members, "mean": self._model.members.mean}
        digest = hashlib.sha256(json.dumps(self._ensemble).encode()).hexdigest()
        return params, f"ensemble{len(members)}-x{digest[:8]}"

    def evaluate(
        self, params: Params, label: str, alphas: Sequence[float] = ()
    ) -> list[Evaluation]:
        """Translates, scores and saves; one evaluation for each alpha, by default the config's.

        Raises:
            ConfigError, RunError: the parameters do not fit the config, or the scores cannot be
                written.
        """
        configs = [override(self.config, {"decoding.alpha": alpha}) for alpha in alphas]
        configs = configs or [self.config]
        paths = [self.prepare_output(label, config.decoding.alpha) for config in configs]
        params = self._model.pick(params)  # a watcher has those of all stacks
        digest = hash_params(params)
        passports = [self.make_passport(label, config, digest) for config in configs]
        placed = self._model.place(params)
        with jax.set_mesh(self._model.mesh):
            outputs = self._compute(placed, [config.decoding.alpha for config in configs])
        return [*map(self.scores.save, paths, outputs, passports)]

    def prepare_output(self, label: str, alpha: float | None = None) -> Path:
        """Returns the path of the scores; raises early if it cannot be written."""
        request, decoding = self._request, self.config.decoding
        if alpha is not None:
            decoding = dataclasses.replace(decoding, alpha=alpha)
        task = self.config.data.task
        name = "-".join(filter(None, [self.scores.split, task, label, decoding.label]))
        if request.backend != "jax":
            name += f"-{request.backend}-{request.compute_type or 'float32'}"
        return self.scores.prepare_output(request.output, request.workdir / "evaluations", name)

    def list_saved(self, alpha: float | None = None) -> dict[str, Evaluation]:
        """Returns the run's saved evaluations that are still valid, by checkpoint label.

        Their passports agree with the passport of a new evaluation, and have all of its
        measures as they are defined here.
        """
        given = {} if alpha is None else {"decoding.alpha": alpha}
        config = override(self.config, given)
        make_passport = functools.cache(lambda label: self.make_passport(label, config))
        names = *_REUSED, *(f"measures.{name}" for name in self.scores.measures)

        def is_current(saved: Passport) -> bool:
            label = saved.checkpoint
            is_single = label.rpartition("-")[-1].isdecimal()  # and no ensemble
            return is_single and not make_passport(label).diff(saved, *names)

        found = list_evaluations(self._request.workdir)
        return {each.passport.checkpoint: each for each in found if is_current(each.passport)}

    def make_passport(self, label: str, config: Config, digest: str | None = None) -> Passport:
        """Returns all that the scores of the checkpoint with this label are of.

        `digest` is the hash of its parameters, if they were read.
        """
        model, labels = self._model, [label]
        if self._ensemble:
            labels = [member["checkpoint"] for member in self._ensemble["members"]]
        trained = [  # date of the start of training that wrote the checkpoint, for each model
            find_start(workdir, int(each.rpartition("-")[-1]))
            for (workdir, _), each in zip(model.request.members, labels, strict=True)
        ]
        origin = {
            "run": model.request.workdir.resolve().name,
            "trained": trained,
            "vocabulary": model.vocabulary.fingerprint(),
            "checkpoint": label,
            **({"parameters": digest} if digest else {}),
            **({"ensemble": self._ensemble} if self._ensemble else {}),
        }
        fields = json.loads(json.dumps(overrides(config)))  # as it is read from a file
        search = self._record_search(config)
        search["backend"] |= {"devices": [device.device_kind for device in jax.devices()]}
        return Passport(
            origin=origin,
            config=leave_out_search(fields),
            **search,
            **self.scores.record(),
            **identify_running_code(*self.modules),
        )

    def _record_search(self, config: Config) -> dict[str, dict[str, Any]]:
        """Returns the sections of a passport on the search and the backend."""
        language, models = self.scores.tgt_language, self._model.measure_models
        return record_search(self._translator, config.decoding, language, models)

    def _compute(self, params: Params, alphas: Sequence[float]) -> list[Output]:
        """Translates, and scores the references; returns an output for each alpha."""
        found, timing = self._translate(params, alphas)
        wait = self._perplexity.start(params)
        texts = [[translation.text for translation in translations] for translations in found]
        counts = [*map(self.scores.count, texts)]  # while the device computes
        perplexities, losses = wait()
        if not self.scores.spaces:
            perplexities.pop("perplexity_word", None)
        log_probs = [f"{-nats:.6f} {tokens:.0f}" for nats, tokens in losses]
        return [
            Output(
                {"hypotheses": text, "log_probs": log_probs},
                counted,
                perplexities,
                {
                    # Sentences that were translated in pieces, and those whose translation was
                    # ended by the limit of the output.
                    "num_cut": sum(translation.num_pieces > 1 for translation in translations),
                    "num_at_limit": sum(translation.at_limit for translation in translations),
                    **timing,
                    "run": summarize_ledger(self._request.workdir),
                },
            )
            for translations, text, counted in zip(found, texts, counts, strict=True)
        ]

    def _doubt_lengths(self) -> None:
        """Warns before the search if it would cut outputs that are as long as the references."""
        src, tgt = self._perplexity.lengths.T
        is_whole = src <= self._translator.max_source_length  # else it is translated in pieces
        lengths = src[is_whole], tgt[is_whole]
        names = "pairs of the test set", "give --max_extra_length"
        for doubt in doubt_outputs(self.config, *lengths, *names):
            _log.warning("%s", doubt)

    def _translate(
        self, params: Params, alphas: Sequence[float]
    ) -> tuple[list[list[Translation]], dict[str, Any]]:
        """Returns the translations of all sentences for each alpha, and the time of the search."""
        self._doubt_lengths()
        translator, compiled = self._translator, self._translator.compile_seconds
        date, started = now(), time.perf_counter()
        sentences = self.scores.test_set.sources
        translator.shows_progress = is_first() and sys.stderr.isatty()
        if self.config.decoding.mbr == "none":
            found = translator.translate_with_alphas(params, sentences, alphas)
        elif len(alphas) == 1:
            chosen = self._model.translate(
                translator, params, sentences, tgt_language=self.scores.tgt_language
            )
            found = [[best for [best] in chosen]]
        else:
            raise ConfigError(
                "--alphas ranks hypotheses, but decoding.mbr chooses by utility; leave one out"
            )
        compiling = translator.compile_seconds - compiled
        seconds = time.perf_counter() - started - compiling
        timing: dict[str, Any] = {
            "begun": date,
            "seconds": seconds,  # of tokenising, searching and detokenising
            "compile_seconds": compiling,
        }
        if len(alphas) > 1:  # one search served all alphas, so there is no time per alpha
            return found, {"joint_search": {"alphas": [*alphas], **timing}}
        tokens = sum(translation.length for translation in found[0])
        return found, {
            **timing,
            "sentences_per_second": len(found[0]) / seconds,
            "tokens_per_second": tokens / seconds,  # sub-words of the hypotheses, EOS included
        }

    @functools.cached_property
    def _perplexity(self) -> ReferencePerplexity:
        limit = find_limit(self.config, self._model.members.position_limit)
        test_set = self.scores.test_set
        pairs = [*zip(test_set.sources, test_set.references[0], strict=True)]
        scorer = self._model.make_scorer(limit)
        assert isinstance(scorer, PairScorer)  # a run that translates scores pairs
        return ReferencePerplexity(scorer, self.config, pairs)
