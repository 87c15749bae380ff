"""Rows as the shipped sweeps have them, on every recipe, and what is refused."""

import runpy
from pathlib import Path

import pytest

from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TrainingConfig,
)
from t2t.config.files import override
from t2t.config.rules import check_effect, validate
from t2t.ops.flops import count_parameters
from t2t.sweeps.sweep_rows import Row, make_runs, match_steps, read_rows, select
from t2t.training.schedule import make_schedule
from t2t.training.sharing import count_run_parameters
from t2t.training.total_flops import count_flops
from tests.tiny_training import change

ROOT = Path(__file__).parents[2]
SWEEP = Path("sweep")
SHARING = ROOT / "configs" / "sweeps" / "sharing.py"  # which needs several directions
MIXTURE = ROOT / "configs" / "sweeps" / "mixture.py"  # which reads the files of one experiment
SWEEPS = sorted({*MIXTURE.parent.glob("*.py")} - {MIXTURE, SHARING})


def read_recipe(path: Path) -> Config:
    config = runpy.run_path(str(path))["get_config"]()
    assert isinstance(config, Config)
    return config


RECIPES = [
    path
    for path in sorted((ROOT / "configs").glob("*.py"))
    if path.stem not in ("fine_tune", "text")  # whose models are those of a run and of a text
    and read_recipe(path).model.kind == "transformer"  # whose parts the rows are about
]


def test_table_3_has_the_papers_values_on_the_papers_model() -> None:
    rows = {row.name: row for row in read_rows(ROOT / "configs/sweeps/table3.py", Config())}
    assert "".join(dict.fromkeys(row.group[0] for row in rows.values())) == "bABCDEr"
    heads = [
        (row.overrides["model.num_heads"], row.overrides["model.d_k"], row.overrides["model.d_v"])
        for row in rows.values()
        if row.group == "A"
    ]
    assert heads == [(1, 512, 512), (4, 128, 128), (16, 32, 32), (32, 16, 16)]
    narrow = {"model.d_model": 256, "training.learning_rate": 1.0, "model.d_k": 32, "model.d_v": 32}
    assert rows["C-dmodel256"].overrides == narrow


def test_table_3_keeps_its_proportions_on_a_smaller_model() -> None:
    base = Config(
        model=ModelConfig(num_layers=3, d_model=128, d_ff=512, num_heads=4),
        training=TrainingConfig(schedule="cosine", learning_rate=0.003),
    )
    rows = {row.name: row for row in read_rows(ROOT / "configs/sweeps/table3.py", base)}
    assert rows["A-h16"].overrides == {"model.num_heads": 8, "model.d_k": 16, "model.d_v": 16}
    assert rows["C-N8"].overrides == {"model.num_layers": 4}
    assert rows["C-dmodel256"].overrides["training.learning_rate"] == 0.004243
    assert rows["big"].overrides["training.learning_rate"] == 0.002121
    deep = Config(model=ModelConfig(encoder_layers=12, decoder_layers=3))
    rows = {row.name: row for row in read_rows(ROOT / "configs/sweeps/table3.py", deep)}
    layers = [rows["C-N2"].overrides[f"model.{side}_layers"] for side in ("encoder", "decoder")]
    assert layers == [4, 1]


@pytest.mark.parametrize("schedule", ["noam", "cosine"])
def test_row_without_warm_up_has_the_peak_rate_of_the_base(schedule: str) -> None:
    rate = 1.0 if schedule == "noam" else 0.002
    training = TrainingConfig(schedule=schedule, learning_rate=rate, warmup_steps=30, steps=100)
    rows = read_rows(ROOT / "configs/sweeps/remove_one.py", Config(training=training))
    [run], _ = make_runs(
        Config(training=training), [row for row in rows if "warm" in row.name], SWEEP
    )
    base, other = (make_schedule(each, 512) for each in (training, run.config.training))
    peak = max(float(base(count)) for count in range(100))
    assert max(float(other(count)) for count in range(100)) == pytest.approx(peak, rel=1e-3)
    assert float(other(1)) == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize(
    ("schedule", "rate", "cooldown"),
    [("noam", 1.0, 0), ("inverse_sqrt", 0.002, 3000), ("cosine", 0.002, 0)],
)
def test_row_with_as_many_flops_has_the_schedule_of_the_base(
    schedule: str, rate: float, cooldown: int
) -> None:
    """Twice the layers: about half of the steps, of the warm-up and of the cooldown."""
    training = TrainingConfig(schedule=schedule, learning_rate=rate, warmup_steps=2000, steps=12000)
    training.cooldown_steps = cooldown
    base, changes = Config(training=training), {"model.num_layers": 12}
    config = override(base, {**changes, **match_steps(base, changes)})
    flops = [count_flops(each, base.tokenizer.vocab_size) for each in (base, config)]
    assert flops[1] == pytest.approx(flops[0], rel=1e-3)
    assert 0.4 < config.training.steps / training.steps < 0.7
    rates = [
        [
            float(make_schedule(each, 512)(round(share * each.steps)))
            for share in (0.05, 0.1, 0.17, 0.4, 0.8, 0.95)
        ]
        for each in (training, config.training)
    ]
    assert rates[1] == pytest.approx(rates[0], rel=0.01)


