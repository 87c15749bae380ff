"""Computes the key of a step: the hash of its facts, which are all that its output depends on.

Facts are the program, the flags, the recipe's values, the content of inputs, and the keys of the
steps that it needs. Fields of machines, such as the number of devices and the folder of the corpus,
may change.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from t2t.config.fields import Config, flatten
from t2t.workshop.inputs import (
    hash_inputs,
    is_of_machine,
    list_recipe_values,
    read_step_recipe,
)
from t2t.workshop.steps import Step, Workshop


def make_key(facts: Mapping[str, Any]) -> str:
    """Returns the hash of a step's facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def find_facts(
    workshop: Workshop, step: Step, keys: Mapping[str, str], old: Mapping[str, Any], *, ready: bool
) -> dict[str, Any]:
    """Returns all that the output of a step depends on, as JSON reads it back.

    `keys` are the keys of the steps that it needs, `ready` says whether these are finished, and
    `old` are the facts of the step's record.

    Raises:
        ConfigError: an input does not exist.
    """
    recipe = read_step_recipe(workshop, step, ready=ready)
    facts = {
        "program": step.program,
        "flags": dict(step.flags),
        "steps": keys,
        "recipe": list_recipe_values(step, recipe),
        "inputs": hash_inputs(workshop, step, recipe, old.get("inputs", {})),
    }
    copied: dict[str, Any] = json.loads(json.dumps(facts, default=str))
    return copied


class FactChange(NamedTuple):
    """A fact that differs."""

    text: str
    flag: str = ""  # that gives it, or the field of the recipe; empty: it is another fact


def list_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[FactChange]:
    """Yields each fact that differs.

    A field of the config that is newer than the record counts as its default there. Fields of
    machines are left out.
    """
    if old.get("program") != new["program"]:
        yield FactChange(f"program: {old.get('program')} -> {new['program']}")
    for section, words in (("steps", "step {} {}"), ("inputs", "{} {}")):
        before, after = old.get(section, {}), new[section]
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                end = "changed" if name in after else "is no longer read"
                yield FactChange(words.format(name, end))
    defaults = _find_defaults() if old.get("recipe") else {}
    for section, unset in (("flags", {}), ("recipe", defaults)):
        before, after = unset | old.get(section, {}), new[section]
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name) and not is_of_machine(name):
                shown = "--" * (section == "flags")
                yield FactChange(f"{shown}{name}: {before.get(name)} -> {after.get(name)}", name)


@functools.cache
def _find_defaults() -> dict[str, Any]:
    """The defaults of the config's fields, as JSON reads them back."""
    copied: dict[str, Any] = json.loads(json.dumps(flatten(Config())))
    return copied
