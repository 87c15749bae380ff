"""Saving and loading configs as JSON, overrides, and differences between configs."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t.config.field_types import FILTERS
from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    TrainingConfig,
    flatten,
)
from t2t.config.files import (
    differences,
    load_config,
    override,
    override_decoding,
    overrides,
    save_config,
)
from t2t.config.fitted_config import check_config

OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "model.num_heads": st.sampled_from([1, 4, 16]),
        "model.d_k": st.none() | st.integers(1, 999),
        "model.residual": st.booleans(),
        "model.dropout": st.floats(0, 1, exclude_max=True),
        "data.source": st.just("tfds"),
        "data.filters": st.lists(st.sampled_from(FILTERS), unique=True).map(tuple),
        "data.train_weights": st.lists(st.floats(0.1, 9), max_size=1).map(tuple),
        "data.cache_directory": st.text(min_size=1),
        "training.learning_rate": st.floats(0, exclude_min=True, allow_infinity=False),
        "seed": st.integers(0, 2**31 - 1),
    },
)


@given(OVERRIDES)
def test_changed_fields_are_the_overrides_and_survive_json(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    config, defaults = override(Config(), values), flatten(Config())
    assert overrides(config) == {n: v for n, v in values.items() if v != defaults[n]}
    assert flatten(config) == defaults | values
    assert override(Config(), overrides(config)) == config
    assert len(differences(Config(), config)) == len(overrides(config))
    save_config(config, tmp_path / "config.json")
    assert load_config(tmp_path / "config.json") == config


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.sampled_from([*flatten(Config())]), SCALARS | st.lists(SCALARS) | st.just({}))
def test_any_value_of_a_field_is_taken_or_refused_by_its_name(
    tmp_path: Path, name: str, value: Any
) -> None:
    section, _, field = name.rpartition(".")
    try:
        load_changed(tmp_path, section, {field: value})
    except ConfigError as error:
        assert (section or field) in str(error)  # noqa: PT017


def load_changed(tmp_path: Path, section: str, changes: dict[str, Any]) -> Config:
    """Loads the defaults with other values of a section; "": of the whole."""
    values = dataclasses.asdict(Config())
    (values[section] if section else values).update(changes)
    (tmp_path / "config.json").write_text(json.dumps(values))
    return load_config(tmp_path / "config.json")


@pytest.mark.parametrize("value", [b"2", 10**400, np.zeros((9, 9))])
def test_value_that_json_does_not_have_is_rejected_in_one_line(value: Any) -> None:
    config = Config(data=DataConfig(validation_src=value), training=TrainingConfig(adam_b1=value))
    with pytest.raises(ConfigError) as error:
        check_config(config)
    lines = str(error.value).splitlines()
    assert [line.partition("=")[0] for line in lines] == ["data.validation_src", "training.adam_b1"]


def test_numbers_and_lists_of_python_and_numpy_are_those_of_json(tmp_path: Path) -> None:
    texts: dict[str, Any] = {"train_src": ["a"], "train_tgt": (name for name in "b")}
    config = Config(data=DataConfig(source="text", **texts))
    config.training.learning_rate = 1
    numbers: dict[str, Any] = {
        "d_ff": np.int64(8),
        "residual": np.bool_(0),
        "dropout": np.array(0.5),
    }
    config.model = ModelConfig(**numbers)
    checked = check_config(config)
    assert (checked.data.train_src, checked.data.train_tgt) == (("a",), ("b",))
    found = checked.training.learning_rate, *(getattr(checked.model, name) for name in numbers)
    assert [*map(type, found)] == [float, int, bool, float]
    save_config(checked, tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"config=.* is not of type t2t\.config\.Config"):
        check_config("configs/base.py")


@pytest.mark.parametrize(
    "write",
    [
        lambda config: setattr(config.training, "step", 3),
        lambda config: TrainingConfig(step=3),  # type: ignore[call-arg]
        lambda config: dataclasses.replace(config.training, step=3),
        lambda config: override(config, {"training.step": 3}),
    ],
)
def test_unknown_field_is_refused_where_it_is_written_with_the_nearest(
    write: Callable[[Config], Any],
) -> None:
    with pytest.raises(ConfigError, match=r"^training\.step=3: no such field; perhaps .*\.steps, "):
        write(Config())


def test_unknown_field_of_a_search_is_refused_with_the_nearest_of_decoding() -> None:
    with pytest.raises(ConfigError, match=r"=2: no such field; perhaps (decoding\.\w+(, |$)){3}$"):
        override_decoding(Config(), {"n_best": 2})


@pytest.mark.parametrize("value", [{"d_ff": 8}, DataConfig()])
def test_section_is_not_replaced_by_something_else(value: Any) -> None:
    for write in (
        lambda: setattr(Config(), "model", value),
        lambda: Config(model=value),
        lambda: override(Config(), {"model": value}),
    ):
        with pytest.raises(ConfigError, match=r"^model=.*: this section is a ModelConfig; set its"):
            write()


@pytest.mark.parametrize("value", [1, {"own": {"mix": 0.5}}])
def test_options_of_plugins_are_not_set_in_a_section(value: Any) -> None:
    for write in (
        lambda: setattr(Config().training, "plugin", value),
        lambda: TrainingConfig(plugin=value),  # type: ignore[call-arg]
    ):
        with pytest.raises(
            ConfigError, match=r"^training\.plugin=.*: no such field; perhaps plugin"
        ):
            write()


def test_copies_of_a_config_are_configs() -> None:
    config = Config(training=TrainingConfig(steps=3))
    for copied in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert copied == config
        with pytest.raises(ConfigError, match="step=1: no such field"):
            setattr(copied.training, "step", 1)  # noqa: B010


@pytest.mark.parametrize(
    ("section", "changes", "messages"),
    [
        ("model", {"width": 1, "d_q": 2}, ["json: unknown fields model.d_q, model.width"]),
        ("", {"model": 3}, ["json: model=3 is not of type ModelConfig"]),
        (
            "",
            {"seed": "1", "plugins": [1]},
            ["json: seed='1' is not of type int", "json: plugins=[1] is not of type tuple[str"],
        ),
        ("data", {"train_weights": ["1"]}, ["json: data.train_weights=['1'] is not of type tuple"]),
        ("model", {"d_model": 512.0}, ["json: model.d_model=512.0 is not of type int"]),
        ("training", {"steps": True}, ["json: training.steps=True is not of type int"]),
        ("model", {"num_heads": 5}, ["model.num_heads=5 does not divide"]),
    ],
)
def test_all_that_is_wrong_in_a_file_is_named_at_once(
    tmp_path: Path, section: str, changes: dict[str, Any], messages: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_changed(tmp_path, section, changes)
    for line, message in zip(str(caught.value).splitlines(), messages, strict=True):
        assert message in line


@pytest.mark.parametrize(
    ("content", "message"),
    [(b'{"model": ', "is not JSON"), (b"\xff", "is not JSON"), (b"[]", "expected an object")],
)
def test_file_that_is_no_config_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"config\.json:? {message}"):
        load_config(tmp_path / "config.json")
