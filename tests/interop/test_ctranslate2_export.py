"""Which models there are in CTranslate2; that they agree is in `test_against_ctranslate2.py`."""

import dataclasses

import pytest

from t2t.config.fields import ConfigError, ModelConfig
from t2t.interop.ctranslate2_export import IGNORED, SUPPORTED, WRITTEN, check_support


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


def test_every_field_of_the_model_is_written_ignored_or_restricted() -> None:
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    assert sorted([*SUPPORTED, *WRITTEN, *IGNORED]) == sorted(names)


def test_variant_that_the_export_does_not_know_is_refused() -> None:
    @dataclasses.dataclass
    class Variant(ModelConfig):
        logit_cap: float = 0.0

    check_support(Variant())
    with pytest.raises(ConfigError, match=r"^model\.logit_cap=30\.0 is not known .*=0\.0 alone$"):
        check_support(Variant(logit_cap=30.0))
