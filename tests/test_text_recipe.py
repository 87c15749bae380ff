"""The recipe for one's own text: what it chooses, and what it refuses."""

import copy
import logging
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from configs import text
from t2t.config.fields import Config, ConfigError, flatten
from t2t.config.files import save_config
from t2t.config.fitted_config import check_config, list_open
from t2t.config.rules import check_effect
from t2t.data import text_facts
from t2t.data.corpus import DataError
from t2t.data.corpus_sources import open_training
from t2t.data.preparation import fill_tokenizer
from t2t.data.text_facts import measure_text
from t2t.data.tokenizer import train_vocabulary
from t2t.runtime import machine_speed
from t2t.runtime.mesh import check_divisibility
from t2t.training.resume import check_run

WORDS = [a + b + c for a in ("ka", "to", "mi", "su") for b in "rnlvt" for c in ("e", "ox", "una")]
LATIN = "bdfghjklmnprstvz", "aeiou"  # consonants, vowels


def make_sentences(pairs: int) -> list[str]:
    """Sentences of three to nine words."""
    return [
        " ".join(WORDS[(n * k * k + n // 7) % len(WORDS)] for k in range(1, 4 + n % 7))
        for n in range(pairs)
    ]


def write_text(folder: Path, pairs: int = 400, changes: str = "upper") -> None:
    """Sentences whose target has them in capitals, or as `changes` says."""
    lines = make_sentences(pairs)
    change: dict[str, Callable[[str], str]]
    change = {"upper": str.upper, "none": str, "moves": to_moves}
    (folder / "train.src").write_text("\n".join(lines) + "\n", "utf-8")
    targets = map(change[changes], lines)
    (folder / "train.tgt").write_text("\n".join(targets) + "\n", "utf-8")


def to_moves(line: str) -> str:
    """Words such as ka5ox4: BPE makes few merges, since letters and digits do not merge."""
    return " ".join(f"{word[:2]}{len(word)}{word[-2:]}4" for word in line.split())


def make_recipe(folder: Path, wishes: str = "", **fields: Any) -> text.TextConfig:
    config = text.get_config(wishes)
    config.data.train_src = (str(folder / "train.src"),)
    config.data.train_tgt = (str(folder / "train.tgt"),)
    config.data.cache_directory = str(folder / "cache")
    for name, value in fields.items():
        section, field = name.split("__")
        setattr(getattr(config, section), field, value)
    return config


def fit(folder: Path, wishes: str = "", **fields: Any) -> Config:
    return check_config(make_recipe(folder, wishes, **fields))


def test_all_numbers_are_chosen_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_text(tmp_path)
    with caplog.at_level(logging.INFO):
        config = fit(tmp_path)
    assert type(config) is Config
    assert config.model.d_model == 128
    assert config.training.steps >= config.training.warmup_steps * 10
    assert config.checkpoints.every == config.training.translate_every
    assert "training.steps" in caplog.text
    assert "sub-words an epoch" in caplog.text


def test_pairs_that_teach_nothing_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_text(tmp_path)
    fit(tmp_path)
    assert not caplog.records
    for side in ("src", "tgt"):
        path = tmp_path / f"train.{side}"
        path.write_text(path.read_text("utf-8") + "a copy\n" * 8, "utf-8")
    fit(tmp_path)
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "1.7% of the pairs repeat another one",
        "2.0% of the pairs have two equal sides",
    ]
    fit(tmp_path, data__filters=("duplicates",))
    assert len(caplog.messages) == 2


def test_a_flag_has_the_last_word(tmp_path: Path) -> None:
    write_text(tmp_path)
    config = fit(tmp_path, model__d_model=64, model__dropout=0.0, checkpoints__every=40)
    assert (config.model.d_model, config.model.d_ff, config.model.dropout) == (64, 256, 0.0)
    assert (config.checkpoints.every, config.training.translate_every) == (40, 40)


def test_more_text_gives_a_larger_model_with_less_dropout(tmp_path: Path) -> None:
    write_text(tmp_path)
    configs = [fit(tmp_path, data__train_weights=(weight,)) for weight in (1.0, 3000.0, 100_000.0)]
    assert [config.model.d_model for config in configs] == [128, 256, 512]
    for field in ("data.batch_tokens", "training.steps"):
        values = [flatten(config)[field] for config in configs]
        assert values == sorted(values)
    dropouts = [config.model.dropout for config in configs]
    assert dropouts == sorted(dropouts, reverse=True)
    rates = [config.training.learning_rate for config in configs]
    assert rates == sorted(rates, reverse=True)


def test_minutes_bound_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)

    def count(minutes: int, speed: float) -> int:
        monkeypatch.setattr(text, "measure_speed", lambda: (speed, 0.0))
        recipe = f"minutes={minutes}"
        return fit(tmp_path, recipe, data__train_weights=(300.0,)).training.steps

    slow, fast = count(10, 1e10), count(10, 2e10)
    assert fast == pytest.approx(2 * slow, rel=0.1)
    assert count(20, 1e10) > 2 * slow
    assert count(10**6, 1e12) == count(10**5, 1e12)  # more steps would bring nothing
    assert fit(tmp_path, "steps=70").training.steps == 70


@pytest.mark.parametrize(
    ("more", "fewer"),
    [
        ({"encoder_layers": 12, "decoder_layers": 12}, {"encoder_layers": 1, "decoder_layers": 1}),
        ({"num_layers": 9}, {"encoder_layers": 9, "decoder_layers": 3}),
        ({"kind": "transformer"}, {"kind": "decoder_only"}),
        ({"feed_forward": "swiglu"}, {"feed_forward": "relu"}),
        ({"feed_forward": "moe", "experts_per_token": 4}, {"feed_forward": "moe"}),
        ({"d_ff": 4096}, {"d_ff": 512}),
    ],
    ids=str,
)
def test_minutes_are_those_of_the_model_that_is_trained(
    more: dict[str, Any], fewer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path)
    monkeypatch.setattr(text, "measure_speed", lambda: (1e10, 0.0))
    small, large = (
        fit(tmp_path, "minutes=5,size=small", data__train_weights=(300.0,), **fields).training.steps
        for fields in (
            {f"model__{name}": value for name, value in each.items()} for each in (more, fewer)
        )
    )
    assert small < large


def test_equal_depths_take_equal_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may come from the size or from flags, and the minutes may choose the size."""
    write_text(tmp_path)
    monkeypatch.setattr(text, "measure_speed", lambda: (1e11, 0.0))
    recipe, weights = "minutes=30", (3000.0,)
    chosen = fit(tmp_path, recipe, data__train_weights=weights)
    depth = chosen.model.num_layers
    given = fit(
        tmp_path, recipe, data__train_weights=weights,
        model__encoder_layers=depth, model__decoder_layers=depth,
    )  # fmt: skip
    assert given.training == chosen.training
    assert given.model.d_model == chosen.model.d_model


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (95, "about 1.6 minutes"),
        (6000, "about 100 minutes"),
        (15_000, "about 4.2 hours"),
        (170_000, "about 47 hours"),
        (9e7, "about 1,000 days"),
    ],
)
def test_time_is_said_in_a_unit_that_reads_well(seconds: float, shown: str) -> None:
    assert text.describe_time(seconds) == shown


def test_large_and_small_numbers_have_no_exponents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_text(tmp_path)
    with caplog.at_level(logging.INFO):
        fit(tmp_path, "steps=100000000")
        fit(tmp_path, data__train_weights=(1e6,))
        fit(tmp_path, data__max_length=160)
    assert not re.search(r"\de[-+]\d", caplog.text)
    assert "8 rows of data.packed_length=160" in caplog.text


def test_speed_is_that_of_the_devices_that_jax_uses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine may have a GPU beside a JAX that cannot use it; then NumPy is measured."""
    measure = machine_speed.measure_speed.__wrapped__
    monkeypatch.setattr(machine_speed, "may_have_accelerator", lambda: True)
    assert measure()[1] == 0.0
    monkeypatch.setattr(machine_speed, "enable_compilation_cache", lambda: None)
    device = SimpleNamespace(platform="gpu", device_kind="a chip")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    name, flops = machine_speed.measure_devices(64)
    assert (name, flops > 0) == ("a chip", True)
    monkeypatch.setattr(machine_speed, "_ask_another_process", lambda: ("a chip", 1e12))
    with caplog.at_level(logging.INFO):
        assert measure()[0] < 1e12
    assert "a chip: products of bfloat16 reach 1 TFLOP/s; assumed that" in caplog.text


def test_accelerators_are_measured_for_minutes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as by `t2t.prepare`, which leaves them to others."""
    write_text(tmp_path)
    monkeypatch.setattr(text, "may_have_accelerator", lambda: True)
    monkeypatch.setattr(text, "measure_speed", lambda: pytest.fail("measured"))
    with caplog.at_level(logging.INFO):
        fit(tmp_path)
    assert "as many as the text needs" in caplog.text


def begin_run(workdir: Path, config: Config, steps: int = 0) -> None:
    """Saves what a run has: a config and a vocabulary, and perhaps a checkpoint."""
    save_config(config, workdir / "config.json")
    train_vocabulary(open_training(config.data), config.tokenizer, workdir / "vocab")
    if steps:
        (workdir / "checkpoints" / str(steps)).mkdir(parents=True)


@pytest.mark.parametrize("steps", [0, 5])
def test_run_goes_on_with_its_own_numbers(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path)
    saved = fit(tmp_path, "minutes=10,size=small")
    begin_run(tmp_path, saved, steps)
    monkeypatch.setattr(text, "measure_speed", lambda: (1e20, 0.0))
    for wishes in ("minutes=10,size=small", "size=small,minutes=10.0", ""):
        assert check_config(make_recipe(tmp_path, wishes), tmp_path) == saved
    for wishes in ("minutes=20,size=small", "minutes=10,size=base", "size=small"):
        with pytest.raises(ConfigError, match=r"began with minutes=10,size=small and has its") as e:
            check_config(make_recipe(tmp_path, wishes), tmp_path)
        assert "\n" not in str(e.value)


def test_run_without_vocabulary_chooses_anew(tmp_path: Path) -> None:
    """Such as one of wrong files, which was stopped at once."""
    write_text(tmp_path, 150)
    save_config(fit(tmp_path, "size=medium"), tmp_path / "config.json")
    write_text(tmp_path, 4000)
    for wishes in ("", "size=base", "steps=30"):
        assert check_config(make_recipe(tmp_path, wishes), tmp_path) == fit(tmp_path, wishes)


def test_run_without_checkpoint_keeps_its_vocabulary_if_a_flag_is_new(tmp_path: Path) -> None:
    write_text(tmp_path)
    first = fit(tmp_path)
    begin_run(tmp_path, first)
    config = check_config(make_recipe(tmp_path, model__d_model=64, training__steps=3000), tmp_path)
    assert config.tokenizer == first.tokenizer
    assert (config.model.d_ff, config.training.warmup_steps) == (256, 300)
    check_run(tmp_path, config, {})


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        (99, "upper", r"99 sentence pairs are too few to train a model on; bring 100 or more"),
        (200, "none", r"source and target are the same in 100% of the sentence pairs"),
    ],
)
def test_text_without_a_task_is_refused(
    pairs: int, changes: str, message: str, tmp_path: Path
) -> None:
    write_text(tmp_path, pairs, changes)
    with pytest.raises(DataError, match=message):
        fit(tmp_path)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ("minutes=nan", "minutes=nan: it has to be above 0"),
        ("minutes=5,minutes=6", "minutes is given twice"),
        ("hours=1", "hours=1: write minutes=NUMBER"),
        ("size=huge", "size=huge: use small, medium, base"),
        ("minutes=5,steps=20", "choose minutes or steps, not both"),
    ],
)
def test_wrong_wish_is_refused(wishes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        text.get_config(wishes)


@pytest.mark.parametrize(
    "fields",
    [
        {"tokenizer__shared": False, "model__tie_embeddings": "decoder"},
        {"tokenizer__kind": "unigram"},
        {"tokenizer__kind": "symbols"},
        {"tokenizer__kind": "characters", "tokenizer__byte_fallback": False},
        {"tokenizer__kind": "bytes"},
        {"model__kind": "decoder_only"},
        {"data__subword_sampling": 0.1},
        {"data__length_multiple": 24},
        {"data__objective": "span_corruption", "data__train_src": ()},
        {"data__objective": "lm", "data__train_src": (), "model__kind": "decoder_only"},
        {"data__objective": "masked_lm", "data__train_src": (), "model__kind": "encoder_only"},
        {"model__d_model": 100},
        {"model__encoder_layers": 3, "model__decoder_layers": 1},
        {"mesh__tensor": 4, "mesh__data": 1},
        {"mesh__tensor": 8, "mesh__data": 1},
        {"mesh__tensor": 4, "model__num_kv_heads": 4, "model__feed_forward": "moe"},
        {"mesh__tensor": 8, "tokenizer__kind": "symbols"},
        {"mesh__tensor": 4, "data__objective": "span_corruption", "data__train_src": ()},
        {"training__translate_every": 0},
        {"training__validate_every": 30},
        {"training__schedule": "noam", "training__optimizer": "adam"},
        {"decoding__strategy": "sampling"},
        {
            "model__kind": "rnn",
            "model__position": "sinusoidal",
            "model__norm_position": "post",
            "training__optimizer": "adam",
        },
        {"model__feed_forward": "none"},
    ],
    ids=str,
)
def test_numbers_fit_other_kinds_of_vocabularies_and_models(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    write_text(tmp_path)
    config = fit(tmp_path, **fields)
    check_effect([config], fields)  # as a notebook does
    own = fill_tokenizer(config).tokenizer
    train_vocabulary(open_training(config.data, own), own, tmp_path / "vocab")
    mesh: Any = SimpleNamespace(shape={"data": 1, "fsdp": 1, "tensor": config.mesh.tensor})
    check_divisibility(config, mesh)
    save_config(config, tmp_path / "config.json")
    assert check_config(make_recipe(tmp_path, **fields), tmp_path) == config  # it goes on


@pytest.mark.parametrize(
    ("kind", "pieces", "best"),
    [("symbols", 4 + 800, "exact_match"), ("characters", 4 + 256 + 12, "chrf")],
)
def test_types_of_the_whole_text_are_counted_whatever_the_sample(
    kind: str, pieces: int, best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a size refused that the text fills, and the sample does not."""
    monkeypatch.setattr(text_facts, "_SAMPLED", 20)
    lines = [f"{number:03d}{chr(97 + number // 200)}" for number in range(400)]
    (tmp_path / "train.src").write_text("\n".join(lines) + "\n")
    (tmp_path / "train.tgt").write_text("\n".join(line[::-1] for line in lines) + "\n")
    config = fit(tmp_path, tokenizer__kind=kind, tokenizer__shared=True)
    assert config.tokenizer.vocab_size == pieces
    assert config.checkpoints.best_metric == best
    assert fit(tmp_path, tokenizer__kind=kind, tokenizer__vocab_size=pieces) == config
    assert fit(tmp_path, tokenizer__vocab_size=1200).tokenizer.vocab_size == 1200


def test_limit_of_outputs_fits_the_targets(tmp_path: Path) -> None:
    """As of logical forms that are far longer than their sentences."""
    write_text(tmp_path)
    assert fit(tmp_path).decoding.max_extra_length == 50
    path = tmp_path / "train.tgt"
    lines = path.read_text("utf-8").splitlines()
    lines[7] = " ".join(lines[0].split()[0] for _ in range(90))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    source = (tmp_path / "train.src").read_text("utf-8").splitlines()[7]
    longer = 90 - len(source.split())
    config = fit(tmp_path, tokenizer__kind="symbols", data__max_length=200)
    assert 1.2 * longer <= config.decoding.max_extra_length < 1.2 * longer + 10
    assert fit(tmp_path, decoding__max_extra_length=60).decoding.max_extra_length == 60


def test_a_limit_of_length_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_text(tmp_path, 200)
    for side in ("src", "tgt"):
        path = tmp_path / f"train.{side}"
        lines = path.read_text("utf-8").splitlines()
        lines[::20] = [f"{line} " * 300 for line in lines[::20]]
        path.write_text("\n".join(lines) + "\n", "utf-8")
    with caplog.at_level(logging.INFO):
        assert fit(tmp_path).data.max_length == 1024
    assert "1,024  longer pairs are dropped, though 99% of the 200 pairs have" in caplog.text


def test_vocabulary_is_one_that_the_text_fills(tmp_path: Path) -> None:
    write_text(tmp_path, changes="moves")
    config = fit(tmp_path, tokenizer__shared=False, model__tie_embeddings="decoder")
    train_vocabulary(open_training(config.data), config.tokenizer, tmp_path / "vocab")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data__batch_tokens": 0}, "data.batch_tokens=0 must be positive"),
        ({"data__max_length": 2}, "all of the text is longer than data.max_length=2 sub-words"),
        ({"tokenizer__kind": "bep"}, "tokenizer.kind='bep' is unknown"),
        ({"data__train_src": ()}, "data.train_src has 0 files"),
    ],
)
def test_wrong_values_are_refused_before_others_are_chosen(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_text(tmp_path)
    with pytest.raises(ConfigError, match=message):
        fit(tmp_path, **fields)


def test_only_a_field_that_is_set_is_no_choice_of_the_recipe(tmp_path: Path) -> None:
    write_text(tmp_path)
    defaults: dict[str, Any] = {"model__num_layers": 6, "checkpoints__best_metric": "loss"}
    recipe = make_recipe(tmp_path, **defaults)
    del recipe.training.label_smoothing
    closed = {*list_open(text.get_config())} - {*list_open(copy.deepcopy(recipe))}
    assert closed == {"model.num_layers", "checkpoints.best_metric"}
    with pytest.raises(ConfigError, match=r"chose no value for training\.label_smoothing"):
        check_config(recipe)
    config = fit(tmp_path, **defaults)
    assert (config.model.num_layers, config.checkpoints.best_metric) == (6, "loss")


def make_words(consonants: str, vowels: str, number: int = 1200) -> Iterator[str]:
    """Distinct words of two to four syllables."""
    draw = random.Random(0)
    seen = set[str]()
    while len(seen) < number:
        pairs = [(draw.randrange(16), draw.randrange(5)) for _ in range(draw.randint(2, 4))]
        word = "".join(consonants[first] + vowels[second] for first, second in pairs)
        if word not in seen:
            seen.add(word)
            yield word


def write_script(folder: Path, consonants: str, vowels: str, space: str = " ") -> None:
    """Pairs whose target is in a script, and whose source is in Latin letters."""
    draw = random.Random(1)
    choices = [draw.choices(range(1200), k=draw.randint(3, 9)) for _ in range(1500)]
    sides = {"src": (make_words(*LATIN), " "), "tgt": (make_words(consonants, vowels), space)}
    for side, (made, between) in sides.items():
        words = [*made]
        lines = [between.join(words[n] for n in sentence) for sentence in choices]
        (folder / f"train.{side}").write_text("\n".join(lines) + "\n", "utf-8")


def count_from(first: int, number: int) -> str:
    """Characters in the order of Unicode."""
    return "".join(map(chr, range(first, first + number)))


SCRIPTS = {  # consonants and vowels
    "Devanagari": (count_from(0x915, 16), count_from(0x93E, 5)),
    "Ethiopic": (count_from(0x1200, 16), count_from(0x1240, 5)),
    "Hebrew with points": (count_from(0x5D0, 16), count_from(0x5B4, 5)),
    "Latin with combining accents": ("bdfghjklmnprstvz", count_from(0x300, 5)),
    "Khmer": (count_from(0x1780, 16), count_from(0x17B6, 5)),
    "Braille": (count_from(0x2801, 16), count_from(0x2820, 5)),
    "emoji": (count_from(0x1F600, 16), count_from(0x1F3FB, 5)),
    "emoji with joiners": (count_from(0x1F600, 16), "\u200d\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd"),
    "letters beyond 65,536": (count_from(0x10400, 16), count_from(0x10428, 5)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_choice_is_that_of_the_same_text_in_latin_letters(name: str, tmp_path: Path) -> None:
    script, shared = SCRIPTS[name], name != "Devanagari"
    fields: dict[str, Any] = {
        "data__train_weights": (300.0,),  # so much that words limit the vocabulary
        "tokenizer__shared": shared,
        "model__tie_embeddings": "all" if shared else "decoder",
    }
    latin = "BDFGHJKLMNPRSTVZ", "AEIOU"
    found = []
    for consonants, vowels in (latin, script):
        write_script(tmp_path, consonants, vowels)
        found.append(fit(tmp_path, **fields))
    expected, config = found
    assert config.tokenizer.vocab_size == pytest.approx(expected.tokenizer.vocab_size, rel=0.05)
    assert config.training.steps == pytest.approx(expected.training.steps, rel=0.05)
    assert config.data.max_length == expected.data.max_length


@pytest.mark.parametrize(
    ("script", "space"),
    [
        (SCRIPTS["Khmer"], ""),
        (SCRIPTS["Khmer"], "\u200b"),
        ((count_from(0x0E01, 16), count_from(0x0E34, 5)), ""),
        ((count_from(0x0E81, 16), count_from(0x0EB4, 5)), ""),
        ((count_from(0x1000, 16), count_from(0x102D, 5)), ""),
        ((count_from(0x0F40, 16), count_from(0x0F71, 5)), "\u0f0b"),
    ],
    ids=["Khmer", "Khmer with invisible spaces", "Thai", "Lao", "Burmese", "Tibetan"],
)
def test_words_without_spaces_are_counted_beside_a_language_with_spaces(
    script: tuple[str, str], space: str, tmp_path: Path
) -> None:
    write_script(tmp_path, *script, space)
    data = make_recipe(tmp_path).data
    tokenizer = fit(tmp_path).tokenizer
    words = measure_text(data, tokenizer).words
    write_script(tmp_path, *script)  # the same words between spaces
    assert words == pytest.approx(measure_text(data, tokenizer).words, rel=0.3)


def test_words_of_chinese_are_two_characters(tmp_path: Path) -> None:
    write_script(tmp_path, count_from(0x4E00, 16), count_from(0x4F00, 5), "")
    data = make_recipe(tmp_path).data
    lines = {side: (tmp_path / f"train.{side}").read_text("utf-8") for side in ("src", "tgt")}
    expected = len(lines["src"].split()) + len(lines["tgt"].replace("\n", "")) / 2
    assert measure_text(data, fit(tmp_path).tokenizer).words == pytest.approx(expected, rel=0.01)


def write_corpora(folder: Path) -> dict[str, Any]:
    """15 long pairs, 5 without a target, and 2,000 short ones."""
    lines = make_sentences(2000)
    long = [" ".join(lines[n : n + 9]) for n in range(20)]
    upper = [line.upper() for line in lines], [line.upper() for line in long[:15]] + [""] * 5
    for side, (short, longer) in {"src": (lines, long), "tgt": upper}.items():
        (folder / f"long.{side}").write_text("\n".join(longer) + "\n", "utf-8")
        (folder / f"short.{side}").write_text("\n".join(short) + "\n", "utf-8")
    return {
        f"data__train_{side}": tuple(str(folder / f"{name}.{side}") for name in ("long", "short"))
        for side in ("src", "tgt")
    }


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"train_weights": (1400.0, 1.0)}, 21_000 / 23_000),
        ({"stages": ("1400,1",)}, 21_000 / 23_000),
        ({"stages": ("100: 2000,0", "200: 800,2", "1400,1")}, 21_000 / 23_000),
        ({"temperature": 1e6}, 1500 / 3500),
    ],
    ids=["weights", "one stage", "stages", "temperature"],
)
def test_sample_counts_as_an_epoch_does(
    fields: dict[str, Any], share: float, tmp_path: Path
) -> None:
    """Long pairs are less than 1% of the files, but so many of an epoch."""
    files = write_corpora(tmp_path)
    config = fit(tmp_path, **files, **{f"data__{name}": value for name, value in fields.items()})
    facts = measure_text(config.data, config.tokenizer)
    assert facts.uses[:15].sum() / facts.uses.sum() == pytest.approx(share, rel=0.01)
    plain = fit(tmp_path, **files)
    assert plain.data.max_length < config.data.max_length
    assert plain.training.steps < config.training.steps


