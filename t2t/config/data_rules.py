"""The rules of `config.data`, for `rules.validate`: of one task, and of tasks together."""

import itertools
import re
from collections.abc import Iterator, Sequence

from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.config.languages import fill_languages
from t2t.config.mixture import count_corpora
from t2t.config.stages import read_stages
from t2t.config.variants import CHOICES, find_variant

_PLACEHOLDER = re.compile(r"\{(src|tgt|pair)\}")  # as in t2t/data/parts.py

TEXT_PAIR_KINDS = ("transformer", "rnn", "decoder_only")  # their sources and targets may be any
CONTINUED = ("lm", "prefix_lm")  # objectives whose models continue prompts (t2t.generate)
KINDS = {  # objective -> values of model.kind that can be trained with it
    "translation": TEXT_PAIR_KINDS,
    "lm": ("decoder_only",),
    "prefix_lm": TEXT_PAIR_KINDS,
    "span_corruption": TEXT_PAIR_KINDS,
    "denoising": TEXT_PAIR_KINDS,
    "masked_lm": ("encoder_only",),
}


def text_problems(data: DataConfig) -> list[str]:
    """One line for each rule that the fields break which name the text, not the batches."""
    problems, sources = list[str](), data.source.split("+")
    if len(set(sources)) < len(sources):
        problems.append(f"data.source={data.source!r} names a source twice; name each once")
    if "text" in sources:
        problems += _text_problems(data)
    if "hf" in sources:
        problems += _hf_problems(data)
    problems += _weight_problems(data, count_corpora(data), "corpora")
    if data.directions:
        problems += _direction_problems(data, sources)
    return problems


def mixture_problems(data: DataConfig, tasks: Sequence[DataConfig]) -> Iterator[str]:
    """Yields one line for each rule that the tasks of `data.mixture` break together."""
    yield from _weight_problems(data, len(tasks), "tasks of data.mixture")
    for task in tasks:
        if data.temperature and task.train_weights:
            yield (
                f"in data.mixture, {task.task}: train_weights={task.train_weights} and "
                f"data.temperature={data.temperature} both say how often an epoch uses a corpus; "
                "give one of them"
            )
        if len(task.directions) > 1:
            yield (
                f"in data.mixture, {task.task}: data.directions={task.directions} are several "
                "tasks; write one for each"
            )
    yield from _untrained_problems(data, tasks)
    for one, other in itertools.combinations(tasks, 2):
        if all(
            getattr(one, name) == getattr(other, name)
            for name in ("prefix", "directions", "encoder", "decoder")
        ):
            yield from _likeness_problems(one, other)


def _untrained_problems(data: DataConfig, tasks: Sequence[DataConfig]) -> Iterator[str]:
    """Yields a line for each stack that belongs to tasks without a weight alone."""
    try:
        stages = read_stages(data.stages)
    except ConfigError:
        return  # said elsewhere
    weights = [stage.weights for stage in stages] or [data.train_weights or (1.0,) * len(tasks)]
    if any(len(each) != len(tasks) for each in weights):
        return
    is_used = [any(own) for own in zip(*weights, strict=True)]
    for side in ("encoder", "decoder"):
        trained = {getattr(task, side) for task, used in zip(tasks, is_used, strict=True) if used}
        for task in tasks:
            if (name := getattr(task, side)) not in trained:
                yield (
                    f"in data.mixture, {task.task}: nothing trains its {side} {name!r}, since its "
                    f"weight is 0; raise it, or name the {side} of a task with a weight"
                )


def _likeness_problems(one: DataConfig, other: DataConfig) -> Iterator[str]:
    """Yields a line if nothing tells a model which of two tasks it has."""
    goals = [(each.objective, each.tgt_language) for each in map(fill_languages, (one, other))]
    (objective, language), (objective_2, language_2) = goals
    is_pair = objective == objective_2 == "translation" and language != language_2
    alike = {"span_corruption", "denoising"}, {"translation", "prefix_lm"}
    if is_pair or {objective, objective_2} in alike:
        yield (
            f"data.mixture: {one.task} and {other.task} make {' and '.join(map(str, goals))} of "
            f"sources that begin alike, data.prefix={one.prefix!r}; give one of them another prefix"
        )


