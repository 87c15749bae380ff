"""Configs that programs read: overrides on the command line, and all recipes of t2t."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from absl import flags
from hypothesis import given
from hypothesis import strategies as st

from configs import algoperf_wmt, fine_tune
from t2t.config import recipes
from t2t.config.config_flag import define_config, read_recipe
from t2t.config.fields import (
    Config,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TokenizerConfig,
    flatten,
)
from t2t.config.files import save_config
from t2t.config.fitted_config import check_config
from t2t.config.recipes import find_recipe
from t2t.config.rules import check_effect
from t2t.ops.flops import count_parameters
from tests import programs

RECIPES = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


def parse_flags(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Config:
    """Returns the config of a program that is called with these arguments."""
    values = flags.FlagValues()
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    define_config(known=values)
    values(sys.argv)
    return read_recipe(values)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "model.num_heads": st.integers(-9, 99),
            "model.d_k": st.integers(1, 99),
            "model.residual": st.booleans(),
            "model.dropout": st.floats(allow_nan=False),
            "data.source": st.text(),
            "data.train_src": st.lists(st.text(), min_size=1).map(tuple),
            "data.train_weights": st.lists(st.floats(-9, 9), min_size=1).map(tuple),
            "seed": st.integers(-9, 1 << 40),
        },
    )
)
def test_command_line_changes_the_fields_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: dict[str, Any]
) -> None:
    path = tmp_path / "recipe.py"
    path.write_text("from t2t.config import Config\n\n\ndef get_config():\n    return Config()\n")
    flags = [f"--config={path}", *(f"--config.{name}={value}" for name, value in values.items())]
    assert flatten(parse_flags(monkeypatch, *flags)) == flatten(Config()) | values


def documented_commands(path: Path) -> list[Any]:
    """Finds the commands in the recipe's docstring: their arguments and overrides."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    text = re.sub(r"\\+\n", "", text)  # joins lines that end in a backslash
    shown = re.findall(rf"configs/{path.name}(:[\w,=-]+)?(.*)", text)
    return [
        pytest.param(path, argument, re.findall(r"--config\.\S+", rest), id=path.name + argument)
        for argument, rest in dict.fromkeys(shown)
    ]


@pytest.mark.parametrize(
    ("path", "argument", "overrides"),
    [command for path in RECIPES for command in documented_commands(path)],
)
def test_recipe_is_valid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: Path, argument: str, overrides: list[str]
) -> None:
    (tmp_path / "RUN").mkdir()  # which a recipe may name
    save_config(Config(), tmp_path / "RUN" / "config.json")
    monkeypatch.chdir(tmp_path)
    texts = {"src": "train.en", "tgt": "train.de"}
    for side, name in texts.items():
        text = "".join(f"sentence {n} is {n * n} on the {side}\n" for n in range(200))
        Path(name).write_text(text, "utf-8")
    if path.name == "text.py" and not overrides:  # of another command
        overrides = [f"--config.data.train_{side}={name}" for side, name in texts.items()]
    config = check_config(
        parse_flags(monkeypatch, f"--config={path}{argument}", *overrides, "--config.seed=3")
    )
    assert config.seed == 3
    check_effect([config], [override[len("--config.") :].split("=")[0] for override in overrides])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_recipe_shows_its_command(path: Path) -> None:
    assert documented_commands(path), f"the docstring says how to call configs/{path.name}"


def test_parameters_of_algoperf_are_those_of_the_workload() -> None:
    """Base has 6 + 6 layers: 18 attentions, 12 feed-forwards with biases, 32 norms, one table."""
    d_model = d_ff = 1024
    layers = 18 * 4 * d_model**2 + 12 * (2 * d_model * d_ff + d_ff + d_model)
    config = algoperf_wmt.get_config("nadamw")
    count = count_parameters(config.model, *[config.tokenizer.vocab_size] * 2)
    assert count == 32_000 * d_model + layers + 32 * 2 * d_model


def test_fine_tuning_keeps_what_the_parameters_depend_on(tmp_path: Path) -> None:
    model = ModelConfig(num_layers=2, position="rotary")
    data = DataConfig(source="multi30k", max_length=40, directions=("en-de", "de-en"))
    tokenizer, decoding = TokenizerConfig(lowercase=True), DecodingConfig(beam_size=7)
    base = Config(model=model, data=data, tokenizer=tokenizer, decoding=decoding)
    save_config(base, tmp_path / "config.json")
    config = fine_tune.get_config(str(tmp_path))
    assert (config.model, config.decoding) == (model, decoding)
    for saved, kept in (("mixed", "auto"), ("float32", "float32")):  # a CPU chooses mixed
        base.model.dtype = saved
        save_config(base, tmp_path / "config.json")
        assert fine_tune.get_config(str(tmp_path)).model.dtype == kept
    base.model.dtype = "auto"
    assert config.tokenizer == TokenizerConfig(path=f"{tmp_path}/vocab")
    assert config.training.init_from == str(tmp_path)
    assert (config.data.max_length, config.data.directions) == (40, data.directions)
    assert (config.data.src_language, config.data.tgt_language) == ("en", "de")


def test_fine_tuning_puts_the_prefix_of_the_main_task_in_front(tmp_path: Path) -> None:
    data = DataConfig(mixture=("a: tgt_language=fr prefix=<2fr>", "b: prefix=<2de>"))
    save_config(Config(data=data), tmp_path / "config.json")
    tuned = fine_tune.get_config(str(tmp_path)).data
    assert (tuned.tgt_language, tuned.prefix, tuned.mixture) == ("fr", "<2fr>", ())


@pytest.mark.parametrize(
    "program",
    [
        path.stem
        for path in sorted(programs.ROOT.glob("t2t/*.py"))
        if "read_config(" in path.read_text()
    ],
)
def test_every_program_that_reads_a_recipe_reads_all_of_it(program: str, tmp_path: Path) -> None:
    own = {"plan": ["--topology=cpu:1"], "sweep": ["--sweep=configs/sweeps/modern.py"]}
    place = "output" if program == "write_pairs" else "workdir"
    done = programs.run(
        f"t2t.{program}", "--config=configs/quickstart.py", "--config.tokenizer.path=gone",
        *([] if program in ("inspect_data", "plan") else [f"--{place}={tmp_path}/run"]),
        *own.get(program, ()),
    )  # fmt: skip
    assert done.returncode
    assert "tokenizer.path: gone cannot be read: No such file" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "command",
    ["train --distributed", "prepare", "sweep --sweep=configs/sweeps/modern.py --index=0", "plan"],
)
def test_minutes_are_for_a_process_that_trains_alone(command: str, tmp_path: Path) -> None:
    own = "--topology=cpu:1" if command == "plan" else f"--workdir={tmp_path}/run"
    message = programs.refuse(*f"t2t.{command} --config=configs/text.py:minutes=5 {own}".split())
    assert message.startswith("minutes=5: minutes depend on the machine, so they are for one")


def test_recipes_of_t2t_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("configs/multi30k.py:en-de", "configs/sweeps/table3.py"):
        assert find_recipe(path) == f"{programs.ROOT}/{path}"
    for path in ("configs/nothing.py", "mine.py", "setup.py", "/a/configs/base.py"):
        assert find_recipe(path) == path
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.py").touch()
    assert find_recipe("configs/base.py") == "configs/base.py"
    monkeypatch.chdir("/")
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "configs")  # as in an installed package
    assert find_recipe("configs/base.py") == str(tmp_path / "configs" / "base.py")
