"""Passports differ where their scores are of other things, and say so in words."""

import dataclasses
import json
from typing import Any

import pytest

from t2t.evaluation.passport import Passport, read_passport, write_passport

DIGEST = "c024ee27" * 8
BASE = Passport(
    origin={"run": "base", "checkpoint": "best-300", "trained": ["2026"], "parameters": DIGEST},
    data={"split": "test", "objective": "translation", "tgt_language": "de"},
    config={"model.num_heads": 4},
    decoding={"beam_size": 4, "alpha": 0.6, "mbr": "none", "longest_piece": 64},
    backend={"name": "jax", "devices": ["cpu"]},
    code={"t2t": DIGEST, "plugins": "none"},
    versions={"jax": "0.11.2"},
    texts={"sources": DIGEST, "references": DIGEST},
    measures={"bleu": "tok:13a"},
)
OUTPUT = dataclasses.replace(
    BASE, origin={"file": "out.de", "sha256": DIGEST}, config={}, decoding={}, backend={}
)


@pytest.mark.parametrize(
    ("section", "facts", "differences"),
    [
        ("origin", {"checkpoint": "400"}, {"checkpoint": "best-300 -> 400"}),
        ("config", {"model.num_heads": 1, "seed": 3},
         {"model.num_heads": "4 -> 1", "seed": "0 -> 3"}),
        ("config", {"plugin.own.mix": 0.5}, {"plugin.own.mix": "default -> 0.5"}),
        ("decoding", {"utility": "chrF2"}, {"decoding.utility": "none -> chrF2"}),
        ("backend", {"devices": ["cpu", "cpu"]}, {"backend.devices": "['cpu'] -> ['cpu', 'cpu']"}),
        ("code", {"plugins": "8a" * 32}, {"code.plugins": "none -> 8a8a8a8a"}),
        ("texts", {"documents": DIGEST}, {"documents": "none -> c024ee27"}),
        ("measures", {"bleu": "tok:zh"}, {"measures.bleu": "tok:13a -> tok:zh"}),
    ],
)  # fmt: skip
def test_difference_is_named_with_both_values(
    section: str, facts: dict[str, Any], differences: dict[str, str]
) -> None:
    other = dataclasses.replace(BASE, **{section: {**getattr(BASE, section), **facts}})
    assert BASE.diff(other) == differences
    assert BASE.diff(other, section, "split") == differences
    assert BASE.diff(other, *differences) == differences
    assert not BASE.diff(other, "split")
    assert not other.diff(other)


def test_text_of_another_program_differs_from_a_run_in_its_origin_alone() -> None:
    assert BASE.diff(OUTPUT).keys() == {*BASE.origin, *OUTPUT.origin}
    assert BASE.describe_origin() == "checkpoint best-300 of base"
    assert OUTPUT.describe_origin() == "out.de by another program"


@pytest.mark.parametrize("passport", [BASE, OUTPUT])
def test_passport_returns_from_the_evaluation_that_holds_it(passport: Passport) -> None:
    measures = {name: {"definition": each} for name, each in passport.measures.items()}
    saved = {"passport": write_passport(passport), "measures": measures, "sha256": passport.texts}
    assert read_passport(json.loads(json.dumps(saved))) == passport


def test_evaluation_of_an_earlier_version_has_the_same_passport() -> None:
    """It had the facts at its top, and those on which reuse depended a second time in `key`."""
    facts = {"workdir": "base", "checkpoint": "best-300", "parameters": DIGEST}
    earlier = {
        **facts, "split": "test", "tgt_language": "de", "beam_size": 4, "alpha": 0.6,
        "longest_piece": 64,
        "config": {"model.num_heads": 4, "data.src_language": "en", "data.tgt_language": "de",
                   "decoding.beam_size": 4},
        "backend": {"name": "jax"}, "versions": {"jax": "0.11.2"},
        "key": {"code": DIGEST, "plugins": "none", "devices": ["cpu"], "trained": ["2026"]},
        "measures": {"bleu": {"definition": "tok:13a"}},
        "sha256": {**BASE.texts, "hypotheses": DIGEST},
    }  # fmt: skip
    languages = {"data.src_language": "en", "data.tgt_language": "de"}
    now = dataclasses.replace(BASE, config={**BASE.config, **languages})
    found = read_passport(earlier)
    assert found.diff(now, "config", "backend", "code", "versions", "texts", "measures") == {}
    assert found.diff(now, "origin", "split", "decoding.beam_size", "decoding.longest_piece") == {}
    assert found.decoding["strategy"] == "beam", "the default, which it did not record"
