"""Writes scikit-learn's 8 x 8 digits as parallel text: `python -m experiments.digits FOLDER`.

A line of the source is an image: its 64 grey levels from 0 to 16, row by row. The line of the
target is the digit's name. `pip install scikit-learn` brings the 1,797 images along. Their split is
random, and fixed. Training also has each image moved by a pixel up, down, left and right.
"""

import argparse
from pathlib import Path

import numpy as np
from jaxtyping import Int

NAMES = "zero one two three four five six seven eight nine".split()
SIZES = {"test": 360, "validation": 180}  # images; training has the rest


def load_images() -> tuple[Int[np.ndarray, "n 8 8"], Int[np.ndarray, "n"]]:
    """Returns the grey levels of each image, and its digit."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(int), digits.target


def move(images: Int[np.ndarray, "n 8 8"], down: int, right: int) -> Int[np.ndarray, "n 8 8"]:
    """Moves images by up to one pixel; what comes in from outside is 0."""
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    return wide[:, 1 - down : 9 - down, 1 - right : 9 - right]


def write_texts(
    folder: Path, images: Int[np.ndarray, "n 8 8"], digits: Int[np.ndarray, "n"]
) -> None:
    """Writes SPLIT.pixels and SPLIT.names for train, validation and test."""
    order = np.random.default_rng(0).permutation(len(images))
    ends = np.cumsum([*SIZES.values()])
    folder.mkdir(parents=True, exist_ok=True)
    for split, chosen in zip([*SIZES, "train"], np.split(order, ends), strict=True):
        moves = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)] if split == "train" else [(0, 0)]
        rows = [row for by in moves for row in move(images[chosen], *by).reshape(-1, 64)]
        names = [NAMES[digit] for _ in moves for digit in digits[chosen]]
        pixels = "".join(" ".join(map(str, row)) + "\n" for row in rows)
        (folder / f"{split}.pixels").write_text(pixels, "utf-8")
        (folder / f"{split}.names").write_text("\n".join(names) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the six files are written")
    write_texts(parser.parse_args().folder, *load_images())
