"""Which models there are in CTranslate2; that they agree is in `test_against_ctranslate2.py`."""

import pytest

from t2t.config import ConfigError, ModelConfig
from t2t.decoding.ctranslate2_format import check_support


def test_the_papers_model_is_there() -> None:
    check_support(ModelConfig())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            ModelConfig(kind="rnn"),
            "model.kind='rnn' is nothing that CTranslate2 has; it has transformer",
        ),
        (
            ModelConfig(position="alibi"),
            "model.position='alibi' is nothing that CTranslate2 has; "
            "it has sinusoidal, learned, rotary",
        ),
    ],
    ids=["kind", "position"],
)
def test_model_that_is_not_there_is_refused(config: ModelConfig, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_support(config)
    assert str(caught.value) == message
