"""Checks what may change when a run is started again, and extends a finished run.

The role of a field (`Role`) says when it may change:

    state of the run                    roles of the fields that may change
    no vocabulary                       all
    a vocabulary, no checkpoint         all but TEXT, LANGUAGES, VOCABULARY and COPIED
    a checkpoint                        FILES, STORE, COPIED, DEVICES, CHECKPOINTS, LOGGING,
                                        VALIDATION, SEARCH_BATCHES
      without BLEU or the like          SEARCH, since "best" compares scores of one search
      where a new schedule starts:      SCHEDULE
        the run is finished, or was
        extended without an update yet
      with an open-ended schedule       training.steps, on which no learning rate depends
    data.source=text, no directions     LANGUAGES, which do not affect how files are read; with BLEU
      and no mixture                    scores not from or to a language with a tokeniser of its own

The fields of a task of `data.mixture` may change as those of a run's only task. Files may move, but
with a checkpoint their content has to stay: the training text, the vocabulary
and, if a checkpoint has a score on it, the validation text.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.field_types import Role
from t2t.config.fields import OPEN_ENDED_SCHEDULES, Config, ConfigError
from t2t.config.files import (
    Difference,
    complete_options,
    differences,
    load_config,
    override,
    read_saved_config,
    save_config,
)
from t2t.config.languages import OWN_TOKENIZERS, fill_languages, normalize_language
from t2t.config.measures import MEASURE_FIELD
from t2t.config.mixture import has_tasks, read_mixture
from t2t.config.variants import CHOICES, choices, find_role
from t2t.data.corpus import Corpus
from t2t.data.tokenizer import Vocabulary
from t2t.runtime.distributed import broadcast_from_process_0, is_first
from t2t.runtime.jax_settings import read_generator
from t2t.runtime.machine_speed import multiplies_bfloat16
from t2t.runtime.mesh import platform
from t2t.storage.atomic_files import explain_write_errors, make_folder
from t2t.training.checkpoint import list_scored_measures
from t2t.training.provenance import (
    read_last_start,
    read_ledger,
    record_compute,
    record_corpora,
)
from t2t.training.run_directory import RunError, list_steps

_log = logging.getLogger(__name__)


# Fields of these roles affect neither the next update nor the order of the data.
_FREE = {
    Role.FILES, Role.STORE, Role.COPIED, Role.DEVICES, Role.CHECKPOINTS, Role.LOGGING,
    Role.VALIDATION, Role.SEARCH, Role.SEARCH_BATCHES,
}  # fmt: skip
# A vocabulary depends on fields of these roles.
_OF_VOCABULARY = {Role.TEXT, Role.LANGUAGES, Role.VOCABULARY, Role.COPIED}

_REMEDIES = {  # what to do if the text of a split has changed
    "train": (
        "a run with checkpoints can only continue with the training text that it began with; "
        "restore that text, or choose another --workdir; --init_from starts the new run with the "
        "parameters of this one"
    ),
    "validation": (
        "its checkpoints have validation scores, which cannot be compared with scores on another "
        "text; restore that text, choose another --workdir, or score the new text with "
        "`python -m t2t.evaluate --workdir=RUN --src=FILE --ref=FILE`"
    ),
}


def open_run(
    workdir: Path, config: Config, corpora: Mapping[str, Sequence[Corpus]] | None = None
) -> None:
    """Creates a run directory, or checks that an existing one can continue (`check_run`).

    Raises:
        RunError: it cannot, or the directory cannot be written.
    """
    check_run(workdir, config, corpora or {})
    if is_first():
        with explain_write_errors(RunError, workdir):
            make_folder(workdir / "checkpoints")
            save_config(config, workdir / "config.json")


def check_run(workdir: Path, config: Config, corpora: Mapping[str, Sequence[Corpus]]) -> None:
    """Checks that a run may start, or go on, with this config, text and environment.

    Without a checkpoint a run can be started again after its text was mended. With one, the text of
    each split in `corpora` has to equal the text that the last start recorded, in whatever place:
    the training text, and the validation text if a checkpoint has a score on it.

    Raises:
        ConfigError: validation would translate by another search than beam search.
        RunError: a field, a text or the random generator has changed that may not change, or a
            checkpoint's validation scores are damaged.
    """
    search = config.decoding.strategy, config.decoding.mbr
    if config.training.translate_every and search != ("beam", "none"):
        raise ConfigError(
            "training.translate_every scores the best output of beam search: use the defaults of "
            "decoding.strategy and decoding.mbr, and give --strategy or --mbr to t2t.evaluate"
        )
    last = max(list_steps(workdir), default=0)
    scored = list_scored_measures(workdir) if last else set()
    _check_config(workdir, config, last, has_bleu=not scored.isdisjoint(choices(MEASURE_FIELD)))
    starts = read_ledger(workdir) if last else []  # without a checkpoint, nothing binds the next
    if last and not starts:
        _log.warning("%s has no ledger, so changes of its text cannot be detected", workdir)
    for split, parts in corpora.items():
        known = [entry["corpora"][split] for entry in starts if split in entry["corpora"]]
        if known and (split != "validation" or scored):
            _check_text(workdir, split, known[-1], record_corpora(parts))
    if starts:
        _check_generator(workdir, starts[-1]["environment"])


def _check_config(workdir: Path, config: Config, last: int, *, has_bleu: bool) -> None:
    path = workdir / "config.json"
    if config.training.schedule_start > last:
        raise RunError(
            f"training.schedule_start={config.training.schedule_start} needs a run that has come "
            f"to this step, but {workdir} holds checkpoint {last}; leave it at 0, and extend the "
            "run with --extend when it is finished"
        )
    if last and not path.exists():
        raise RunError(
            f"{path} is missing, without which checkpoint {last} cannot be continued; restore it "
            "from a copy of the run, or choose another --workdir"
        )
    if path.exists() and ((workdir / "vocab").exists() or last):
        saved = load_config(path)
        free = _list_free(saved, config, last, has_bleu)
        found = _list_changes(_fill(saved), _fill(config))
        changed = [each for each in found if find_role(each.name) not in free]
        training = config.training
        if training.schedule in OPEN_ENDED_SCHEDULES and not training.cooldown_steps:
            changed = [each for each in changed if each.name != "training.steps"]
        if changed:
            is_schedule = any(find_role(each.name) is Role.SCHEDULE for each in changed)
            remedy = "choose another --workdir, or continue this run with the old values"
            if is_schedule:
                remedy += "; a finished run goes on with a new schedule by --extend=STEPS"
            if not last:
                remedy = (
                    f"remove {workdir / 'vocab'}, which was made for the old values, or {remedy}"
                )
            raise RunError(
                f"{workdir} was written with another config:\n  "
                + "\n  ".join(map(str, changed))
                + f"\n{remedy}"
            )


def keep_source(workdir: Path, config: Config) -> Config:
    """Returns the config with the run's `training.init_from`, unless the config sets it itself.

    So a run that was fine-tuned from another run continues without naming that run again.
    """
    path = workdir / "config.json"
    if config.training.init_from or not path.exists():
        return config
    source = read_saved_config(path).training.init_from
    return dataclasses.replace(
        config, training=dataclasses.replace(config.training, init_from=source)
    )


def trains_in_mixed() -> bool:
    """Returns whether `model.dtype=auto` stands for `mixed` in a new run on this machine."""
    return platform() == "cpu" and multiplies_bfloat16()


def settle_dtype(workdir: Path, config: Config) -> Config:
    """Returns the config with the dtype that `model.dtype=auto` stands for in this run.

    A run with checkpoints keeps the value of its config. A new run of a Transformer computes in
    `mixed` on a CPU that multiplies in bfloat16. All other runs keep auto: bfloat16 on GPUs and
    TPUs, float32 on CPUs. A run that moves between kinds of devices logs a warning. Call it with
    the mesh set.
    """
    model = config.model
    if model.dtype != "auto":
        return config
    path = workdir / "config.json"
    if list_steps(workdir) and path.exists():  # `check_run` refuses steps without it
        dtype = read_saved_config(path).model.dtype
        before = read_last_start(workdir).get("compute")
        found = record_compute(dataclasses.replace(model, dtype=dtype))
        if before not in (None, found):
            _log.warning(
                "model.dtype=%s computes in %s here, and did in %s before: the run goes on, but "
                "with other rounding",
                dtype, found["activations"], before["activations"],
            )  # fmt: skip
    elif model.kind != "rnn" and broadcast_from_process_0(trains_in_mixed()):
        dtype = "mixed"
        _log.info("model.dtype=mixed, since this CPU multiplies in bfloat16")
    else:
        return config
    return dataclasses.replace(config, model=dataclasses.replace(model, dtype=dtype))


def _list_changes(saved: Config, new: Config) -> list[Difference]:
    """Lists the fields that differ; of the tasks of a mixture, those that differ in each task."""
    tasks = [read_mixture(each.data) for each in (saved, new)]
    names = [[task.task for task in own] for own in tasks]
    if names[0] != names[1] or not has_tasks(saved.data):
        return differences(saved, new)
    plain = [
        dataclasses.replace(each, data=dataclasses.replace(each.data, mixture=()))
        for each in (saved, new)
    ]
    found = {each.name: each for each in differences(*plain)}
    for before, after in zip(*tasks, strict=True):
        one, two = (dataclasses.replace(saved, data=each) for each in (before, after))
        found |= {each.name: each for each in differences(one, two)}
    return [*found.values()]


def settle_options(workdir: Path, config: Config, made: Vocabulary | None = None) -> Config:
    """Returns the config with the options of plugins that follow from the run's vocabulary.

    Without `made`, the vocabulary is that of an earlier start, if there was one. With the one that
    this start has made, `config.json` gets the options, too.

    Raises:
        ConfigError: a plugin refuses the vocabulary.
    """
    folder = workdir / "vocab"
    if not config.plugin or not (made or Vocabulary.is_saved(folder)):
        return config
    vocabulary = made or Vocabulary.load(folder)
    sides = [side.pieces(range(side.vocab_size)) for side in (vocabulary.src, vocabulary.tgt)]
    options = {name: each.settle(*sides) for name, each in config.plugin.items()}
    settled = complete_options(dataclasses.replace(config, plugin=options))
    if made and settled != config and is_first():
        with explain_write_errors(RunError, workdir):
            save_config(settled, workdir / "config.json")
    return settled


def _fill(config: Config) -> Config:
    return dataclasses.replace(config, data=fill_languages(config.data))


def _has_free_languages(saved: Config, new: Config, has_bleu: bool) -> bool:
    """Returns whether languages may change, since files of text are read alike in all languages.

    Where checkpoints have scores such as BLEU (`has_bleu`), the tokeniser of BLEU has to stay.
    """
    if any(
        each.data.source != "text" or each.data.directions or each.data.mixture
        for each in (saved, new)
    ):
        return False
    targets = {normalize_language(each.data.tgt_language) for each in (saved, new)}
    return not has_bleu or len(targets) == 1 or not targets & OWN_TOKENIZERS


def _list_free(saved: Config, new: Config, last: int, has_bleu: bool) -> set[Role]:
    """Returns the roles of fields that may change after checkpoint `last`; 0: no checkpoint."""
    free = _FREE if last else {*Role} - _OF_VOCABULARY
    if has_bleu:
        free = free - {Role.SEARCH}
    if _has_free_languages(saved, new, has_bleu):
        free = free | {Role.LANGUAGES}
    begins = saved.training.schedule_start == last  # and no update has been made since
    if new.training.schedule_start == last and (begins or last >= saved.training.steps):
        free = free | {Role.SCHEDULE}
    return free


def _check_text(
    workdir: Path,
    split: str,
    before: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
) -> None:
    if [part["sha256"] for part in before] != [part["sha256"] for part in found]:
        raise RunError(
            f"{workdir} was started with another {split} text:\n"
            f"  {_name_corpora(before)}\ninstead of\n  {_name_corpora(found)}\n" + _REMEDIES[split]
        )


def check_vocabulary(workdir: Path, vocabulary: Vocabulary) -> None:
    """Raises `RunError` if a run with checkpoints began with another vocabulary."""
    starts = read_ledger(workdir) if list_steps(workdir) else []
    if starts and starts[-1]["vocabulary"] != vocabulary.fingerprint():
        raise RunError(
            f"{workdir}/vocab is not the vocabulary of this run's checkpoints; restore it from a "
            "copy of the run, or choose another --workdir"
        )


def _check_generator(workdir: Path, before: Mapping[str, str]) -> None:
    found = read_generator(os.environ)
    for name, value in read_generator(before).items():
        if found[name] != value:
            raise RunError(
                f"{name}={found[name]}: {workdir} was trained with {name}={value}, and another "
                "random generator would change its dropout; set it to that, or choose another "
                "--workdir"
            )


def _name_corpora(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n  ".join(
        f"{part['name']}: {part['pairs']} pairs, sha256 {part['sha256'][:16]}" for part in parts
    )


def extend(workdir: Path, num_steps: int, config: Config | None = None) -> Config:
    """Returns the config with which a finished run goes on for `num_steps` steps.

    A new schedule starts at the last step of the run, and ends `num_steps` later. If config.json
    says that already, the same config is returned. So one command starts an extension, continues
    it after an interruption, and extends the run only once. `config` gives all other fields, such
    as the kind of schedule; default: the run's config.

    Raises:
        ConfigError: there is no run, the config breaks a rule, or the extension is not longer than
            its warm-up.
        RunError: the run is not finished.
    """
    saved = load_config(workdir / "config.json")
    last = max(list_steps(workdir), default=0)
    start, end = saved.training.schedule_start, saved.training.steps
    is_under_way = start > 0 and (end == start + num_steps or last == start)
    if not is_under_way:
        if last < end:
            raise RunError(
                f"{workdir} is not finished: it holds checkpoint {last} of training.steps={end}; "
                "continue it to its end before --extend"
            )
        start = last
    elif last >= end:
        _log.info(
            "%s has been extended by %d steps; to extend it as much again, leave out --extend and "
            "give --config, --config.training.schedule_start=%d and --config.training.steps=%d",
            workdir, num_steps, last, last + num_steps,
        )  # fmt: skip
    chosen = saved if config is None else config
    warms_up = chosen.training.schedule in CHOICES["training.schedule"]  # a registered one may not
    if warms_up and num_steps <= chosen.training.warmup_steps:
        raise ConfigError(
            f"--extend={num_steps}: the learning rate would only rise, over training.warmup_steps="
            f"{chosen.training.warmup_steps}; give more steps, or a shorter warm-up"
        )
    steps = {"training.schedule_start": start, "training.steps": start + num_steps}
    return override(chosen, steps)