BASES = {path.stem: read_recipe(path) for path in RECIPES} | {
    "shared keys": Config(model=ModelConfig(num_kv_heads=2)),
    "long rows and learned positions": Config(
        model=ModelConfig(position="learned", max_positions=2048),
        data=DataConfig(packed_length=2048),
    ),
    "own depths": Config(model=ModelConfig(encoder_layers=12, decoder_layers=3)),
    "a minimum length": Config(decoding=DecodingConfig(min_length=1500, max_extra_length=1500)),
    "sampled sub-words and R-Drop": Config(
        data=DataConfig(packed_length=256, subword_sampling=0.1), training=TrainingConfig(r_drop=5)
    ),
    "weight decay": Config(training=TrainingConfig(optimizer="nadamw", weight_decay=0.1)),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.stem)
def test_rows_fit_every_recipe_and_other_bases(sweep: Path, base: Config) -> None:
    runs, left_out = make_runs(base, read_rows(sweep, validate(base)), SWEEP)
    assert {*left_out.values()} <= {"it does not change the base"}
    first = [(repr(run.config), run.row.checkpoint) for run in runs if run.seed == 0]
    assert len({*first}) == len(first)  # each is another training, or is scored otherwise


def test_rows_of_sharing_have_the_size_or_the_flops_of_base() -> None:
    data = {"directions": ("en-de", "de-en")}
    base = change(read_recipe(ROOT / "configs/quickstart.py"), data=data)
    runs, _ = make_runs(base, read_rows(SHARING, base), SWEEP)
    configs = {run.row.name: run.config for run in runs}
    sizes = {name: count_run_parameters(each, 2000, 2000) for name, each in configs.items()}
    flops = {name: count_flops(each, 2000) for name, each in configs.items()}
    assert len(configs) == 7
    for name in configs.keys() - {"base"}:
        if name.endswith("-narrow"):
            assert abs(sizes[name] / sizes["base"] - 1) < 0.1
        else:
            assert sizes[name] > 1.2 * sizes["base"]
            assert flops[name] == flops["base"]
    with pytest.raises(ConfigError, match=r"data\.directions=\(\) are no two; give"):
        read_rows(SHARING, Config())


def test_rows_of_mixtures_fit_a_base_of_text() -> None:
    base = read_recipe(ROOT / "configs/multi30k.py")
    text = {"source": "text", "train_src": ("pairs.en",), "train_tgt": ("pairs.de",),
            "validation_src": "val.en", "validation_tgt": "val.de", "filters": ()}  # fmt: skip
    base = change(base, data=text)
    runs, left_out = make_runs(base, read_rows(MIXTURE, validate(base)), SWEEP)
    assert not left_out
    assert {run.row.name for run in runs} >= {"base", "denoising-first", "mixture-0.25"}


def test_rows_of_another_kind_of_model_are_left_out_by_name() -> None:
    base = Config(model=ModelConfig(kind="rnn"))
    runs, left_out = make_runs(base, read_rows(ROOT / "configs/sweeps/remove_one.py", base), SWEEP)
    assert {"base", "no_warmup", "no_label_smoothing"} < {run.row.name for run in runs}
    assert left_out["one_head"].startswith("model.num_heads=1 is not used by model.kind='rnn'")


def test_row_that_changes_nothing_is_left_out_unless_it_scores_another_checkpoint() -> None:
    rows = [
        Row("base"),
        Row("post_norm", {"model.norm_position": "post"}),
        Row("unused", {"model.max_positions": 2048}),
        Row("seed", {"seed": 9}),
        Row("ema", checkpoint="ema"),
    ]
    runs, idle = make_runs(Config(), rows, SWEEP)
    assert [run.row.name for run in runs] == ["base", "seed", "ema"]
    assert [*idle] == ["post_norm", "unused"]


def test_flag_of_a_sweep_has_an_effect_on_one_row_at_least() -> None:
    base = Config(model=ModelConfig(max_positions=300), data=DataConfig(sampled_sides="src"))
    base.data.packed_length = 256

    def check(rows: list[Row]) -> None:
        configs = [run.config for run in make_runs(base, rows, SWEEP)[0]]
        check_effect(configs, ["model.max_positions", "data.sampled_sides"])

    rows = [Row("base"), Row("learned", {"model.position": "learned"})]
    with pytest.raises(ConfigError, match=r"^data.sampled_sides='src' has no effect with .*$"):
        check(rows)
    rows.append(Row("sampled", {"data.subword_sampling": 0.1}))
    check(rows)


def test_row_with_too_high_a_peak_is_named() -> None:
    rows = [Row("base"), Row("cosine", {"training.schedule": "cosine"})]
    with pytest.raises(ConfigError, match=r"row cosine: training.learning_rate=1 is a factor only"):
        make_runs(Config(), rows, SWEEP)


