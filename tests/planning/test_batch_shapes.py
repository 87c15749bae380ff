"""Batch shapes that are planned without data."""

import dataclasses

import numpy as np
import pytest

from t2t.config.fields import Config, ConfigError, DataConfig, TokenizerConfig, TrainingConfig
from t2t.ops.flops import train_flops
from t2t.planning.batch_shapes import draw_lengths, plan_shapes

CONFIG = Config(data=DataConfig(max_length=256, batch_tokens=25_000, length_multiple=8))


def test_lengths_are_like_those_of_wmt14() -> None:
    src, tgt = draw_lengths(CONFIG.data, mean=27)
    assert src.mean() == pytest.approx(27, rel=0.02)
    assert tgt.mean() == pytest.approx(27, rel=0.04)
    assert (src.min(), src.max(), tgt.min(), tgt.max()) == (4, 128, 4, 128)
    assert np.corrcoef(src, tgt)[0, 1] > 0.9


def test_shapes_are_those_of_training_and_fill_the_mesh() -> None:
    shapes = plan_shapes(CONFIG, row_shards=64, mean_length=27)
    assert len(shapes) <= CONFIG.data.num_shapes
    assert sum(shape.share for shape in shapes) == pytest.approx(1)
    for shape in shapes:
        assert shape.rows % 64 == 0
        assert 0 <= shape.rows - shape.filled_rows < 64
        longer = max(shape.src_length, shape.tgt_length)
        assert longer % 8 == 0
        assert shape.filled_rows * longer <= CONFIG.data.batch_tokens
        assert shape.tgt_tokens < shape.filled_rows * shape.tgt_length
        assert shape.model_flops < shape.padded_flops
    padded = [shape.padded_flops for shape in shapes]
    assert padded == sorted(padded, reverse=True)


def test_packed_rows_are_one_shape_and_hardly_padded() -> None:
    data = dataclasses.replace(CONFIG.data, packed_length=256)
    (shape,) = plan_shapes(dataclasses.replace(CONFIG, data=data), row_shards=8, mean_length=27)
    assert (shape.rows, shape.src_length, shape.tgt_length, shape.share) == (96, 256, 256, 1)
    assert 0.95 < shape.tgt_tokens / (96 * 256) < 1
    assert 0.7 < shape.model_flops / shape.padded_flops < 1


@pytest.mark.parametrize("packed_length", [0, 256])
@pytest.mark.parametrize("decoders", [("", ""), (" decoder=de", " decoder=fill")])
def test_batches_of_several_tasks_hold_the_text_of_each_by_its_weight(
    packed_length: int, decoders: tuple[str, str]
) -> None:
    """FLOPs for each target token are those of the two tasks, weighed by their examples."""
    fill = "fill: objective=span_corruption prefix=<fill>"
    data = dataclasses.replace(
        CONFIG.data,
        mixture=("translate: prefix=<2de>" + decoders[0], fill + decoders[1]),
        stages=("20: 1,0", "1,1"),
        packed_length=packed_length,
        num_shapes=1,
    )
    config = Config(
        data=data, tokenizer=TokenizerConfig(sentinels=40), training=TrainingConfig(steps=100)
    )
    [shape] = plan_shapes(config, row_shards=1, mean_length=27)
    src, tgt = draw_lengths(data, mean=27)
    noise = np.clip(np.rint(0.15 * (src - 1)), 1, None)
    spans = np.clip(np.rint(noise / 3), 1, None)
    filled = (src - noise + spans).astype(int), (noise + spans + 1).astype(int)
    vocab_size = config.tokenizer.vocab_size
    flops = [train_flops(config.model, vocab_size, *sides) for sides in ((src, tgt), filled)]
    # 20 steps of translation alone, 80 of both: six of ten examples are translations.
    tokens = 0.6 * tgt.sum() + 0.4 * filled[1].sum()
    of_a_token = (0.6 * flops[0] + 0.4 * flops[1]) / tokens
    assert shape.model_flops / shape.tgt_tokens == pytest.approx(of_a_token, rel=0.01)
    assert shape.share == 1
    assert max(shape.src_length, shape.tgt_length) == (packed_length or 128)
    if not packed_length:
        assert shape.tgt_tokens == pytest.approx(shape.rows * tokens / len(src), rel=0.01)


def test_limits_that_drop_every_pair_are_refused() -> None:
    data = dataclasses.replace(CONFIG.data, max_length=1)
    with pytest.raises(ConfigError, match=r"data\.max_length=1 .* would drop every pair"):
        plan_shapes(dataclasses.replace(CONFIG, data=data), row_shards=8, mean_length=27)


def test_flops_of_a_shape_are_the_closed_form() -> None:
    data = dataclasses.replace(CONFIG.data, num_shapes=1)
    (shape,) = plan_shapes(dataclasses.replace(CONFIG, data=data), row_shards=8, mean_length=27)
    lengths = draw_lengths(data, mean=27)
    vocab_size = CONFIG.tokenizer.vocab_size
    mean = train_flops(CONFIG.model, vocab_size, *lengths) / len(lengths[0])
    assert shape.model_flops == pytest.approx(mean * shape.filled_rows)
    full = (np.full(shape.rows, n) for n in (shape.src_length, shape.tgt_length))
    assert shape.padded_flops == train_flops(CONFIG.model, vocab_size, *full)


@pytest.mark.parametrize(
    ("objective", "sides"),
    [("lm", (16, 256)), ("span_corruption", (256, 72)), ("masked_lm", (256, 256))],
)
def test_packed_rows_of_text_alone_are_as_long_as_each_side_needs(
    objective: str, sides: tuple[int, int]
) -> None:
    data = dataclasses.replace(CONFIG.data, objective=objective, packed_length=256)
    tokenizer = dataclasses.replace(CONFIG.tokenizer, sentinels=20)
    config = dataclasses.replace(CONFIG, data=data, tokenizer=tokenizer)
    [shape] = plan_shapes(config, row_shards=1, mean_length=27)
    assert (shape.rows, shape.src_length, shape.tgt_length) == (96, *sides)
