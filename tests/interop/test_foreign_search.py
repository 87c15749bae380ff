import math
from typing import Any

import numpy as np
import pytest

from t2t.config.fields import Config, DecodingConfig
from t2t.interop.foreign_search import list_unknown, read_search, write_search
from t2t.interop.hugging_face_folder import SourceError
from t2t.interop.hugging_face_vocabulary import NO_ROW, Rows

# As in Marian: BOS is the padding of the original, 9, and PAD has no row.
ROWS = Rows(np.array([NO_ROW, 9, 0, 1, 2, 3]), np.array([False, *[True] * 5]))


def read(**given: Any) -> tuple[DecodingConfig, list[str]]:
    search = read_search(given, ROWS, 512, start=9, forced=[3])
    return search.decoding, search.warnings


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"beam_size": 1}),
        ({"num_beams": 2, "length_penalty": 2}, {"beam_size": 2, "alpha": 2.0}),
        ({"min_length": 20}, {"min_length": 19}),  # with the first input of the decoder
        ({"min_length": 20, "min_new_tokens": 25}, {"min_length": 25}),
        ({"min_length": 80}, {"min_length": 79, "max_extra_length": 79}),
        (
            {"do_sample": True, "temperature": 0.5},
            {"strategy": "sampling", "temperature": 0.5, "top_k": 50},
        ),
        (
            {"do_sample": True, "top_k": 0, "top_p": 0.9, "num_return_sequences": 3},
            {"strategy": "sampling", "top_p": 0.9, "num_samples": 3},
        ),
        ({"temperature": 0.5, "top_k": 9, "typical_p": 0.5, "do_sample": False}, {}),
        ({"bad_words_ids": [[9]], "forced_bos_token_id": 3, "forced_eos_token_id": 0}, {}),
        ({"max_length": 512, "eos_token_id": [0], "no_repeat_ngram_size": 0}, {}),
        ({"num_beams": None, "max_length": None, "early_stopping": True}, {}),
    ],
)
def test_search_is_that_of_generate_with_its_defaults(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    default: dict[str, Any] = {"beam_size": 1, "length_penalty": "length", "alpha": 1.0}
    assert read(**given) == (DecodingConfig(**(default | expected)), [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length_penalty", -3.0),
        ("early_stopping", True),
        ("max_length", 6),
        ("forced_bos_token_id", 2),
        ("eos_token_id", [0, 3]),
        ("bad_words_ids", [[9], [2]]),
        ("no_repeat_ngram_size", 3),
        ("decoder_start_token_id", 0),
        ("do_sample", True),
        ("num_return_sequences", 2),
    ],
)
def test_field_without_counterpart_is_named_in_a_warning(name: str, value: Any) -> None:
    _, warnings = read(**{"num_beams": 4, name: value})
    assert [warning.partition(" ")[0] for warning in warnings] == [f"{name}={value!r}".split()[0]]


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_sampling_without_choice_is_greedy_and_named(name: str) -> None:
    decoding, warnings = read(**{"do_sample": True, "top_k": 0, name: 0.0})
    assert (decoding.strategy, decoding.beam_size) == ("beam", 1)
    assert warnings == [f"{name}=0.0 " + warnings[0].partition(" ")[2]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("temperature", "num_beams") for value in ("4", True, [1], -1)),
        *(("length_penalty", value) for value in (math.nan, math.inf, "1")),
        ("num_beams", 2.7), ("num_beams", 0), ("num_beams", 10**12), ("top_k", 0.5), ("top_k", -1),
        ("top_p", -0.5), ("min_length", 2.5), ("min_length", 10**6), ("max_length", "20"),
        ("max_new_tokens", -1), ("num_return_sequences", 0), ("temperature", 10**400),
        ("do_sample", "true"), ("do_sample", 1), ("early_stopping", "always"),
        ("renormalize_logits", "yes"),
    ],
)  # fmt: skip
def test_value_that_generate_could_not_take_is_refused_by_file_and_field(
    name: str, value: Any
) -> None:
    with pytest.raises(SourceError, match=rf"^generation_config\.json: {name}="):
        read(**{"do_sample": True} | {name: value})


def test_fields_of_sampling_that_are_not_taken_are_named() -> None:
    _, warnings = read(do_sample=True, min_p=0.1, max_length=10**30)
    assert [warning.partition("=")[0] for warning in warnings] == ["min_p"]


def test_field_that_is_not_known_is_returned_unless_it_is_off() -> None:
    given = {"num_beams": 4, "use_cache": True, "new_search": 3, "other_search": None}
    assert list_unknown(given) == {"new_search": 3}


IDS = {"pad_token_id": 9, "eos_token_id": 0, "decoder_start_token_id": 9}


@pytest.mark.parametrize(
    "decoding",
    [
        DecodingConfig(beam_size=5, length_penalty="length", alpha=0.5, min_length=7),
        DecodingConfig(
            strategy="sampling", beam_size=1, length_penalty="length", alpha=1.0, num_samples=3,
            temperature=0.7, top_k=0, top_p=0.9, min_length=2,
        ),
    ],
)  # fmt: skip
def test_search_goes_out_and_in_again(decoding: DecodingConfig) -> None:
    written, notes = write_search(Config(decoding=decoding), ROWS, IDS)
    search = read_search(written, ROWS, 256)
    assert (search.decoding, search.warnings, notes) == (decoding, [], [])


def test_search_that_transformers_lacks_is_named_in_notes() -> None:
    decoding = DecodingConfig(length_penalty="gnmt", mbr="chrf")
    _, notes = write_search(Config(decoding=decoding), ROWS, IDS)
    assert [note.partition("=")[0] for note in notes] == ["decoding.length_penalty", "decoding.mbr"]
