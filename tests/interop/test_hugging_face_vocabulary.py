import json
from pathlib import Path

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor as Processor

from t2t.data.batch import EOS_ID, UNK_ID
from t2t.data.tokenizer import Vocabulary
from t2t.interop.hugging_face_folder import SourceError
from t2t.interop.hugging_face_vocabulary import (
    NO_ROW,
    Rows,
    read_m2m100,
    read_marian,
    read_nllb,
)
from tests.interop.foreign_folders import (
    CODES,
    write_m2m100_vocabulary,
    write_nllb_vocabulary,
    write_vocabulary,
)
from tests.interop.small_vocabularies import make_odd_lines


def encode(processor: Processor, names: dict[str, int], line: str) -> list[int]:
    """The ids of the original: of the pieces of its model, by name."""
    pieces = processor.encode(line, out_type=str)
    return [*(names.get(piece, names["<unk>"]) for piece in pieces), names["</s>"]]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("missing", [0, 5])
def test_text_is_segmented_as_by_the_two_models_of_marian(
    tmp_path: Path, kind: str, missing: int
) -> None:
    size = write_vocabulary(tmp_path, kind, missing)
    names = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    vocabulary, rows, _ = read_marian(tmp_path, size)
    assert vocabulary.src.vocab_size == vocabulary.tgt.vocab_size == len(rows.row)
    originals = [Processor(model_file=str(tmp_path / f"{s}.spm")) for s in ("source", "target")]
    for line in make_odd_lines(100):
        expected = encode(originals[0], names, line)
        assert rows.row[vocabulary.src.encode_words([line])[0]].tolist() == expected
        if not missing:
            expected = encode(originals[1], names, line)
            assert rows.row[vocabulary.tgt.encode_words([line])[0]].tolist() == expected


def test_every_row_of_the_original_belongs_to_one_id(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path, missing=3)
    _, rows, _ = read_marian(tmp_path, size)
    assert sorted(rows.row[rows.is_output]) == [*range(size)]
    assert rows.row[:4].tolist() == [NO_ROW, size - 1, 0, 1]
    assert {*rows.row[~rows.is_output].tolist()} <= {NO_ROW, 1}


def test_target_piece_without_id_is_spelled_with_smaller_pieces(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path, missing=5)
    vocabulary, rows, _ = read_marian(tmp_path, size)
    used = {i for row in vocabulary.tgt.encode_words(make_odd_lines(100)) for i in row}
    assert rows.is_output[[*used]].all()


def test_translations_are_decoded_as_by_the_target_model(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path)
    vocabulary, *_ = read_marian(tmp_path, size)
    original = Processor(model_file=str(tmp_path / "target.spm"))
    for line in make_odd_lines(50):
        [ids] = vocabulary.tgt.encode_words([line])
        known = [i for i in ids if i not in (UNK_ID, EOS_ID)]
        expected = original.decode_pieces(vocabulary.tgt.pieces(known))
        assert vocabulary.tgt.decode([ids]) == [expected]
    only_source = next(
        i
        for i in range(4, vocabulary.src.vocab_size)
        if vocabulary.src.encode_words([vocabulary.src.pieces([i])[0]])[0][0] == i
        and original.piece_to_id(vocabulary.src.pieces([i])[0]) == original.unk_id()
    )
    [piece] = vocabulary.src.pieces([only_source])
    assert vocabulary.tgt.decode([[only_source]]) == [piece.replace("\u2581", " ").strip()]


def test_ids_of_the_original_are_kept_beside_the_vocabulary(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path)
    vocabulary, rows, _ = read_marian(tmp_path, size)
    vocabulary.save(tmp_path / "vocab")
    rows.save(tmp_path / "vocab")
    assert Vocabulary.load(tmp_path / "vocab").fingerprint() == vocabulary.fingerprint()
    for saved, row in zip(Rows.load(tmp_path / "vocab"), rows, strict=True):
        np.testing.assert_array_equal(saved, row)


def test_vocabulary_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path)
    with pytest.raises(SourceError, match=rf"has {size} pieces, but .*vocab_size=7; use the files"):
        read_marian(tmp_path, 7)
    path = tmp_path / "vocab.json"
    names = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(names | {"<pad>": 1}), "utf-8")
    with pytest.raises(SourceError, match=r"vocab\.json: the ids are not 0 to"):
        read_marian(tmp_path, size)
    path.write_text(json.dumps({"a" + name: i for name, i in names.items()}), "utf-8")
    with pytest.raises(SourceError, match="has no <pad>"):
        read_marian(tmp_path, size)


def test_damaged_or_missing_model_is_refused(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path)
    (tmp_path / "target.spm").write_bytes(b"\xff\xfe damaged")
    with pytest.raises(SourceError, match=r"target\.spm is no SentencePiece model; download"):
        read_marian(tmp_path, size)
    (tmp_path / "target.spm").unlink()
    with pytest.raises(SourceError, match=r"target\.spm is missing; copy it"):
        read_marian(tmp_path, size)


def test_codes_of_nllb_are_tags_on_both_sides(tmp_path: Path) -> None:
    size = write_nllb_vocabulary(tmp_path)
    vocabulary, rows, languages = read_nllb(tmp_path, size)
    assert languages == CODES
    assert sorted(rows.row) == [*range(size)]
    tagged = vocabulary.with_tag("<2eng_Latn> <2fra_Latn>")
    for side, code in ((tagged.src, "eng_Latn"), (tagged.tgt, "fra_Latn")):
        [[first, *_, last]] = side.encode(["the queen eng_Latn <2fra_Latn>"])
        assert (side.pieces([first]), last) == ([f"<2{code}>"], EOS_ID)
        assert side.decode(side.encode(["the queen"])) == ["the queen"]
    with pytest.raises(SourceError, match=r"tokenizer\.json has ids up to \d+, but .*vocab_size=9"):
        read_nllb(tmp_path, 9)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"tokenizer\.json is missing.*save it again"):
        read_nllb(tmp_path, size)


def test_codes_of_m2m100_follow_the_pieces(tmp_path: Path) -> None:
    size = write_m2m100_vocabulary(tmp_path)
    vocabulary, rows, languages = read_m2m100(tmp_path, size)
    assert (len(languages), sorted(rows.row)) == (100, [*range(size)])
    tagged = vocabulary.with_tag("<2en> <2zu>")
    [[source, *_]], [[target, *_]] = (
        side.encode(["the queen"]) for side in (tagged.src, tagged.tgt)
    )
    assert (rows.row[source], rows.row[target]) == (size - 108 + 18, size - 108 + 99)
    with pytest.raises(SourceError, match=r"vocab\.json has ids up to \d+, but .*vocab_size=99"):
        read_m2m100(tmp_path, 99)


def test_codes_of_marian_are_tags_of_the_target(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path, codes=(">>fra<<", ">>deu<<"))
    vocabulary, rows, languages = read_marian(tmp_path, size)
    assert languages == ("deu", "fra")
    [ids] = vocabulary.with_tag("<2fra>").src.encode(["the queen"])
    names = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    assert rows.row[ids[0]] == names[">>fra<<"]
    assert ids[1:] == vocabulary.src.encode(["the queen"])[0]
