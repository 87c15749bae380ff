"""Samples, forced prefixes and a minimum length through the whole translator."""

import dataclasses
from typing import Any

import pytest

from t2t.config.fields import ConfigError
from t2t.data.batch import EOS_ID
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.staged_search import BatchSearch
from t2t.decoding.translation import Translation
from t2t.decoding.translator import Translator
from t2t.model.parameters import Params
from tests.decoding.small_translator import SENTENCES, assert_same, make_config, make_params

pytestmark = pytest.mark.usefixtures("shared_programs")

SAMPLING = {"strategy": "sampling", "temperature": 1.2, "top_k": 50, "top_p": 0.95}


def sample(vocabulary: Vocabulary, params: Params, count: int, **decoding: Any) -> list[list[str]]:
    translator = Translator(make_config(**SAMPLING | decoding), vocabulary)
    found = translator.translate_n_best(params, SENTENCES, count)
    return [[translation.text for translation in each] for each in found]


def test_samples_depend_on_the_seed_and_not_on_their_number(
    vocabulary: Vocabulary, params: Params
) -> None:
    samples = sample(vocabulary, params, 3)
    assert [len(each) for each in samples] == [3 if sentence else 1 for sentence in SENTENCES]
    assert len({text for each in samples for text in each}) > 2 * len(SENTENCES)
    assert sample(vocabulary, params, 2) == [each[:2] for each in samples]
    assert sample(vocabulary, params, 3, sampling_seed=1) != samples


def test_parts_of_a_long_sentence_have_samples_of_their_own_and_are_reported(
    vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(**SAMPLING, split_sentences="no")
    config.model = dataclasses.replace(config.model, position="learned", max_positions=12)
    translator = Translator(config, vocabulary)
    [[found]] = translator.translate_n_best(
        make_params(config, vocabulary), ["Dogs run. " * 4], n_best=1
    )
    half = len(found.text) // 2
    assert found.num_pieces == 2  # of two sentences
    assert found.text[:half].strip() != found.text[half:].strip()
    assert "1 of 1 lines have more than 12 sub-words" in caplog.text


def test_translations_begin_with_their_prefixes(vocabulary: Vocabulary, params: Params) -> None:
    prefixes = ["Zwei", "", "Der Mann schläft", "Sie", "Ein Mä", "Hun", "Fisch"]
    translator = Translator(make_config(), vocabulary)
    found = translator.translate_n_best(params, SENTENCES, 1, prefixes=prefixes)
    for [translation], prefix in zip(found, prefixes, strict=True):
        assert translation.text.startswith(prefix)
    assert found[5][0] == Translation("Hun", 0.0, 0.0, 0)  # of an empty sentence
    free = translator.translate_n_best(params, SENTENCES[1:2], 1, first=1)
    assert_same(found[1], free[0])


def test_prefix_that_is_too_long_is_refused_before_the_search(
    vocabulary: Vocabulary, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchSearch, "search", None)
    prefixes = ["", "Hunde laufen " * 10]
    with pytest.raises(
        ConfigError,
        match=r"the prefix of sentence 12 has \d+ sub-words, but .* most \d+ .*; shorten the pre",
    ):
        Translator(make_config(), vocabulary).translate_n_best(
            params, ["Dogs run."] * 2, 1, prefixes=prefixes, first=10
        )


def test_outputs_have_the_minimum_length(vocabulary: Vocabulary, params: Params) -> None:
    table = params["tgt_embedding"]["table"]
    keen = params | {"tgt_embedding": {"table": table.at[EOS_ID].set(3 * table[EOS_ID])}}
    short, long = (
        Translator(make_config(min_length=least), vocabulary).translate(keen, SENTENCES[:3])
        for least in (1, 6)
    )
    assert 2 <= min(found.length for found in short) < 7  # EOS included
    assert min(found.length for found in long) >= 7