def batch_problems(data: DataConfig) -> Iterator[str]:
    """Yields one line for each rule that the fields break on which batches depend."""
    if data.max_length % data.length_multiple:
        yield (
            f"data.max_length={data.max_length} is no multiple of "
            f"data.length_multiple={data.length_multiple}; raise it to "
            f"{-(-data.max_length // data.length_multiple) * data.length_multiple}"
        )
    longest = "data.packed_length" if data.packed_length else "data.max_length"
    length = data.packed_length or data.max_length
    if data.batch_tokens < length * data.rows_multiple:
        yield (
            f"data.batch_tokens={data.batch_tokens} cannot hold data.rows_multiple="
            f"{data.rows_multiple} rows of {longest}={length}; raise it to "
            f"{length * data.rows_multiple}, or lower one of the others"
        )
    if length < data.max_length:
        yield (
            f"data.packed_length={length} cannot hold pairs of data.max_length={data.max_length}; "
            "raise it to that value, or lower data.max_length"
        )
    if data.subword_sampling and not data.packed_length:
        yield (
            f"data.subword_sampling={data.subword_sampling} needs packed rows, whose shape is the "
            f"same in all epochs; set data.packed_length to {data.max_length} or more"
        )


def objective_problems(config: Config) -> Iterator[str]:
    """Yields one line for each rule about the objective that the config breaks."""
    data, objective, kind = config.data, config.data.objective, config.model.kind
    if objective in KINDS:
        trained = KINDS[objective]
    else:
        registered = find_variant("data.objective", objective)
        trained = tuple(getattr(registered, "kinds", TEXT_PAIR_KINDS))
    if kind in CHOICES["model.kind"] and kind not in trained:  # not a registered one
        objectives = ", ".join(name for name, kinds in KINDS.items() if kind in kinds)
        yield (
            f"data.objective={objective!r} cannot train model.kind={kind!r}; set model.kind to "
            f"{' or '.join(trained)}, or data.objective to one of {objectives}"
        )
    if not data.is_text_alone:
        return
    is_causal = objective == "lm" and kind == "decoder_only"
    if is_causal and config.model.position == "relative" and config.model.prefix:
        # Half of a prefix LM's buckets; T5's decoder has all of them for the past.
        yield (
            "model.prefix=True would keep half of the buckets of model.position='relative' for "
            "tokens on the right, which data.objective='lm' never sees; set model.prefix=False"
        )
    reads = f"data.objective={objective!r} reads text alone, which has no"
    if "identical" in data.filters:
        yield f"data.filters={data.filters}: {reads} sides to compare; leave out identical"
    if not config.tokenizer.shared:
        yield f"tokenizer.shared=False: {reads} second language; set tokenizer.shared=True"
    if data.subword_sampling and data.sampled_sides == "src":
        yield f"data.sampled_sides='src': {reads} sources; leave it at 'both'"


def _direction_problems(data: DataConfig, sources: list[str]) -> Iterator[str]:
    directions = data.directions
    for direction in directions:
        if not re.fullmatch(r"[^-<>{}\s]+-[^-<>{}\s]+", direction):
            yield f"data.directions has {direction!r}; write SOURCE-TARGET, such as en-de"
    if len(set(directions)) < len(directions):
        yield f"data.directions={directions} names a direction twice; name each once"
    if len(directions) < 2:
        return
    columns = data.src_column, data.tgt_column  # an empty one is the language
    names = "".join((*columns, *data.hf_files, data.hf_name))
    if "hf" in sources and all(columns) and not _PLACEHOLDER.search(names):
        yield (
            f"data.src_column={columns[0]!r} and data.tgt_column={columns[1]!r} are the same in "
            f"each of data.directions={directions}; write {{src}} and {{tgt}} for the languages, "
            "such as translation.{src}, or leave them empty"
        )
    if "text" not in sources:
        return
    files = [
        *(("train", *pair) for pair in zip(data.train_src, data.train_tgt, strict=False)),
        ("validation", data.validation_src, data.validation_tgt),
        ("test", data.test_src, data.test_tgt),
    ]
    for split, src, tgt in files:
        if src and not _PLACEHOLDER.search(src + tgt):
            yield (
                f"data.{split}_src={src!r} and data.{split}_tgt={tgt!r} are the same files in each "
                f"of data.directions={directions}; write {{src}} and {{tgt}} for the languages, "
                f"such as {split}.{{src}}"
            )


