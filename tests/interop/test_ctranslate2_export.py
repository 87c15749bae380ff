"""Models that CTranslate2 supports; `test_against_ctranslate2.py` compares their outputs."""

import dataclasses

import pytest

from t2t.config.fields import ConfigError, ModelConfig
from t2t.interop.ctranslate2_export import EXPORTED, IGNORED, SUPPORTED, check_support


def test_every_field_of_the_model_is_exported_ignored_or_restricted() -> None:
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    assert sorted([*SUPPORTED, *EXPORTED, *IGNORED]) == sorted(names)


def test_variant_that_the_export_does_not_know_is_refused() -> None:
    @dataclasses.dataclass
    class Variant(ModelConfig):
        logit_cap: float = 0.0

    check_support(Variant())
    with pytest.raises(ConfigError, match=r"^model\.logit_cap=30\.0 is not supported by .*=0\.0$"):
        check_support(Variant(logit_cap=30.0))
