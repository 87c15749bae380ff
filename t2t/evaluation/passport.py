"""`Passport`: the record of what an evaluation scored and how; finds differences between two.

A saved evaluation is used again if a new one would have the same passport. Systems are compared if
their passports agree on texts and definitions. A report names the other differences.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from t2t.config.field_types import Role
from t2t.config.fields import Config, fields_with, flatten

Facts = Mapping[str, Any]

_PREFIXED = ("decoding", "backend", "code", "versions", "measures")  # names are SECTION.FACT
_DIGEST = re.compile("[0-9a-f]{64}")

# The names of the texts of a test set, which no system has made, begin with one of these.
TEST_SET = "sources", "references", "documents", "kinds"
TRANSLATION = "translation"  # `data.objective` of runs that translate, and of other programs


@dataclasses.dataclass(frozen=True)
class Passport:
    """The record of an evaluation: models, texts, search, measures and code, in sections.

    A section without meaning is empty: translations of another program have no config.
    """

    # Of a run: run (its name), checkpoint (label), trained (when training began, for each model),
    # vocabulary, parameters (SHA-256), ensemble. Of another program's text: file and sha256, and
    # if they were given system (its name) and seed.
    origin: Facts = dataclasses.field(default_factory=dict)
    # split (or the name of the test set), objective, direction, and tgt_language, by which measures
    # choose their tokenisers.
    data: Facts = dataclasses.field(default_factory=dict)
    # Fields of the run's config that are not default, without the search.
    config: Facts = dataclasses.field(default_factory=dict)
    # All fields of config.decoding, and how long lines are cut. Batch size and devices count, too:
    # rounding may decide between two hypotheses of nearly equal probability.
    decoding: Facts = dataclasses.field(default_factory=dict)
    backend: Facts = dataclasses.field(default_factory=dict)  # engine, number formats, devices
    # t2t: SHA-256 of all files that the evaluator reaches by imports; plugins: of the plugins.
    code: Facts = dataclasses.field(default_factory=dict)
    versions: Facts = dataclasses.field(default_factory=dict)  # of packages
    texts: Facts = dataclasses.field(default_factory=dict)  # SHA-256 of sources, references, ...
    measures: Facts = dataclasses.field(default_factory=dict)  # name -> definition

    @property
    def checkpoint(self) -> str:
        """The checkpoint's label: 300, best-300, avg5-300, ema-300; empty without a run."""
        return str(self.origin.get("checkpoint", ""))

    @property
    def kind(self) -> str:
        """The kind of checkpoint: best, avg5, ema, or empty for a step."""
        return self.checkpoint.rpartition("-")[0]

    @property
    def objective(self) -> str:
        """`data.objective` of a run on text alone, which translates nothing; else empty."""
        objective = str(self.data["objective"])
        return "" if objective == TRANSLATION else objective

    @property
    def task(self) -> str:
        """The task, such as fill or en-de, of a run that has several; else empty."""
        direction = self.data.get("direction", "") if "data.directions" in self.config else ""
        return str(self.data.get("task") or direction)

    @property
    def is_of_run(self) -> bool:
        """False if another program made the translations."""
        return "file" not in self.origin

    def describe_origin(self) -> str:
        """Describes what made the translations: "checkpoint 300 of base"."""
        if self.is_of_run:
            return f"checkpoint {self.checkpoint} of {self.origin['run']}"
        return f"{self.origin['file']} by {self.origin.get('system', 'another program')}"

    def describe_search(self) -> str:
        """Describes how the translations were found: "beam 4, alpha 0.6"."""
        if self.objective:
            return f"objective {self.objective}"
        if not self.decoding:
            return "translated by another program"
        decoding, backend = self.decoding, self.backend
        search = f"beam {decoding['beam_size']}, alpha {decoding['alpha']:g}"
        if decoding["strategy"] == "sampling":
            search = f"sampling at temperature {decoding['temperature']:g}"
        if decoding["mbr"] != "none":
            search += f", chosen by {decoding['mbr']}"
        if backend["name"] != "jax":
            search += f", by {backend['name']} in {backend.get('compute_type')}"
        return search

    @functools.cached_property
    def _facts(self) -> dict[str, dict[str, Any]]:
        """The facts of each section, by the names that `diff` gives them."""
        found = {field.name: dict(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if self.is_of_run:
            found["config"] = leave_out_search(flatten(Config())) | found["config"]
        for section in _PREFIXED:
            found[section] = {f"{section}.{name}": fact for name, fact in found[section].items()}
        return found

    def find(self, name: str) -> str:
        """Returns a fact as text, by the name that `diff` gives it; "none" if it is not there.

        A hash is shortened to its first eight digits.
        """
        fact = next((facts[name] for facts in self._facts.values() if name in facts), None)
        if fact is None:
            return "default" if name.startswith("plugin.") else "none"
        return _DIGEST.sub(lambda digest: digest[0][:8], str(fact))

    def diff(self, other: "Passport", *names: str) -> dict[str, str]:
        """Returns the facts that differ, in words: {"model.num_heads": "4 -> 1"}.

        `names` limits them to these facts and sections. A section that one of the passports does
        not have is not compared, nor a package whose version one of them does not name.
        """
        sections = zip(self._facts, self._facts.values(), other._facts.values(), strict=True)
        differing = [
            name
            for section, own, others in sections
            for name in dict.fromkeys([*own, *others] if own and others else [])
            if own.get(name) != others.get(name)
            and (section != "versions" or name in own.keys() & others.keys())
            and (not names or {section, name} & {*names})
        ]
        return {name: f"{self.find(name)} -> {other.find(name)}" for name in differing}


def leave_out_search(config: Facts) -> dict[str, Any]:
    """Returns a flat config without the fields of the search, which are in `decoding`."""
    search = fields_with(Role.SEARCH, Role.SEARCH_BATCHES)
    return {name: value for name, value in config.items() if name not in search}


def hash_lines(lines: Sequence[str]) -> str:
    """Returns the SHA-256 of the file in which an evaluation keeps these lines."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def write_passport(passport: Passport) -> dict[str, dict[str, Any]]:
    """Returns a passport as an evaluation's JSON holds it.

    Hashes of texts and definitions of measures are left out: they stand beside texts and scores.
    """
    written = [each.name for each in dataclasses.fields(passport)]
    written = [name for name in written if name not in ("texts", "measures")]
    return {name: dict(getattr(passport, name)) for name in written if getattr(passport, name)}


def read_passport(result: Mapping[str, Any]) -> Passport:
    """Reads the passport from an evaluation's JSON."""
    hashes, sections = result.get("sha256", {}), result["passport"]
    known = [each.name for each in dataclasses.fields(Passport) if each.name in sections]
    return Passport(
        **{name: sections[name] for name in known},
        texts={name: digest for name, digest in hashes.items() if name.startswith(TEST_SET)},
        measures={name: score["definition"] for name, score in result["measures"].items()},
    )
