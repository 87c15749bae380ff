"""Variants that modules outside the library register, and configs that name them."""

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from t2t.config import variants
from t2t.config.field_types import NonNegativeFloat
from t2t.config.fields import (
    Config,
    ConfigError,
    ModelConfig,
    PluginOptions,
    TrainingConfig,
    option,
)
from t2t.config.files import (
    differences,
    load_config,
    override,
    overrides,
    read_saved_config,
    save_config,
)
from t2t.config.fitted_config import check_config
from t2t.config.rules import validate
from t2t.config.variants import EXTENSIBLE, find_variant, register, trust_plugins
from t2t.data.corpus_sources import open_split
from t2t.data.objectives import choose_objective
from t2t.model.attention import MultiHeadAttention
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import KeyValue
from t2t.model.layers import Identity
from t2t.model.position import Position
from t2t.ops.build_model import abstract_model
from t2t.ops.select_kernels import choose_policy
from t2t.training.losses import make_loss
from t2t.training.metric_writers import open_writers
from t2t.training.optimizer import describe_optimizer, make_optimizer
from t2t.training.schedule import make_schedule

PLUGIN = """
from t2t.config.variants import register

@register("training.schedule", "linear")
def linear(training, d_model):
    return lambda count: training.learning_rate
"""


pytestmark = pytest.mark.usefixtures("own_variants")


def test_unknown_value_is_refused_with_the_registered_ones_too() -> None:
    @register("training.schedule", "linear")
    def linear(training: Any, d_model: int) -> None: ...

    message = "'liner' is unknown; use one of noam, .*, linear, or name the module .* in plugins$"
    with pytest.raises(ConfigError, match=message):
        validate(Config(training=TrainingConfig(schedule="liner")))
    with pytest.raises(ConfigError, match=message):
        find_variant("training.schedule", "liner")
    assert find_variant("training.schedule", "linear") is linear
    validate(Config(training=TrainingConfig(schedule="linear")))


@dataclasses.dataclass
class Own(PluginOptions):
    mix: NonNegativeFloat = option(0.5, "share of the other loss")
    rounding: Annotated[str, Literal["up", "down"]] = option("up", "direction")

    def list_problems(self) -> Iterator[str]:
        if self.mix > 1:
            yield f"mix={self.mix} must be at most 1"


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("training.optimizer", "adam", "^training.optimizer='adam' is one of t2t's own variants"),
        ("training.steps", "new", "^training.steps accepts no .* do: .*training.schedule"),
        ("plugin", "my options", "^plugin='my options': .* declares no options under a name"),
    ],
)
def test_name_that_cannot_be_registered_is_refused(field: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register(field, name)(Own)


def test_name_keeps_its_function_unless_that_is_defined_again() -> None:
    """A notebook cell that is run twice defines it again."""
    for version in (1, 2):

        @register("training.schedule", "linear")
        def linear(training: Any, d_model: int, version: int = version) -> int:
            del training, d_model
            return version

    def other(training: Any, d_model: int) -> None: ...

    with pytest.raises(ConfigError, match=r"'linear' is registered by tests\..*linear; choose ano"):
        register("training.schedule", "linear")(other)
    assert find_variant("training.schedule", "linear")(None, 8) == 2


def test_options_of_a_plugin_are_typed_and_survive_json_and_overrides(tmp_path: Path) -> None:
    register("plugin", "own")(Own)
    config = override(Config(plugins=(__name__,)), {"plugin.own.mix": 1})
    assert config.plugin == {"own": Own(mix=1.0)}
    changed = {"plugin.own.mix": 1.0, "plugin.own.rounding": "up"}
    assert overrides(config) == {"plugins": (__name__,)} | changed
    found = differences(override(config, {"plugin.own.mix": 0.2}), config)
    assert [*map(str, found)] == ["plugin.own.mix: 0.2 -> 1.0"]
    path = tmp_path / "config.json"
    save_config(config, path)
    assert load_config(path) == config
    values = json.loads(path.read_text())
    del values["plugin"]  # as before the plugin had options
    path.write_text(json.dumps(values))
    assert load_config(path).plugin == {"own": Own()}
    assert check_config(Config()).plugin == {}
    with pytest.raises(ConfigError, match=r"^model comes .* options plugin\.own; set plugin, too"):
        check_config(Config(model=config.model))
    save_config(config, path)
    variants._registered.clear()  # t2t.show imports no plugin
    assert read_saved_config(path).plugin == {"own": {"mix": 1.0, "rounding": "up"}}


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ({"own": {"mix": "1"}}, r"^plugin\.own\.mix='1' is not of type float; plugin.own has mix"),
        ({"own": {"mix": -1}}, r"^plugin\.own\.mix=-1\.0 must not be negative$"),
        ({"own": {"mix": 2.0}}, r"^plugin\.own\.mix=2\.0 must be at most 1$"),
        ({"own": {"rounding": "aside"}}, r"\.rounding='aside' is unknown; use one of up, down$"),
        ({"own": 1}, r"^plugin\.own=1 is no object with fields$"),
        ({"other": {"mix": 1.0}}, r"^plugin\.other: no module of plugins has such options; name "),
        ({1: {}}, r"^plugin={1: {}} is not of type dict\[str, typing.Any\]$"),
    ],
)
def test_wrong_options_of_a_plugin_are_named(plugin: Any, message: str) -> None:
    register("plugin", "own")(Own)
    with pytest.raises(ConfigError, match=message):
        check_config(Config(plugin=plugin))


