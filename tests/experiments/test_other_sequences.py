"""Texts of the experiments on other sequences: the grammar of music, and images of digits."""

import random
from pathlib import Path

import numpy as np

from experiments.digits import NAMES, write_texts
from experiments.music import EVENTS, compute_entropy, draw_piece


def test_entropy_is_the_mean_of_the_negative_log_probabilities_of_pieces() -> None:
    draw = random.Random(0)
    nats = [-draw_piece(draw)[1] for _ in range(2000)]
    error = np.std(nats) / len(nats) ** 0.5
    assert abs(np.mean(nats) - compute_entropy()) < 4 * error
    assert error < 0.01 * compute_entropy()


def test_a_letter_of_the_form_is_the_same_bar_and_all_bars_have_one_rhythm() -> None:
    draw = random.Random(1)
    for _ in range(20):
        events, _ = draw_piece(draw)
        assert len(events) == EVENTS - 1
        rhythms = set()
        for start in (0, 17):
            form, rest = events[start], events[start + 1 : start + 17]
            bars = [rest[i : i + 4] for i in range(0, 16, 4)]
            for letter, bar in zip(form, bars, strict=True):
                assert bar == bars[form.index(letter)]
            rhythms |= {tuple(event == "-" for event in bar) for bar in bars}
        assert len(rhythms) == 1


def test_texts_hold_each_image_in_one_split_with_its_name(tmp_path: Path) -> None:
    """Training has it moved by a pixel, too, which leaves one edge dark."""
    numbers, pixel = np.arange(600), np.arange(64).reshape(8, 8)
    edges = [tuple(x.flat) for x in (pixel[:0], pixel[0], pixel[-1], pixel[:, 0], pixel[:, -1])]
    write_texts(tmp_path, numbers[:, None, None] + np.zeros((1, 8, 8), int), numbers % 10)
    found = []
    for split, copies in {"train": 5, "validation": 1, "test": 1}.items():
        pixels, names = (
            (tmp_path / f"{split}.{side}").read_text().splitlines() for side in ("pixels", "names")
        )
        rows = [[*map(int, line.split())] for line in pixels]
        assert {len(row) for row in rows} == {64}
        assert len(rows) == len(names) == copies * (len(rows) // copies)
        # An image has one level, which is that of its middle wherever it moves.
        assert names == [NAMES[row[27] % 10] for row in rows]
        dark = {tuple(np.flatnonzero(np.array(row) == 0)) for row in rows if row[27]}
        assert dark == {*edges[:copies]}
        found += [row[27] for row in rows[: len(rows) // copies]]
    assert sorted(found) == numbers.tolist()
