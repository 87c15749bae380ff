"""The text of images, by experiments/digits.py."""

from pathlib import Path

import numpy as np

from experiments.digits import NAMES, move, write_texts


def test_images_move_by_a_pixel() -> None:
    image = np.zeros((1, 8, 8), int)
    image[0, 0, 3] = 5
    assert move(image, 0, 0).tolist() == image.tolist()
    assert np.argwhere(move(image, 1, 0)).tolist() == [[0, 1, 3]]
    assert np.argwhere(move(image, 0, -1)).tolist() == [[0, 0, 2]]
    assert not move(image, -1, 0).any()


def test_texts_hold_each_image_in_one_split_with_its_name(tmp_path: Path) -> None:
    numbers = np.arange(600)
    write_texts(tmp_path, numbers[:, None, None] + np.zeros((1, 8, 8), int), numbers % 10)
    found = []
    for split, copies in {"train": 5, "validation": 1, "test": 1}.items():
        pixels, names = (
            (tmp_path / f"{split}.{side}").read_text().splitlines() for side in ("pixels", "names")
        )
        rows = [[*map(int, line.split())] for line in pixels]
        assert {len(row) for row in rows} == {64}
        assert len(rows) == len(names) == copies * (len(rows) // copies)
        # The middle of an image that moves by a pixel does not change, since each has one level.
        assert names == [NAMES[row[27] % 10] for row in rows]
        found += [row[27] for row in rows[: len(rows) // copies]]
    assert sorted(found) == numbers.tolist()