def use(field: str, config: Config) -> None:
    """Does with the variant "own" what a model, training or the reading of data does."""
    section, _, name = field.partition(".")
    if field != "training.writer":
        setattr(getattr(config, section), name, "own")
    match field:
        case "training.schedule":
            make_schedule(config.training, 512)
        case "training.optimizer":
            make_optimizer(config)
        case "training.loss":
            make_loss(config)
        case "training.writer":
            open_writers(["own"], config, Path("run"))
        case "data.source":
            open_split(config.data, "train")
        case "data.objective":
            choose_objective(config.data, ())
        case "model.attention":
            layer = MultiHeadAttention(config.model, choose_policy(config.model), jax.random.key(0))
            heads = jnp.zeros((2, 3, 2, 4))
            layer.attend(heads, KeyValue(heads, heads), jnp.ones((2, 1, 3, 3), bool))
        case _:
            abstract_model(config.model, 20, 20)


def make_config() -> Config:
    return Config(model=ModelConfig(num_layers=1, d_model=8, num_heads=2))


class Seen(BaseException):
    """Holds the options that a variant has; no error, after which training would go on."""


class Seeing(nnx.Module):
    def __init__(self, config: Any, *_: Any, **__: Any):
        raise Seen(config.plugin["own"])

    def __call__(self, *_: Any, **__: Any) -> None: ...


# A measure belongs to evaluations, and is the same for all runs.
@pytest.mark.parametrize("field", sorted(EXTENSIBLE.keys() - {"plugin", "evaluation.measure"}))
@pytest.mark.usefixtures("one_device")
def test_options_reach_each_kind_of_variant(field: str, tmp_path: Path) -> None:
    register("plugin", "own")(Own)
    register(field, "own")(Seeing)
    config = override(make_config(), {"plugins": (__name__,), "plugin.own.mix": 0.25})
    save_config(config, tmp_path / "config.json")
    config = load_config(tmp_path / "config.json")
    for section in ("model", "data", "training"):  # as programs make copies
        setattr(config, section, dataclasses.replace(getattr(config, section)))
    with pytest.raises(Seen) as caught:
        use(field, config)
    assert caught.value.args == (Own(mix=0.25),)


class Uncallable:
    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        del config, policy, key


WRONG: dict[str, tuple[str, Callable[..., Any], str]] = {
    "schedule without d_model": ("training.schedule", lambda training: None, "arguments"),
    "no rate": ("training.schedule", lambda *_: lambda count: None, "returned function"),
    "schedule of nothing": ("training.schedule", lambda *_: lambda: 0.1, "returned function"),
    "only an update": ("training.optimizer", lambda *_: (None, None), "returned tuple"),
    "list of pairs": ("data.source", lambda *_: [("a", "b")], "returned list"),
    "function as a layer": ("model.feed_forward", lambda *_: jnp.tanh, "returned"),
    "attention of no scale": ("model.attention", lambda q, k, m, b, r, key: q, "arguments"),
    "joined heads": (
        "model.attention",
        lambda query, *_, scaled: query.reshape(2, 3, -1),
        r"returned an array of shape \(2, 3, 8\) instead of",
    ),
    "attention without a key": ("model.attention", type("Own", (nnx.Module,), {}), "arguments"),
    "attention class of no module": ("model.attention", Uncallable, "returned Uncallable"),
    "norm of two": ("model.norm", lambda *_: Position(), "returned Position"),
    "norm as a position": ("model.position", lambda *_: Identity(), "returned Identity"),
    "layer as a family": ("model.kind", lambda *_: Identity(), "returned Identity"),
}