def _weight_problems(data: DataConfig, count: int, unit: str) -> Iterator[str]:
    """Yields a line for each fault of the weights of so many corpora, or tasks of a mixture."""
    weights, temperature, stages = data.train_weights, data.temperature, data.stages
    if weights and len(weights) != count:
        yield (
            f"data.train_weights has {len(weights)} values for {count} {unit}; give one for each, "
            "or none"
        )
    given = {"data.train_weights": weights, "data.temperature": temperature, "data.stages": stages}
    if len(shown := [f"{name}={value}" for name, value in given.items() if value]) > 1:
        yield f"{' and '.join(shown)} both say how often an epoch uses a corpus; give one of them"
    if not stages:
        return
    if count == 1:
        yield (
            f"data.stages={stages} has weights of several corpora, but data.source={data.source!r} "
            "is one; add another, or leave it empty"
        )
        return
    try:
        found = read_stages(stages)
    except ConfigError as error:
        yield str(error)
        return
    yield from (
        f"data.stages has {text!r} with {len(stage.weights)} weights for {count} {unit}; give one "
        "for each, 0 to leave it out"
        for text, stage in zip(stages, found, strict=True)
        if len(stage.weights) != count
    )


def _text_problems(data: DataConfig) -> Iterator[str]:
    if data.is_text_alone:
        if not data.train_tgt:
            yield "data.train_tgt has no file; data.source='text' needs at least one"
        return
    if not data.train_src or len(data.train_src) != len(data.train_tgt):
        yield (
            f"data.train_src has {len(data.train_src)} files and data.train_tgt "
            f"{len(data.train_tgt)}; data.source='text' needs equally many, at least one"
        )
    for split in ("validation", "test"):
        src, tgt = getattr(data, f"{split}_src"), getattr(data, f"{split}_tgt")
        if bool(src) != bool(tgt):
            yield f"data.{split}_src={src!r} and data.{split}_tgt={tgt!r} go together; give both"


def _hf_problems(data: DataConfig) -> Iterator[str]:
    if bool(data.hf_name) == bool(data.hf_files):
        yield (
            f"data.hf_name={data.hf_name!r} and data.hf_files={data.hf_files!r}: data.source='hf' "
            "needs one of them, a data set on the Hub or files"
        )
    for entry in data.hf_files:
        if not re.fullmatch(r"\w+=.+", entry):
            yield f"data.hf_files has {entry!r}; write SPLIT=FILE, such as train=corpus.tsv"
    splits = [entry.partition("=")[0] for entry in data.hf_files]
    if splits and "train" not in splits:
        yield (
            f"data.hf_files has files for {', '.join(dict.fromkeys(splits))} only; name the "
            "training files as train=FILE"
        )
    yield from _column_problems(data)


def _column_problems(data: DataConfig) -> Iterator[str]:
    filled = fill_languages(data)
    if data.is_text_alone:
        if not (filled.tgt_language or data.tgt_column):
            yield (
                "data.tgt_column='': data.source='hf' finds the text by it; set it to the name of "
                "the column, or data.tgt_language"
            )
        return
    names = [each.partition("-")[::2] for each in data.directions]
    for src, tgt in names or [(filled.src_language, filled.tgt_language)]:
        columns = [
            (column or language).replace("{src}", src).replace("{tgt}", tgt)
            for column, language in ((data.src_column, src), (data.tgt_column, tgt))
        ]
        if not all(columns):
            yield (
                f"data.src_language={src!r} and data.tgt_language={tgt!r}: data.source='hf' finds "
                "its columns by them; set both, or data.src_column and data.tgt_column"
            )
        elif columns[0] == columns[1]:
            yield (
                f"data.src_column={data.src_column!r} and data.tgt_column={data.tgt_column!r} both "
                f"mean the column {columns[0]!r} (an empty one is the language); name two columns"
            )
