"""Evaluates parameters of one run on one test set, and saves the scores and texts."""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t2t.config.fields import Config, ConfigError
from t2t.config.files import overrides
from t2t.config.languages import normalize_language
from t2t.config.measure_names import (
    MEASURE_FIELD,
    METRICX,
    ON_REQUEST,
    REFERENCE_MEASURES,
    list_measures,
)
from t2t.config.variants import choices
from t2t.data.batch import find_limit
from t2t.data.corpus import hash_strings
from t2t.data.sentences import count_empty_references, describe_empty_references
from t2t.decoding.translation import Translation
from t2t.evaluation.evaluation_texts import open_texts
from t2t.evaluation.likelihood import NatsAndTokens, PairScorer, ReferencePerplexity
from t2t.evaluation.load_models import (
    TRANSLATING_PACKAGES,
    RunModel,
    hash_params,
    identify_code,
    override_decoding,
)
from t2t.evaluation.measures import (
    Measure,
    Score,
    TestSet,
    describe_intervals,
    have_spaces,
    make_measure,
)
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.saved_evaluations import (
    Evaluation,
    list_evaluations,
    name_segment_scores,
    name_texts,
    save_evaluation,
)
from t2t.model.interface import Params
from t2t.runtime.distributed import is_first
from t2t.storage.atomic_files import check_writable, explain_write_errors, make_folder
from t2t.storage.paths import make_path
from t2t.training.provenance import find_revision, find_start, find_versions, now, summarize_ledger
from t2t.training.run_directory import RunError

# On which scores depend; programs import metricx if it is asked for.
MODULES = (__name__, "t2t.evaluation.metricx")
PACKAGES = (*TRANSLATING_PACKAGES, "sacrebleu", "sacremoses")

_log = logging.getLogger(__name__)


