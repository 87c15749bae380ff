import pytest

from t2t.config.fields import DataConfig
from t2t.data import corpus_sources, phrasebook
from t2t.data.corpus import DataError


def test_phrasebook_refuses_other_languages() -> None:
    data = DataConfig(source="phrasebook", src_language="de", tgt_language="de")
    with pytest.raises(DataError, match="'phrasebook' translates between two of en, de"):
        corpus_sources.open_split(data, "test")
    with pytest.raises(DataError, match="has train, validation, test, long here"):
        corpus_sources.open_split(data, "dev")


def test_splits_have_no_sentence_in_common_and_long_ones_exceed_all_others() -> None:
    splits = {split: phrasebook.read_pairs(split) for split in phrasebook.SPLITS}
    sizes = {"train": 40_000, "validation": 500, "test": 1_000, "long": 500}
    assert {split: len(pairs) for split, pairs in splits.items()} == sizes
    for language in (0, 1):
        sentences = [pair[language] for pairs in splits.values() for pair in pairs]
        assert len(sentences) == len(set(sentences))
    lengths = {
        split: [len(text.split()) for pair in pairs for text in pair]
        for split, pairs in splits.items()
    }
    assert max(max(lengths[split]) for split in ("train", "validation", "test")) == 16
    assert min(lengths["long"]) == 17


def test_links_of_the_phrasebook_number_the_words_of_each_pair() -> None:
    pairs, links = phrasebook.read_pairs("validation"), phrasebook.read_links("validation")
    assert len(links) == len(pairs)
    english, german = (text.split() for text in pairs[3])
    found = [(english[s], german[t]) for s, t in sorted(links[3])]
    assert found == [("school", "Schlossschule"), ("coat.", "Mantel")]
