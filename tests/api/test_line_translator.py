"""Settings recorded in the output folder of bulk translation: other settings do not continue it."""

from pathlib import Path

import pytest

from t2t.api.line_translator import LineTranslator
from t2t.evaluation import load_models
from t2t.evaluation.requests import ModelRequest
from tests.tiny_run import make_run


def test_settings_name_code_plugins_packages_and_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ModelRequest((make_run(tmp_path / "run"),))
    before = LineTranslator(request).describe_settings()
    assert before["versions"].keys() == {"jax", "flax", "sentencepiece"}
    assert LineTranslator(request).describe_settings() == before
    monkeypatch.setattr(load_models, "hash_code", lambda *_: "of other code")
    other = ModelRequest(request.workdirs, "100")
    after = LineTranslator(other).describe_settings()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"code", "plugins", "checkpoints", "parameters"}
