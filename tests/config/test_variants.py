"""Variants that modules outside the library register, and configs that name them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from t2t.config import variants
from t2t.config.fields import Config, ConfigError, TrainingConfig
from t2t.config.files import save_config
from t2t.config.rules import validate
from t2t.config.variants import find_variant, register

ROOT = Path(__file__).parents[2]
PLUGIN = """
from t2t.config.variants import register

@register("training.schedule", "linear")
def linear(training, d_model):
    return lambda count: training.learning_rate
"""


@pytest.fixture(autouse=True)
def _own_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes what a test registers after the test."""
    monkeypatch.setattr(variants, "_registered", {})


def test_unknown_value_is_refused_with_the_registered_ones_too() -> None:
    @register("training.schedule", "linear")
    def linear() -> None: ...

    message = (
        "training.schedule='liner' is unknown; use one of noam, inverse_sqrt, cosine, constant, "
        "linear, or name the module that registers it in plugins"
    )
    with pytest.raises(ConfigError) as caught:
        validate(Config(training=TrainingConfig(schedule="liner")))
    assert str(caught.value) == message
    with pytest.raises(ConfigError) as caught:
        find_variant("training.schedule", "liner")
    assert str(caught.value) == message
    assert find_variant("training.schedule", "linear") is linear
    validate(Config(training=TrainingConfig(schedule="linear")))


def test_variant_of_one_field_is_no_value_of_another() -> None:
    register("training.schedule", "linear")(lambda: None)
    with pytest.raises(ConfigError, match=r"training.optimizer='linear' is unknown; use one of ad"):
        validate(Config(training=TrainingConfig(optimizer="linear")))


def test_name_of_the_library_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^training.optimizer='adam' is one of t2t's own v"):
        register("training.optimizer", "adam")


@pytest.mark.parametrize("field", ["training.steps", "tokenizer.kind", "nothing"])
def test_field_without_variants_from_outside_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} accepts no .* do: .*training.schedule"):
        register(field, "new")


def test_second_function_of_the_same_name_is_refused() -> None:
    def one() -> None: ...
    def other() -> None: ...

    register("training.schedule", "linear")(one)
    with pytest.raises(ConfigError, match=r"'linear' is registered by tests\..*\.one; choose ano"):
        register("training.schedule", "linear")(other)
    assert find_variant("training.schedule", "linear") is one


def test_function_that_is_defined_again_replaces_itself() -> None:
    """A notebook cell that is run twice does this."""
    for version in (1, 2):

        @register("training.schedule", "linear")
        def linear(version: int = version) -> int:
            return version

    assert find_variant("training.schedule", "linear")() == 2


@pytest.mark.parametrize("module", ["missing", "missing.variants", "tests.missing"])
def test_missing_plugin_is_an_error_with_the_remedy(module: str) -> None:
    with pytest.raises(ConfigError, match=rf"^plugins: the module {module} .* PYTHONPATH$"):
        validate(Config(plugins=(module,)))


def test_empty_plugin_is_refused() -> None:
    with pytest.raises(ConfigError, match="plugins: the name of a module is empty; leave it out"):
        validate(Config(plugins=("",)))


def test_plugin_that_lacks_a_module_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_plugin.py").write_text("import missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'missing'"):
        validate(Config(plugins=("needy_plugin",)))


def test_config_of_a_run_imports_its_plugins_in_a_fresh_process(tmp_path: Path) -> None:
    (tmp_path / "my_variants.py").write_text(PLUGIN)
    config = Config(plugins=("my_variants",), training=TrainingConfig(schedule="linear"))
    save_config(config, tmp_path / "config.json")
    program = (
        "from pathlib import Path; from t2t.config import files, variants\n"
        "config = files.load_config(Path('config.json'))\n"
        "print(variants.find_variant('training.schedule', config.training.schedule).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("my_variants\n", "")
