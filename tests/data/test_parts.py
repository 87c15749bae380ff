from pathlib import Path

from t2t.config.fields import DataConfig
from t2t.data.parts import resolve


def test_config_is_resolved_to_a_part_for_each_source_and_direction() -> None:
    data = DataConfig(
        "text+tfds",
        train_src=("a.{src}", "b.{src}"),
        train_tgt=("a.{tgt}", "b.{tgt}"),
        test_src="t.{src}",
        test_tgt="t.{tgt}",
        tfds_name="wmt17/{pair}",
        tfds_held_out_name="wmt14/{pair}",
        directions=("en-de", "de-en"),
        train_weights=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    )
    found = [
        ("".join(each.config.directions), each.weight, each.files, each.dataset)
        for direction in resolve(data)
        for each in direction.parts
    ]
    assert found[:5] == [
        ("en-de", 1.0, {"train": (Path("a.en"), Path("a.de"))}, ""),
        ("en-de", 2.0, {"train": (Path("b.en"), Path("b.de"))}, ""),
        ("en-de", None, {"test": (Path("t.en"), Path("t.de"))}, ""),
        ("en-de", 3.0, {}, "wmt17/de-en"),
        ("en-de", None, {}, "wmt14/de-en"),
    ]
    assert found[5] == ("de-en", 4.0, {"train": (Path("a.de"), Path("a.en"))}, "")
    assert [weight for _, weight, _, _ in found[5:]] == [4.0, 5.0, None, 6.0, None]


def test_files_of_both_sides_are_listed_by_split() -> None:
    files = "train=a.tsv", "dev=/c.tsv", "train=b.tsv"
    [(_, [part])] = resolve(DataConfig("hf", hf_files=files, src_column="0", tgt_column="1"))
    here = Path.cwd()
    assert part.files == {"train": (here / "a.tsv", here / "b.tsv"), "dev": (Path("/c.tsv"),)}
    assert part.weight == 1.0
