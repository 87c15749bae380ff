"""Two translation datasets as TFDS knows them, small enough to be prepared within a test."""

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

SIZES = {"train": 30, "validation": 3, "test": 4}


def pair(split: str, number: int) -> tuple[str, str]:
    """German, English."""
    return f"Satz {number} für {split}", f"sentence {number} for {split}"


class TinyTranslation(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """Registers itself as "tiny_translation"."""

    VERSION = tfds.core.Version("1.0.0")
    PREFIX = ""

    def _info(self) -> Any:
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager: object) -> dict[str, Any]:  # noqa: ARG002
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for number in range(SIZES[split]):
            german, english = pair(f"{self.PREFIX}{split}", number)
            yield number, {"de": german, "en": english}


class OtherTranslation(TinyTranslation):
    """Registers itself as "other_translation"."""

    PREFIX = "other "