def test_low_resource_row_is_without_the_translations_of_the_base() -> None:
    data = DataConfig(source="multi30k+text", train_src=("a",), train_tgt=("b",))
    base = Config(data=data)
    rows = read_rows(ROOT / "configs/sweeps/low_resource.py", base)
    runs, _ = make_runs(base, [row for row in rows if row.name == "original_pairs"], SWEEP)
    assert [run.config.data for run in runs] == [DataConfig(source="multi30k")] * 3


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recurrent_row_is_as_large_as_the_base(recipe: Path) -> None:
    base = read_recipe(recipe)
    rows = read_rows(ROOT / "configs/sweeps/table3.py", base)
    [run], _ = make_runs(base, [row for row in rows if row.name == "rnn"], SWEEP)
    size = base.tokenizer.vocab_size
    recurrent, attending = (count_parameters(c.model, size, size) for c in (run.config, base))
    assert recurrent == pytest.approx(attending, rel=0.05)


def test_seeds_of_a_row_are_runs_and_the_first_ones_come_first() -> None:
    runs, _ = make_runs(
        Config(seed=5), [Row("base", seeds=(0, 1)), Row("x", {"model.d_ff": 8})], SWEEP
    )
    assert [run.name for run in runs] == ["base-seed0", "x-seed0", "base-seed1"]
    assert [run.config.seed for run in runs] == [5, 5, 6]


def test_only_takes_rows_and_groups_and_keeps_base() -> None:
    rows = [Row(name) for name in ("base", "A-h1", "A-h4", "B-dk16", "big")]
    names = [row.name for row in select(rows, ["A", "big"])]
    assert names == ["base", "A-h1", "A-h4", "big"]
    assert select(rows, []) == rows
    assert [row.name for row in select([*rows, Row("big-C")], ["big"])] == ["base", "big"]
    assert [row.name for row in select([*rows, Row("base-big")], ["big"])] == ["base", "big"]
    with pytest.raises(ConfigError, match="--only=F: no such row; the rows are base, A-h1"):
        select(rows, ["A", "F"])


def test_rows_that_do_not_fit_are_refused_all_at_once() -> None:
    rows = [
        Row("base"),
        Row("heads", {"model.num_heads": 7}),
        Row("misspelt", {"model.num_head": 1}),
        Row("type", {"model.d_ff": "two", "model.num_heads": None}),
    ]
    with pytest.raises(ConfigError) as error:
        make_runs(Config(), rows, SWEEP)
    lines = str(error.value).splitlines()
    assert lines[0].startswith("row heads: model.num_heads=7 does not divide model.d_model=512")
    assert lines[1].startswith("row misspelt: model.num_head=1: no such field; perhaps model.num_h")
    assert lines[2].startswith("row type: model.d_ff='two' is not of type int")
    assert lines[3] == "row type: model.num_heads=None is not of type int"
    assert lines[4] == "choose other rows with --only, or another base"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = []", "there is no function get_rows"),
        ("get_rows = lambda: []", r"get_rows\(base\) takes the base: too many positional"),
        ("get_rows = lambda base: 3", r"has to return a list of rows.*, and not 3"),
        ("get_rows = lambda base: [Row('base'), 'one']", "list of rows.*, and not 'one'"),
        ("get_rows = lambda base: []", "the first row must be 'base'"),
        (
            "get_rows = lambda base: [Row('base'), Row('x', against='y')]",
            "which is no other row",
        ),
        (
            "get_rows = lambda base: [Row('base'), Row('x-1', against='best')]",
            "use 'best' in a",
        ),
        ("get_rows = lambda base: [Row('base'), Row('a/b')]", "row 'a/b' cannot name a folder"),
        ("get_rows = lambda base: [Row('base', seeds=())]", r"row base has the seeds \(\)"),
        ("get_rows = lambda base: [Row('a', [1])]", r"row a: overrides=\[1\] is not of type .*Map"),
        (
            "get_rows = lambda base: [Row('a', published=Published('x', {'bleu': 25.8}))]",
            r"row a: published bleu=25.8: give the score of each seed, such as \(25.8,\)",
        ),
        ("get_rows = lambda base: [Row('a', seed=1)]", "rows.py: seed=1: no such field; .* seeds"),
        ("get_rows = lambda base: [Row(base.training.step)]", "rows.py: training.step: no such"),
        (
            "def get_rows(base):\n    base.training.steps = 3\n    return [Row('base')]",
            r"get_rows\(base\) changes the base; name the changes of a row in Row",
        ),
    ],
)
def test_file_that_is_no_sweep_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.py"
    path.write_text(f"from t2t.sweeps.sweep_rows import Row, Published\n\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        read_rows(path, Config())
    with pytest.raises(ConfigError, match="is no file; name a recipe, such as configs/sweeps"):
        read_rows(tmp_path, Config())