@pytest.mark.parametrize(("field", "function", "fault"), WRONG.values(), ids=WRONG)
@pytest.mark.usefixtures("one_device")
def test_wrong_function_is_named_with_the_signature_that_is_expected(
    field: str, function: Callable[..., Any], fault: str
) -> None:

    def register_and_use() -> None:
        register(field, "own")(function)
        use(field, make_config())

    with pytest.raises(ConfigError) as caught:
        register_and_use()
    expected = re.escape(str(EXTENSIBLE[field]))  # `match` would also read the notes that JAX adds
    assert re.fullmatch(rf"{field}='own': .* {fault}.*; expected {expected}", str(caught.value))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda config, schedule, parameters: optax.sgd(schedule), []),
        (lambda config, schedule, parameters: optax.sgd(0.1), ["has a rate of its own"]),
        (
            lambda config, schedule, parameters: make_optimizer(Config())._replace(
                init=optax.sgd(schedule).init,
                update=optax.sgd(schedule).update,
                evaluation_params=lambda state, params: params,
            ),
            ["is evaluated at other parameters"],
        ),
        (
            lambda config, schedule, parameters: optax.partition(
                {"own": optax.adam(schedule), "none": optax.set_to_zero()},
                {"w": "own", "v": "none"},
            ),
            ["own updates 3 parameters", "no optimiser has a state for v (3)"],
        ),
    ],
)
def test_optimizer_that_the_log_does_not_show_is_told_apart(
    make: Callable[..., Any], said: list[str]
) -> None:
    register("training.optimizer", "own")(make)
    config = Config(training=TrainingConfig(optimizer="own"))
    lines = describe_optimizer(
        config, make_optimizer(config), {"w": jnp.zeros(3), "v": jnp.zeros(3)}
    )
    assert len(lines) == len(said)
    assert all(text in line for text, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("missing.variants", "the module missing.variants .* PYTHONPATH$"),
        ("tests.missing", "the module tests.missing .* PYTHONPATH$"),
        ("package..module", "'package..module' is not the name of a module"),
    ],
)
def test_plugin_that_is_no_module_is_an_error_with_the_remedy(module: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^plugins: {message}"):
        validate(Config(plugins=(module,)))


def test_plugin_that_lacks_a_module_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_plugin.py").write_text("import missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'missing'"):
        validate(Config(plugins=("needy_plugin",)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that names a module, which is on the user's path."""
    monkeypatch.setattr(variants, "_trusted", set())
    monkeypatch.setattr(variants, "_trusts_copies", False)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "my_variants.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setitem(sys.modules, "my_variants", None)  # so that it is removed in the end
    del sys.modules["my_variants"]
    config = Config(plugins=("my_variants",), training=TrainingConfig(schedule="linear"))
    (tmp_path / "run").mkdir()
    save_config(config, tmp_path / "run" / "config.json")
    return tmp_path / "run"


def keep_copy(run: Path) -> Path:
    (run / "plugins").mkdir()
    return Path(shutil.copy(run.parent / "path" / "my_variants.py", run / "plugins"))


def open_and_find(run: Path) -> str:
    """The file of the module that the run names, after its config is loaded."""
    load_config(run / "config.json")
    assert find_variant("training.schedule", "linear").__module__ == "my_variants"
    return str(sys.modules["my_variants"].__file__)


@pytest.mark.parametrize("has_copy", [False, True])
def test_opening_a_run_imports_no_module_that_it_names(run: Path, has_copy: bool) -> None:
    if has_copy:
        keep_copy(run)
    with pytest.raises(ConfigError, match=r"the module my_variants, .*--plugins=my_v") as error:
        load_config(run / "config.json")
    assert ("--trust_plugins" in str(error.value)) == has_copy
    assert read_saved_config(run / "config.json").plugins == ("my_variants",)
    assert "my_variants" not in sys.modules


def test_module_that_the_user_names_is_imported_from_the_users_path(run: Path) -> None:
    """Or what the user has imported before."""
    keep_copy(run)
    trust_plugins(["my_variants"])
    assert open_and_find(run) == str(run.parent / "path" / "my_variants.py")
    trust_plugins(copies=True)
    assert open_and_find(run) == str(run.parent / "path" / "my_variants.py")


def test_trusted_copy_of_a_run_is_imported_from_the_run(run: Path) -> None:
    trust_plugins(copies=True)
    with pytest.raises(ConfigError, match="--plugins=my_variants, which runs it from your path"):
        load_config(run / "config.json")  # not from the user's path
    copy, before = keep_copy(run), [*sys.path]
    assert open_and_find(run) == str(copy)
    assert sys.path == before