class Evaluator:
    """Evaluates any number of a run's parameters on one test set, with one compiled search."""

    def __init__(self, request: EvaluationRequest):
        """Loads everything that the request names, except the parameters.

        Raises:
            ConfigError, DataError, VocabularyError: something is missing or inconsistent.
        """
        self._model = RunModel(request.models, request.decoding)
        self.config = self._model.config
        count = self.config.decoding.num_samples
        if count > 1 and self.config.decoding.mbr == "none":
            raise ConfigError(
                f"decoding.num_samples={count}, but an evaluation scores one translation of each "
                "sentence; leave it at 1, or set decoding.mbr"
            )
        if request.tgt_language and not normalize_language(request.tgt_language):
            raise ConfigError(
                f"--tgt_language={request.tgt_language} is no language code; write one of ISO 639, "
                "such as de, zh or zho_Hans"
            )
        self._texts = open_texts(
            self.config.data, request.split, src=request.src, ref=request.ref,
            testset=request.testset, segments=request.segments,
            tokenizer=self.config.tokenizer,
        )  # fmt: skip
        self.split, self._test_set = self._texts.name, self._texts.test_set
        languages = request.tgt_language, self.config.data.tgt_language, self._texts.tgt_language
        self.tgt_language = next(filter(None, languages), "")
        self._request = request
        self._ensemble: dict[str, Any] | None = None  # its members, as evaluations record them
        self._translator = self._model.make_translator(request.backend, request.compute_type)
        self._spaces = have_spaces(self.tgt_language, self._test_set.references[0])
        self._measures = self._choose_measures(request.measures)

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
                self._request.models.members, labels, self._model.members.weights, strict=True
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
        configs = [
            override_decoding(self.config, {"alpha": alpha})
            for alpha in alphas or (self.config.decoding.alpha,)
        ]
        outputs = [self.prepare_output(label, config.decoding.alpha) for config in configs]
        identity = {"parameters": hash_params(params)}
        keys = [self._make_key(label, config) for config in configs]
        params = self._model.place(params)
        with jax.set_mesh(self._model.mesh):
            found, timing = self._translate(params, [c.decoding.alpha for c in configs])
            reference_losses = self._perplexity.measure(params)
        return [
            self._save(key, config, translations, reference_losses, {**identity, **timing}, output)
            for key, config, translations, output in zip(keys, configs, found, outputs, strict=True)
        ]

    def prepare_output(self, label: str, alpha: float | None = None) -> Path:
        """Returns the path of the scores; raises early if it cannot be written."""
        request, decoding = self._request, self.config.decoding
        if alpha is not None:
            decoding = dataclasses.replace(decoding, alpha=alpha)
        directions = self.config.data.directions  # only that of this evaluation
        name = "-".join([self.split, *directions, label, decoding.label])
        if request.backend != "jax":
            name += f"-{request.backend}-{request.compute_type or 'float32'}"
        return prepare_output(request, name, self._name_texts)

    def _name_texts(self, path: Path) -> dict[str, str]:
        """Returns the names of the texts beside the scores at `path`."""
        return name_texts(
            path,
            self.split,
            self._texts.fingerprint,
            len(self._test_set.references),
            has_documents=self._test_set.documents is not None,
            stored=[name for name, measure in self._measures.items() if measure.is_stored],
        )

    def _choose_measures(self, asked: Sequence[str]) -> dict[str, Measure]:
        """Returns the measures to compute, by name.

        Raises:
            ConfigError: one is unknown, or means nothing for this run and its references.
            MeasureError: a tokeniser is not installed.
        """
        possible = list_measures(
            self.tgt_language,
            self.config.data.source.split("+"),
            spaces=self._spaces,
            lowercase=self.config.tokenizer.lowercase,
            kind=self.config.tokenizer.kind,
        )
        computed = REFERENCE_MEASURES[0]  # whatever is asked for
        known = "default", *choices(MEASURE_FIELD), computed
        if METRICX in asked and METRICX not in known:
            raise ConfigError(
                f"measure {METRICX} needs --metricx=RUN, an imported MetricX (t2t.import_model)"
            )
        if unknown := [name for name in asked if name not in known]:
            raise ConfigError(
                f"measure {','.join(unknown)} is unknown; use some of {', '.join(known)}; "
                "--plugins names the module that registers another"
            )
        asked = [name for name in asked if name != computed]
        default = [name for name in possible if name not in ON_REQUEST]
        listed = [default if name == "default" else [name] for name in asked]
        chosen = tuple(dict.fromkeys(itertools.chain.from_iterable(listed)))
        if meaningless := [name for name in chosen if name not in possible]:
            raise ConfigError(
                f"measure {meaningless[0]} means nothing for this run with --tgt_language="
                f"{self.tgt_language}; use one of {', '.join(possible)}"
            )
        if named := [name for name in chosen if "/" in name]:
            raise ConfigError(
                f"measure {named[0]!r} is a part of file names, which have no /; register another"
            )
        return {name: self._make_measure(name) for name in chosen}

    def _make_measure(self, name: str) -> Measure:
        return make_measure(name, self.tgt_language, len(self._test_set.references))

    def list_saved(self, alpha: float | None = None) -> dict[str, Evaluation]:
        """Returns the run's saved evaluations that are still valid, by checkpoint label.

        They have the key of an evaluation by this evaluator, and all of its measures as they are
        defined here.
        """
        config = override_decoding(self.config, {"alpha": alpha})
        make_key = functools.cache(lambda label: self._make_key(label, config))

        def is_current(evaluation: Evaluation) -> bool:
            result = evaluation.result
            label, saved = result["checkpoint"], result["measures"]
            return (
                label.rpartition("-")[-1].isdecimal()
                and all(
                    saved.get(name, {}).get("definition") == measure.definition
                    for name, measure in self._measures.items()
                )
                and result.get("key") == make_key(label)
            )

        saved = list_evaluations(self._request.workdir)
        return {each.result["checkpoint"]: each for each in saved if is_current(each)}

    def _make_key(self, label: str, config: Config) -> dict[str, Any]:
        """Returns all that the scores of the checkpoint with this label depend on.

        A saved evaluation is used again only if its key is the one that a new one would have.
        """
        if self._ensemble:
            labels = [member["checkpoint"] for member in self._ensemble["members"]]
        else:
            labels = [label]
        workdirs = [workdir for workdir, _ in self._request.models.members]
        engine = self._translator.describe().items()
        key = {
            "split": self.split,
            "corpus": self._texts.fingerprint,  # SHA-256 of the texts
            "direction": "-".join(
                filter(None, (config.data.src_language, config.data.tgt_language))
            ),
            "tgt_language": self.tgt_language,  # by which measures choose their tokenisers
            "checkpoint": label,
            "trained": [  # date of the start of training that wrote it, for each model
                find_start(workdir, int(each.rpartition("-")[-1]))
                for workdir, each in zip(workdirs, labels, strict=True)
            ],
            "model": {
                f"{number}.{name}": value
                for number, model in enumerate(self._model.members.configs)
                for name, value in overrides(Config(model=model)).items()
            },
            "vocabulary": self._model.vocabulary.fingerprint(),
            # Batch size and devices affect rounding, which may decide between two hypotheses of
            # nearly equal probability, mostly in bfloat16.
            "decoding": dataclasses.asdict(config.decoding) | self._translator.describe_pieces(),
            # The number of threads changes nothing.
            "backend": {name: value for name, value in engine if name != "threads"},
            "devices": [device.device_kind for device in jax.devices()],
            **identify_code(config.plugins, MODULES, PACKAGES),
        }
        if self._test_set.documents is not None:  # on which the intervals depend
            key["documents"] = hash_strings(*map(str, self._test_set.documents))
        if config.decoding.mbr == METRICX:  # whose model is not in the config
            key["utility"] = self._make_measure(METRICX).definition
        found: dict[str, Any] = json.loads(json.dumps(key))  # as it is read from a file
        return found

    def _translate(
        self, params: Params, alphas: Sequence[float]
    ) -> tuple[list[list[Translation]], dict[str, Any]]:
        """Returns the translations of all sentences for each alpha, and the time of the search."""
        translator, compiled = self._translator, self._translator.compile_seconds
        started = time.perf_counter()
        sentences = self._test_set.sources
        translator.shows_progress = is_first() and sys.stderr.isatty()
        if self.config.decoding.mbr == "none":
            found = translator.translate_with_alphas(params, sentences, alphas)
        elif len(alphas) == 1:
            chosen = self._model.translate(
                translator, params, sentences, tgt_language=self.tgt_language
            )
            found = [[best for [best] in chosen]]
        else:
            raise ConfigError(
                "--alphas ranks hypotheses, but decoding.mbr chooses by utility; leave one out"
            )
        compiling = translator.compile_seconds - compiled
        seconds = time.perf_counter() - started - compiling
        timing: dict[str, Any] = {
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
        pairs = [*zip(self._test_set.sources, self._test_set.references[0], strict=True)]
        scorer = self._model.make_scorer(limit)
        assert isinstance(scorer, PairScorer)  # a run that translates scores pairs
        return ReferencePerplexity(scorer, self.config, pairs)

    def _save(
        self,
        key: Mapping[str, Any],
        config: Config,
        translations: Sequence[Translation],
        reference_losses: tuple[Mapping[str, Score], NatsAndTokens],
        facts: Mapping[str, Any],
        output: Path,
    ) -> Evaluation:
        """Scores the translations, and saves scores and texts; `facts` are recorded as well."""
        documents = self._test_set.documents
        # A line feed inside a sentence would split it over two lines of the text files.
        sources, *references = (
            [text.replace("\n", " ") for text in each]
            for each in (self._test_set.sources, *self._test_set.references)
        )
        test_set = TestSet(sources, references, documents)
        hypotheses = [translation.text for translation in translations]
        perplexities, losses = reference_losses
        scores = {
            name: measure.score(hypotheses, test_set, with_interval=True)
            for name, measure in self._measures.items()
        }
        stored = {name: each for name, each in self._measures.items() if each.is_stored}
        segments = {name: each.collect(hypotheses, test_set) for name, each in stored.items()}
        if not self._spaces:
            perplexities = {k: v for k, v in perplexities.items() if k != "perplexity_word"}
        for described in describe_empty_references(sources, references):
            _log.warning(described)
        result: dict[str, Any] = {
            **{name: scores[name].value for name in ("bleu", "chrf") if name in scores},
            **({"signature": scores["bleu"].definition} if "bleu" in scores else {}),
            "measures": {
                name: dataclasses.asdict(score)
                for name, score in {**scores, **perplexities}.items()
            },
            "interval": describe_intervals(test_set.unit),
            "num_sentences": len(hypotheses),
            **({} if documents is None else {"num_documents": int(documents.max()) + 1}),
            "num_empty_references": count_empty_references(sources, references[0]),
            # Sentences that were translated in pieces, and those whose translation was ended by the
            # limit of the output.
            "num_cut": sum(translation.num_pieces > 1 for translation in translations),
            "num_at_limit": sum(translation.at_limit for translation in translations),
            **self._translator.describe_pieces(),
            "backend": self._translator.describe(),
            **facts,
            **dataclasses.asdict(config.decoding),
            **record_run(self._request.workdir, config, PACKAGES),
            "checkpoint": key["checkpoint"],
            **({"ensemble": self._ensemble} if self._ensemble else {}),
            "split": self.split,
            "direction": key["direction"],
            "tgt_language": self.tgt_language,
            "corpus": key["corpus"],
            **({"testset": self._request.testset} if self._request.testset else {}),
            "texts": self._name_texts(output),
            "key": key,
        }
        for name, measure in stored.items():  # by which they are compared without its model
            result["measures"][name] |= {
                "higher_is_better": measure.higher_is_better,
                "limits": [*measure.limits],
            }
        if not is_first():
            return Evaluation(output, result)
        texts = {
            "hypotheses": hypotheses,
            "log_probs": [f"{-nats:.6f} {tokens:.0f}" for nats, tokens in losses],
            "sources": sources,
            "references": references[0],
            **{f"references{n}": lines for n, lines in enumerate(references[1:], 2)},
            **({} if documents is None else {"documents": [*map(str, documents)]}),
            **{
                name_segment_scores(name): [repr(value) for value in counts[:, 0].tolist()]
                for name, counts in segments.items()
            },
        }
        with explain_write_errors(RunError, output):
            return save_evaluation(output, result, texts)


def prepare_output(
    request: EvaluationRequest, name: str, name_texts: Callable[[Path], Mapping[str, str]]
) -> Path:
    """Returns the path of the scores, by default `name` in the run; makes its folder.

    Raises:
        ConfigError, RunError: the scores, or the texts that `name_texts` names for the path, cannot
            be written there.
    """
    path = make_path(request.output or request.workdir / "evaluations" / f"{name}.json")
    if path.suffix != ".json":
        raise ConfigError(f"--output={path} must end in .json; texts get the same name in .txt")
    texts = name_texts(path)
    longest = max([path.name, *texts.values()], key=lambda each: len(os.fsencode(each)))
    with explain_write_errors(
        RunError, path.with_name(longest), "--output and the name of --src set the path"
    ):
        make_folder(path.parent)
        check_writable(path.parent, longest)
    hypotheses = path.with_suffix(".txt")
    # In the run's own folder they are what an evaluation that was cut off left behind.
    is_own = path.parent == request.workdir / "evaluations"
    if "hypotheses" in texts and not is_own and hypotheses.exists() and not path.exists():
        raise ConfigError(
            f"--output={path}: {hypotheses} exists, and the hypotheses would replace it; choose "
            "another name, or remove it"
        )
    return path


def record_run(workdir: Path, config: Config, packages: Sequence[str]) -> dict[str, Any]:
    """Returns the run, code, packages and devices of an evaluation, as it records them."""
    return {
        "workdir": workdir.resolve().name,
        "run": summarize_ledger(workdir),
        "config": overrides(config),
        "date": now(),
        "devices": [device.device_kind for device in jax.devices()],
        **find_revision(config.plugins),
        "versions": find_versions(packages),
    }
