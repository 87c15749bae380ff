"""Fixtures of the tests that translate with small random models."""

import pytest

from t2t.config.fields import TokenizerConfig
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.model.parameters import Params
from tests.decoding.small_translator import PAIRS, make_config, make_params


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    config = TokenizerConfig(vocab_size=420)
    return train_vocabulary([ListCorpus("toy", PAIRS)], config, tmp_path_factory.mktemp("vocab"))


@pytest.fixture(scope="module")
def params(vocabulary: Vocabulary) -> Params:
    return make_params(make_config(), vocabulary)