def test_vocabulary_is_fitted_to_the_words_that_it_is_trained_on(tmp_path: Path) -> None:
    """Each corpus counts as often as its weight says, and with stages once."""
    files = write_corpora(tmp_path)
    lengths = {
        name: [
            len(line.split()) for line in (tmp_path / f"{name}.tgt").read_text("utf-8").split("\n")
        ]
        for name in ("long", "short")
    }
    words = {name: 2 * sum(found) for name, found in lengths.items()}  # of both sides
    for fields, weight in (
        ({"data__train_weights": (1400.0, 1.0)}, 1400),
        ({"data__stages": ("10: 1,1", "0,1")}, 1),
    ):
        recipe = make_recipe(tmp_path, **files, **fields)
        found = measure_text(recipe.data, fit(tmp_path, **files).tokenizer).words
        assert found == weight * words["long"] + words["short"]


def test_pairs_without_one_side_do_not_count(tmp_path: Path) -> None:
    write_text(tmp_path, 1500)
    expected = fit(tmp_path)
    for side, line in {"src": "ka to\n", "tgt": " \u200b\n"}.items():
        with (tmp_path / f"train.{side}").open("a", encoding="utf-8") as file:
            file.write(1500 * line)
    config = fit(tmp_path)
    assert (config.tokenizer, config.training) == (expected.tokenizer, expected.training)
    write_text(tmp_path, 90)
    for side, line in {"src": "ka to\n", "tgt": "\n"}.items():
        with (tmp_path / f"train.{side}").open("a", encoding="utf-8") as file:
            file.write(30 * line)
    with pytest.raises(DataError, match="90 sentence pairs are too few"):
        fit(tmp_path)


def test_pairs_that_training_drops_do_not_count(tmp_path: Path) -> None:
    write_text(tmp_path, 1500)
    for side, line in {"src": "ka to " * 12, "tgt": "KA TO " * 3}.items():
        with (tmp_path / f"train.{side}").open("a", encoding="utf-8") as file:
            file.write(1500 * f"{line}\n")
    assert fit(tmp_path, data__max_length_ratio=3.0).training.steps < fit(tmp_path).training.steps
    with pytest.raises(ConfigError, match=r"data.max_length_ratio=0.1; raise them"):
        fit(tmp_path, data__max_length_ratio=0.1)
