"""The tasks of `data.mixture`: what each inherits, their weights, and what is refused."""

from typing import Any

import pytest

from t2t.config.fields import Config, ConfigError, DataConfig, ModelConfig, TrainingConfig
from t2t.config.mixture import read_mixture
from t2t.config.rules import check_effect, validate

TEXT: dict[str, Any] = {"source": "text", "train_src": ("a.en",), "train_tgt": ("a.de",)}
FILL = "fill: objective=span_corruption train_tgt=b.de,c.de prefix=<fill>"


def make(*entries: str, **fields: Any) -> Config:
    return Config(data=DataConfig(**TEXT | {"mixture": entries} | fields))


def test_task_has_its_own_fields_and_inherits_what_fits_it() -> None:
    config = validate(
        make(
            "translate: prefix='translate English to German:' max_length_ratio=2",
            f"{FILL} train_weights=1,2 noise_density=0.3",
            max_length_ratio=1.5, train_weights=(1.0, 0.5), packed_length=512,
        )
    )  # fmt: skip
    translate, fill = read_mixture(config.data)
    assert (translate.task, fill.task) == ("translate", "fill")
    assert translate.train_src == ("a.en",)
    assert translate.prefix == "translate English to German:"
    assert (fill.train_src, fill.train_tgt, fill.prefix) == ((), ("b.de", "c.de"), "<fill>")
    assert (fill.noise_density, fill.max_length_ratio, fill.packed_length) == (0.3, 0.0, 512)
    assert translate.max_length_ratio == 2
    assert (translate.train_weights, fill.train_weights) == ((), (0.5, 1.0))
    for task in (translate, fill):
        assert read_mixture(task) == [task]
    plain = DataConfig()
    assert read_mixture(plain) == [plain]


def test_fields_of_any_task_have_an_effect() -> None:
    config = make("translate:", FILL, noise_density=0.2, hf_files=())
    check_effect([config], ["data.noise_density"])
    with pytest.raises(ConfigError, match=r"data.noise_density=0\.2 has no effect"):
        check_effect([make("one:", "two:", noise_density=0.2)], ["data.noise_density"])


@pytest.mark.parametrize(
    ("entries", "fields", "message"),
    [
        (("a b: x=1",), {}, "data.mixture has 'a b: x=1'; write NAME: FIELD=VALUE"),
        (("a: prefix='x",), {}, "No closing quotation; end each quotation"),
        (("a: prefix=one two",), {}, "'two' is no FIELD=VALUE; write a value with spaces in quot"),
        (("a: trian_tgt=x",), {}, "data.trian_tgt: no such field; perhaps data.train_tgt"),
        (("a: packed_length=9",), {}, "data.packed_length is common to all tasks; set it outside"),
        (("a: prefix=x prefix=y",), {}, "which sets prefix twice; set it once"),
        (("a: noise_density=x",), {}, "data.noise_density='x' is not of type float"),
        (("a:", "a:"), {}, "data.mixture names the task 'a' twice; name each once"),
        (("a:", FILL), {"train_weights": (1.0,)}, "data.train_weights has 1 values for 2 tasks of"),
        (("a:", FILL), {"stages": ("9: 1,1", "1,1,1")}, "with 3 weights for 2 tasks of data.mixt"),
        (
            ("a:", FILL), {"stages": ("9: 1,1", "1,0"), "temperature": 2.0},
            "both say how often an epoch uses a corpus",
        ),
        (("a:", "b: objective=translation source=text train_src= train_tgt=b.de"), {},
         r"in data.mixture, b: data.train_src has 0 files and data.train_tgt 1; .* equally many"),
        (("a:", "b: objective=lm"), {},
         "in data.mixture, b: data.objective='lm' cannot train model.kind='transformer'"),
        (("a:", "b: objective=fill"), {}, "in data.mixture, b: data.objective='fill' is unknown"),
        (("a:", f"{FILL} noise_density=2"), {}, "in data.mixture, fill: data.noise_density=2.0 mu"),
        (("a:", FILL[:-1]), {}, "fill: data.prefix='<fill' must have angle brackets around whole"),
        (("a: prefix='<2de>: to'",), {}, "data.prefix='<2de>: to' must have angle brackets"),
        (("a: prefix='2de> to'",), {}, "data.prefix='2de> to' must have angle brackets around"),
        (("a:", "b: directions=en-de,en-fr"), {}, "are several tasks; write one for each"),
        (("a: tgt_language=de", "b: tgt_language=fr"), {},
         "a and b make .* of sources that begin alike, data.prefix=''; give one of them another"),
        ((FILL, FILL.replace("fill:", "mend:").replace("span_corruption", "denoising")), {},
         "fill and mend make .* begin alike, data.prefix='<fill>'"),
        (("a: src_language=en", "go: objective=prefix_lm train_tgt=b.de"), {},
         "a and go make .* of sources that begin alike"),
        (("fill objective=span_corruption",), {}, r"write NAME: FIELD=VALUE FIELD=VALUE, with"),
        ((FILL, "a:"), {"bleu": 1000}, "in data.mixture, fill: training.translate_every=1000 is"),
    ],
)  # fmt: skip
def test_bad_mixture_is_refused_in_a_line(
    entries: tuple[str, ...], fields: dict[str, Any], message: str
) -> None:
    config = make(*entries, **{name: x for name, x in fields.items() if name != "bleu"})
    config.training = TrainingConfig(translate_every=fields.get("bleu", 0))
    with pytest.raises(ConfigError, match=message):
        validate(config)


@pytest.mark.parametrize(
    ("kind", "objective"), [("decoder_only", "masked_lm"), ("encoder_only", "translation")]
)
def test_prefix_and_objective_fit_the_kind_of_model(kind: str, objective: str) -> None:
    data = DataConfig("phrasebook", mixture=("a: objective=masked_lm", f"b: objective={objective}"))
    with pytest.raises(ConfigError, match=f"cannot train model.kind='{kind}'"):
        validate(Config(ModelConfig(kind=kind), data))
    alone = Config(ModelConfig(kind="decoder_only"), DataConfig(objective="lm", prefix="<lm>"))
    with pytest.raises(ConfigError, match=r"prefix='<lm>' is not used by data\.objective='lm'"):
        validate(alone)


def test_problem_of_the_run_is_named_once_and_of_no_task() -> None:
    """Checkpoints are ranked by the main task, yet no task sets how many there are."""
    config = make("a: validation_src=d.en validation_tgt=d.de", FILL, batch_tokens=8)
    config.training.validate_every, config.checkpoints.every = 20, 10
    with pytest.raises(ConfigError) as error:
        validate(config)
    for problem in ("data.batch_tokens=8 cannot hold", "checkpoints.every=10 must be a multiple"):
        assert str(error.value).count(problem) == 1
    assert "in data.mixture" not in str(error.value)
