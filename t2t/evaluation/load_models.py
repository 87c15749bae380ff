"""`RunModel`: the model of a run, or an ensemble, from its checkpoint to the devices."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from t2t.config.fields import Config, ConfigError, DecodingConfig, MeshConfig
from t2t.config.files import load_config, override, overrides
from t2t.config.measures import MEASURES
from t2t.config.rules import fit_task
from t2t.config.variants import has_registered, list_plugins
from t2t.data.directions import choose_task, find_route, find_tag
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.minimum_bayes_risk import choose_by_utility, compute_utilities
from t2t.decoding.translation import Translation
from t2t.decoding.translator import Translator
from t2t.evaluation.likelihood import MaskedScorer, PairScorer, check_scores
from t2t.evaluation.measure import MeasureError
from t2t.evaluation.requests import MeasureModels, ModelRequest
from t2t.evaluation.text_measures import make_measure
from t2t.model.parameters import Params, check_params
from t2t.ops.build_model import Members
from t2t.runtime.mesh import make_mesh, put_like
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training.checkpoint import restore_params
from t2t.training.provenance import check_plugins, identify_code, identify_programs
from t2t.training.sharing import Sharing, has_own_stacks

# Modules whose functions are compiled.
PROGRAMS = ("t2t.decoding.staged_search", "t2t.evaluation.likelihood")


class RunModel:
    """The model that a request names, or its ensemble, for translating and scoring.

    Its parameters are restored and placed by calls of their own, since wrong flags should be
    reported before.

    Attributes:
        request: the runs and checkpoints.
        config: of the first run, with the languages of the direction. In an ensemble, sources are
            cut at the shortest data.max_length, unless decoding.max_source_length says where.
        vocabulary: of all runs; it puts the direction's tag in front of sources.
        members: the models without their parameters.
        mesh: of all devices.
        measure_models: run directories of models that compute measures, by measure.
    """

    def __init__(self, request: ModelRequest):
        """Reads configs and the vocabulary.

        Raises:
            ConfigError, VocabularyError: something is missing or inconsistent, or the runs have
                different vocabularies.
        """
        self.request = request
        self.measure_models: Mapping[str, Path] = {}
        if isinstance(request, MeasureModels):
            self.measure_models = request.measure_model
        folders = [workdir for workdir, _ in request.members]
        own = request.decoding
        config = load_config(folders[0] / "config.json", own, searches=request.searches)
        configs = [config, *(load_config(folder / "config.json") for folder in folders[1:])]
        for folder, each in zip(folders, configs, strict=True):
            check_plugins(folder, each.plugins)
        vocabulary = Vocabulary.load(folders[0] / "vocab")
        for folder in dict.fromkeys(folders[1:]):
            if Vocabulary.load(folder / "vocab").fingerprint() != vocabulary.fingerprint():
                raise ConfigError(
                    f"{folder}/vocab is not the vocabulary of {folders[0]}; an ensemble needs "
                    "models that were trained with one vocabulary"
                )
        data = [choose_task(each.data, request.task) for each in configs]
        tags = [(find_tag(each), each.prefix) for each in data]
        if len(set(tags)) > 1:
            raise ConfigError(
                "an ensemble needs models of the same data.directions and data.prefix, but theirs "
                f"are {', '.join(' '.join(each).strip() or 'none' for each in tags)}"
            )
        config = fit_task(config, data[0])
        shortest = min(each.max_length for each in data)
        if shortest < config.data.max_length and not config.decoding.max_source_length:
            config = override(config, {"decoding.max_source_length": shortest})
        weights = request.weights or (1.0,) * len(folders)
        shares = tuple(weight / sum(weights) for weight in weights)
        self.config, self.vocabulary = config, vocabulary.with_tag(*tags[0])
        self._configs = configs  # of all members, as they were loaded
        routes = map(find_route, data)
        self._parts = [(Sharing(each), route) for each, route in zip(configs, routes, strict=True)]
        self.members = Members(tuple(each.model for each in configs), shares, request.mean)
        self.mesh = make_mesh(MeshConfig())
        is_known = not has_registered("model")  # the code of a variant may be anywhere
        models = self.members, self.vocabulary.sizes
        self._programs = SavedPrograms(identify_programs(PROGRAMS, models) if is_known else "")

    @functools.cached_property
    def _described(self) -> tuple[Any, Params]:
        with jax.set_mesh(self.mesh):
            return self.members.abstract(*self.vocabulary.sizes)

    def record_models(self) -> list[dict[str, Any]]:
        """Returns the fields of `config.model` that are not default, and options, of each model."""
        return [
            {
                name.removeprefix("model."): value
                for name, value in overrides(each).items()
                if name.startswith(("model.", "plugin."))
            }
            for each in self._configs
        ]

    def restore(self) -> tuple[Params, list[str]]:
        """Restores the parameters, on the host, and returns them with the checkpoints' labels.

        Raises:
            RunError: a checkpoint does not exist or cannot be read.
        """
        members = zip(self.request.members, self._configs, strict=True)
        restored = [restore_params(*member, config) for member, config in members]
        parts = zip(self._parts, restored, strict=True)
        params = [sharing.pick(params, route) for (sharing, route), (params, _) in parts]
        return self.members.join(params), [label for _, label in restored]

    def pick(self, params: Params) -> Params:
        """Returns the parameters of the task, of a run whose tasks may have their own stacks."""
        if not has_own_stacks(params):
            return params  # `restore` has picked them
        [(sharing, route)] = self._parts
        return sharing.pick(params, route)

    def place(self, params: Params) -> Params:
        """Puts parameters on the mesh, with the sharding that the model declares.

        Raises:
            ConfigError: the parameters do not fit the config and vocabulary.
        """
        _, declared = self._described
        params = self.pick(params)
        check_params(declared, params)
        with jax.set_mesh(self.mesh):
            placed: Params = put_like(params, declared)
        return placed

    def make_translator(
        self,
        backend: str = "jax",
        compute_type: str | None = None,
        config: Config | None = None,
    ) -> Translator:
        """Creates the translator for `backend`: jax or ctranslate2.

        `config` may have other fields of `config.decoding`; None: the model's own.

        Raises:
            ConfigError: the backend is unknown or not installed, or does not support the model or
                `compute_type`.
        """
        match backend:
            case "jax":
                return Translator(
                    config or self.config, self.vocabulary, self.members, self._described,
                    self._programs,
                )  # fmt: skip
            case "ctranslate2":
                require_ctranslate2()
                if len(self.members.configs) > 1:
                    raise ConfigError(
                        "an ensemble needs --backend=jax; give one run and checkpoint"
                    )
                if jax.process_count() > 1:
                    raise ConfigError("--backend=ctranslate2 works in one process; start only one")
                from t2t.decoding.ctranslate2_engine import CTranslate2Translator

                return CTranslate2Translator(
                    config or self.config, self.vocabulary, compute_type or "float32"
                )
            case _:
                raise ConfigError(f"--backend={backend!r} is unknown; use jax or ctranslate2")

    def make_scorer(self, limit: int = 2**30) -> PairScorer | MaskedScorer:
        """Creates the scorer of pairs whose sides have at most `limit` sub-words with EOS.

        Raises:
            ConfigError: the model gives a pair no probability.
        """
        size = self.config.decoding.batch_size
        if self.config.data.objective == "masked_lm":
            if len(self.members.configs) > 1:
                raise ConfigError("masked sub-words need one model; give one run and checkpoint")
            return MaskedScorer(self.members, self.vocabulary, size, limit)
        check_scores(self.config)
        return PairScorer(self.members, self.vocabulary, size, limit, self._programs)

    def translate(
        self,
        translator: Translator,
        params: Params,
        sentences: Sequence[str],
        n_best: int = 1,
        *,
        tgt_language: str | None = None,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
    ) -> list[list[Translation]]:
        """Returns what `translator.translate_n_best` finds with placed parameters.

        With `decoding.mbr` it is one candidate of each sentence, or of each piece in which it is
        translated: that of the highest expected utility. `tgt_language` chooses the utility's
        tokeniser; None: data.tgt_language.
        """
        config = translator.config
        choose, sampled = None, config.strategy == "sampling"
        if config.mbr != "none":  # a missing package is an error before the search
            language = tgt_language or self.config.data.tgt_language
            utility = make_utility(config.mbr, language, self.measure_models)
            n_best = config.num_samples if sampled else config.beam_size

            def choose(source: str, candidates: Sequence[Translation]) -> Translation:
                return choose_by_utility(candidates, functools.partial(utility, source), sampled)

        with jax.set_mesh(self.mesh):
            return translator.translate_n_best(
                params, sentences, n_best, prefixes=prefixes, first=first, choose=choose
            )


def record_search(
    translator: Translator, decoding: DecodingConfig, tgt_language: str, models: Mapping[str, Path]
) -> dict[str, dict[str, Any]]:
    """Returns what finds the translations, as passports and other results record it.

    "decoding" is the search and how lines are cut, "backend" the engine. `tgt_language` is the one
    by which a utility chooses its tokeniser; for `models` see `make_measure`.
    """
    found = dataclasses.asdict(decoding) | translator.record_pieces()
    if decoding.mbr != "none":  # its name does not say which model, or version of a measure
        found["utility"] = make_measure(decoding.mbr, tgt_language, models=models).definition
    # The number of threads changes nothing, and differs between hosts.
    engine = {name: fact for name, fact in translator.record().items() if name != "threads"}
    return {"decoding": found, "backend": engine}


def make_utility(
    name: str, tgt_language: str, models: Mapping[str, Path] = MappingProxyType({})
) -> Callable[[str, Sequence[str]], Float[np.ndarray, "n n"]]:
    """Returns the function that scores texts (rows), each with each as its reference (columns).

    Its arguments are the source and the texts. BLEU has the effective order, as sacreBLEU's of a
    sentence; scores of measures that count errors are negated. For `models` see `make_measure`.

    Raises:
        ConfigError, MeasureError: as in `make_measure`.
    """
    measure = make_measure(name, tgt_language, models=models)
    if isinstance(measure.metric, BLEU):
        measure.metric.effective_order = True
    sign = 1 if measure.higher_is_better else -1
    # A plugin's measure may have sacreBLEU's metric, and statistics or a score of its own.
    is_plain = name in MEASURES and isinstance(measure.metric, BLEU | CHRF)

    def compute(source: str, texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
        if is_plain:
            return compute_utilities(texts, measure.metric)
        count = len(texts)
        found = measure.score_sentences(
            [source] * count**2, [text for text in texts for _ in texts], [*texts] * count
        )
        if not np.isfinite(found).all():
            raise MeasureError(f"decoding.mbr={name} has no finite score for {texts!r}")
        return sign * found.reshape(count, count)

    return compute


def require_ctranslate2() -> None:
    """Raises `ConfigError` if the optional package ctranslate2 is not installed."""
    if importlib.util.find_spec("ctranslate2") is None:
        raise ConfigError("this needs CTranslate2: pip install 'ctranslate2>=4.6.3,<5'")


def identify_running_code(*modules: str) -> dict[str, dict[str, str]]:
    """As `identify_code`, with all plugins of this process, whose code decides its results.

    A config may have named them, --plugins, or a notebook that imports them.
    """
    return identify_code(list_plugins(), modules)
