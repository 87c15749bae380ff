import ast
import json
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor as Processor

from t2t.config.fields import Config
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.corpus import DataError
from t2t.data.subword_sampling import sample_vocabulary
from t2t.data.tokenizer import Vocabulary, VocabularyError
from t2t.interop.hugging_face_folder import SourceError, write_json
from t2t.interop.hugging_face_vocabulary import (
    NO_ROW,
    ImportedVocabulary,
    Rows,
)
from t2t.interop.tokenizer_json import spm
from t2t.interop.tokenizer_settings import TokenizerSettings
from tests.interop.foreign_folders import (
    ADDED,
    CODES,
    add_tokens,
    read_byt5,
    read_m2m100,
    read_marian,
    read_mbart,
    read_t5,
    write_m2m100_vocabulary,
    write_madlad_vocabulary,
    write_nllb_vocabulary,
    write_settings,
    write_t5_vocabulary,
    write_tokenizer_json,
    write_vocabulary,
)
from tests.interop.small_vocabularies import list_pieces, make_odd_lines, make_text, train_model

NEW = ("ŋ", "\0", "\0\0", "ŋ\0")  # pieces that no model has, and one cannot hold
NEW_LINES = ["theŋqueen ŋ", "a\0b \0\0 ŋ\0", "ŋŋ"]


READERS: dict[str, tuple[Callable[[Path], int], Callable[[Path, int], ImportedVocabulary]]] = {
    "Marian": (write_vocabulary, read_marian),
    "M2M-100": (write_m2m100_vocabulary, read_m2m100),
    "NLLB": (write_nllb_vocabulary, read_m2m100),
    "T5": (write_t5_vocabulary, read_t5),
    "T5, full table": (lambda folder: write_t5_vocabulary(folder, spare=0), read_t5),
}
SPARE = {"NLLB": 2, "T5": 7}  # rows of their tables


def encode(processor: Processor, names: dict[str, int], line: str) -> list[int]:
    """The ids of `transformers`: of the pieces of the original's model, by their text."""
    pieces = processor.encode(line, out_type=str)
    return [*(names.get(piece, names["<unk>"]) for piece in pieces), names["</s>"]]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("missing", [0, 5])
def test_pieces_of_marian_are_looked_up_by_their_text(
    tmp_path: Path, kind: str, missing: int
) -> None:
    size = write_vocabulary(tmp_path, kind, missing, more=NEW)
    names = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    vocabulary, rows, _ = read_marian(tmp_path, size)
    assert vocabulary.src.vocab_size == vocabulary.tgt.vocab_size == len(rows.row)
    for side, file in (("src", "source.spm"), ("tgt", "target.spm")):
        original = Processor(model_file=str(tmp_path / file))
        lines = [*make_odd_lines(100), *NEW_LINES]
        found = getattr(vocabulary, side).encode_words(lines)
        assert [rows.row[ids].tolist() for ids in found] == [
            encode(original, names, line) for line in lines
        ]
        used = {row for ids in found for row in rows.row[ids].tolist()}
        assert used >= {names[name] for name in NEW}


@pytest.mark.parametrize("family", READERS)
def test_added_tokens_are_cut_out_of_a_text(tmp_path: Path, family: str) -> None:
    write, read = READERS[family]
    size = write(tmp_path)
    before = read(tmp_path, size)
    spare = SPARE.get(family, 0)
    imported = read(tmp_path, add_tokens(tmp_path, size - spare) + spare)
    assert imported.count_pieces() == before.count_pieces() | {"added": len(ADDED)}
    src, tgt, _ = vars(imported.vocabulary).values()

    def spell(text: str) -> list[str]:
        [ids] = src.encode([text])
        assert text in ("the", "king", "h") or {*imported.rows.row[ids]} & {
            *range(size - spare, size + 3)
        }
        return src.pieces(ids)[:-1]  # without EOS

    assert spell("the<name>king") == [*spell("the"), "<name>", *spell("king")]
    assert spell("king<term>house") == [*spell("king"), "<term>", *spell("h"), "ouse"]
    space = ["\u2581"] if family == "NLLB" else []
    assert spell("the <name>") == [*spell("the"), *space, "<name>"]
    ids = src.encode(["the<name>king", "king<term>the"])
    assert tgt.decode(ids) == ["the<name> king", "king the"]  # `<term>` is special


@pytest.mark.parametrize("family", READERS)
def test_row_without_a_piece_decodes_to_nothing(tmp_path: Path, family: str) -> None:
    write, read = READERS[family]
    vocabulary, rows, _ = read(tmp_path, write(tmp_path) + 5)
    tgt, size = vocabulary.tgt, len(rows.row)
    spare = np.flatnonzero(rows.row >= rows.row.max() - 4).tolist()
    [ids] = tgt.encode(["the king"])
    assert tgt.decode([[*spare[:2], *ids[:-1], *spare[2:], EOS_ID]]) == ["the king"]
    assert all(map(tgt.is_control, spare))
    assert not {*tgt.word_ids} & {*spare, UNK_ID}
    assert len({*tgt.pieces(range(size))}) == size  # other engines know ids by their pieces


def test_pieces_that_only_tokenizer_json_has_are_used(tmp_path: Path) -> None:
    size = write_nllb_vocabulary(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(train_model(0, kind="bpe"))  # an older one
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    values["model"]["vocab"] |= {token["content"]: token["id"] for token in values["added_tokens"]}
    values["model"]["vocab"] |= {"ŋ": size, "ŋa": size + 1, "\u2581ŋa": size + 2}
    values["model"]["merges"] += ["ŋ a", "\u2581 ŋa"]
    path.write_text(json.dumps(values), "utf-8")
    vocabulary, rows, _ = read_m2m100(tmp_path, size + 3)
    [ids] = vocabulary.src.encode(["ŋaŋaŋ ŋa"])
    assert (rows.row[ids] - size).tolist() == [2, 1, 0, 2, rows.row[EOS_ID] - size]


def test_vocabulary_of_nllb_has_all_rows_and_its_codes(tmp_path: Path) -> None:
    size = write_nllb_vocabulary(tmp_path)
    vocabulary, rows, languages = read_m2m100(tmp_path, size)
    assert (languages, sorted(rows.row)) == (CODES, [*range(size)])
    [[first, *_, last]] = vocabulary.with_tag("<2deu_Latn>").src.encode(
        ["the eng_Latn <2fra_Latn>"]
    )
    assert (vocabulary.src.pieces([first]), last) == (["<2deu_Latn>"], EOS_ID)
    with pytest.raises(SourceError, match=r"tokenizer\.json has ids up to \d+, but .*vocab_size=9"):
        read_m2m100(tmp_path, 9)
    (tmp_path / "tokenizer.json").rename(tmp_path / "vocab.json")
    with pytest.raises(SourceError, match=r"tokenizer\.json is missing.*save it again"):
        read_m2m100(tmp_path, size)


def test_languages_of_m2m100_are_those_of_its_settings(tmp_path: Path) -> None:
    size = write_m2m100_vocabulary(tmp_path)
    vocabulary, rows, languages = read_m2m100(tmp_path, size)
    assert (len(languages), sorted(rows.row)) == (100, [*range(size)])
    tagged = vocabulary.with_tag("<2en> <2zu>")
    for side, code in ((tagged.src, 18), (tagged.tgt, 99)):  # the codes follow the pieces
        [[tag, *_]] = side.encode(["the queen"])
        assert rows.row[tag] == size - 108 + code
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"language_codes": "wmt21"}), "utf-8")
    found = read_m2m100(tmp_path, size - 100).languages
    assert found == tuple(sorted("cs de en ha is ja ru zh".split()))
    with pytest.raises(SourceError, match=r"language_codes='wmt21' .*, but .* vocab_size=99"):
        read_m2m100(tmp_path, 99)
    path.write_text(json.dumps({"language_codes": "wmt30"}), "utf-8")
    with pytest.raises(SourceError, match=r"language_codes='wmt30' is not .* m2m100, wmt21"):
        read_m2m100(tmp_path, size)


def test_codes_of_marian_are_tags_of_the_target(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = write_vocabulary(tmp_path, codes=(">>fra<<", ">>deu<<"))
    vocabulary, rows, languages = read_marian(tmp_path, size)
    assert languages == ("deu", "fra")
    tagged = vocabulary.with_tag("<2fra>").src
    [ids] = tagged.encode(["the queen"])
    names = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    assert rows.row[ids[0]] == names[">>fra<<"]
    assert ids[1:] == vocabulary.src.encode(["the queen"])[0]
    tagged.encode([">>por<< the queen", "the >>fra<< queen"])  # no code, or none of the text
    tagged.encode(["__fra__ the queen", "the <mask> and <extra_id_0>"])  # other families' names
    assert not caplog.text
    tagged.encode(["the <pad> queen", "the </s> queen"])
    assert "'the <pad> queen' spells the special symbol <pad>, which is text here" in caplog.text
    assert "</s>" not in caplog.text
    with pytest.raises(DataError, match=r"^' >>deu<< the queen' .* remove >>deu<< .*--task"):
        tagged.encode(["the queen", " >>deu<< the queen"])


def test_vocabulary_of_madlad_has_languages_as_text(tmp_path: Path) -> None:
    size = write_madlad_vocabulary(tmp_path)
    own = list_pieces((tmp_path / "spiece.model").read_bytes())
    vocabulary, rows, languages = read_t5(tmp_path, size)
    assert (languages, vocabulary.several_sentences) == ((), 0.0)
    assert rows.row[:4].tolist() == [NO_ROW, 1, 2, 0]
    [text, plain] = vocabulary.src.encode(["<2de> the", "the"])
    assert rows.row[text].tolist() == [own.index("<2de>"), *rows.row[plain]]
    assert vocabulary.src.find_task(" <2de> the king") == " <2de>"
    assert vocabulary.src.find_task("<2nd> the king") == ""  # no language of its own


def test_only_a_model_that_knows_tasks_has_them(tmp_path: Path) -> None:
    """T5's are said in words, which are ordinary text before a Marian."""
    for name in ("marian", "t5"):
        (tmp_path / name).mkdir()
    marian = read_marian(tmp_path / "marian", write_vocabulary(tmp_path / "marian")).vocabulary
    t5 = read_t5(tmp_path / "t5", write_t5_vocabulary(tmp_path / "t5")).vocabulary
    for task in ("summarize: ", "translate English to German: "):
        assert t5.src.find_task(f"{task}the king") == task
        assert marian.src.find_task(f"{task}the king") == ""
    assert t5.src.find_task("Translate this letter for me, please: the king") == ""


def test_what_the_table_lacks_is_named_and_text_behind_a_gap_begins_no_word(
    tmp_path: Path,
) -> None:
    vocabulary = read_t5(tmp_path, write_t5_vocabulary(tmp_path)).vocabulary
    own = vocabulary.src
    assert own.find_unknown(["the king", "the €€ king 猫"]) == [[], ["€", "€", "猫"]]
    inner = own.encode_behind("€king")
    assert own.pieces(inner)[0] == "<unk>"
    assert own.decode_behind(inner) == "king"
    assert own.decode_behind(own.encode_words(["king"])[0]) == " king"


def test_vocabulary_is_kept_beside_the_ids_of_the_original(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path, more=NEW)
    vocabulary, rows, _ = read_marian(tmp_path, add_tokens(tmp_path, size))
    folder = tmp_path / "vocab"
    vocabulary.save(folder)
    rows.save(folder)
    loaded = Vocabulary.load(folder)
    assert loaded.fingerprint() == vocabulary.fingerprint()
    lines = [*make_odd_lines(50), *NEW_LINES, "the<name>house"]
    assert loaded.src.encode(lines) == vocabulary.src.encode(lines)
    assert (loaded.several_sentences, loaded.src.model) == (0.0, vocabulary.src.model)
    for saved, row in zip(Rows.load(folder), rows, strict=True):
        np.testing.assert_array_equal(saved, row)
    table, model = folder / "tgt.pieces.json", folder / "tgt.model"
    (folder / "kept").write_bytes(model.read_bytes())
    model.write_bytes(b"damaged")
    with pytest.raises(VocabularyError, match=r"tgt\.model is damaged: .*; restore it"):
        Vocabulary.load(folder)
    (folder / "kept").rename(model)
    table.write_text('{"size": 1}', "utf-8")
    with pytest.raises(VocabularyError, match=r"tgt\.pieces\.json cannot be read: .*; restore it"):
        Vocabulary.load(folder)
    table.unlink()
    table.mkdir()
    with pytest.raises(VocabularyError, match=r"tgt\.pieces\.json cannot be read: .*directory"):
        Vocabulary.load(folder)


def test_imported_text_is_sampled_from_its_own_pieces(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path, more=NEW)
    vocabulary, _, _ = read_marian(tmp_path, add_tokens(tmp_path, size))
    config = Config()
    config.tokenizer.kind, config.data.subword_sampling = "unigram", 0.1
    sampled = sample_vocabulary(vocabulary, config, 0)
    assert sampled.fingerprint() != vocabulary.fingerprint()
    for side in ("src", "tgt"):
        plain, own = getattr(vocabulary, side), getattr(sampled, side)
        lines = ["the king and the queen", "the house", "theŋqueen", "the<name>king"]
        found = own.encode(lines)
        assert plain.decode(found) == plain.decode(plain.encode(lines))
        assert found != plain.encode(lines)
        assert found[3] == plain.encode(lines)[3]  # with an added token, it is not sampled
        assert {i for ids in found for i in ids} <= {*plain.word_ids, EOS_ID}


def test_vocabulary_that_does_not_fit_is_damaged_or_is_missing_is_refused(tmp_path: Path) -> None:
    size = write_vocabulary(tmp_path)
    path, added = tmp_path / "vocab.json", tmp_path / "added_tokens.json"
    names = json.loads(path.read_text("utf-8"))

    def refuse(message: str, size: int = size) -> None:
        with pytest.raises(SourceError, match=message):
            read_marian(tmp_path, size)

    refuse(rf"ids up to {size - 1}, but .*vocab_size=7; use the", 7)
    path.write_text(json.dumps(names | {"<pad>": 1}), "utf-8")
    refuse(r"vocab\.json: the ids are not 0 to")
    path.write_text(json.dumps({"a" + name: i for name, i in names.items()}), "utf-8")
    refuse("has no <pad>")
    path.write_text(json.dumps(names), "utf-8")
    added.write_text('{"<name>": 9}', "utf-8")
    refuse(r"vocab\.json: '<name>' and '.*' have one id")
    added.write_text('{"<name>": "last"}', "utf-8")
    refuse("the list of added tokens is damaged")
    added.unlink()
    (tmp_path / "target.spm").write_bytes(b"\xff\xfe damaged")
    refuse(r"target\.spm is no SentencePiece model; download")
    (tmp_path / "target.spm").unlink()
    refuse(r"target\.spm is missing; copy it")


def test_t5_may_have_a_bpe_model(tmp_path: Path) -> None:
    write_nllb_vocabulary(tmp_path, codes=())
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 0}', "utf-8")
    tokenizer = read_t5(tmp_path, 300).vocabulary.tgt
    original = Processor(model_proto=train_model(0, kind="bpe"))
    lines = [line for line in make_text(1) if unicodedata.is_normalized("NFKC", line)]
    for ids, line in zip(tokenizer.encode(lines), lines, strict=True):
        assert tokenizer.pieces(ids) == [*original.encode(line, out_type=str), "</s>"], line


SPACE: dict[str, Any] = {"type": "Metaspace", "replacement": "\u2581"}
SPLIT = {"type": "WhitespaceSplit"}
SEVERAL = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def write_t5_json(folder: Path, changes: Mapping[str, Any] = {}, **parts: Any) -> int:
    """Writes tokenizer.json of a T5, with changes of its model and other parts."""
    pieces = spm.ModelProto.FromString(train_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    vocab = [[piece.piece, piece.score] for piece in pieces.pieces]
    model = {"type": "Unigram", "unk_id": 2, "byte_fallback": False, "vocab": vocab}
    special = {"<pad>": 0, "</s>": 1, "<unk>": 2}
    write_tokenizer_json(folder, model | dict(changes), special, **parts)
    return len(vocab)


@pytest.mark.parametrize(
    ("message", "changes", "parts"),
    [
        ("normalizer has Lowercase", {}, {"normalizer": {"type": "Lowercase"}}),
        (
            "normalizer has Replace with pattern=.'String': 'a'",
            {},
            {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "e"}},
        ),
        ("pre_tokenizer has Metaspace, and normalizer no Replace", {}, {"normalizer": None}),
        ("pre_tokenizer has nothing instead of Metaspace", {}, {"pre_tokenizer": None}),
        ("pre_tokenizer has ByteLevel", {}, {"pre_tokenizer": {"type": "ByteLevel"}}),
        (
            "pre_tokenizer has Digits",
            {},
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, SPACE]}},
        ),
        (
            "Metaspace with prepend_scheme='never'",
            {},
            {"pre_tokenizer": SPACE | {"prepend_scheme": "never"}},
        ),
        (
            "Metaspace with add_prefix_space=False",
            {},
            {"pre_tokenizer": SPACE | {"add_prefix_space": False}},
        ),
        ("Metaspace with replacement='_'", {}, {"pre_tokenizer": SPACE | {"replacement": "_"}}),
        ("Metaspace with split=False", {}, {"pre_tokenizer": SPACE | {"split": False}}),
        ("post_processor has the template 'nothing'", {}, {"post_processor": None}),
        (
            "post_processor has the template '<pad> A </s>'",
            {},
            {"template": ("<pad>", "A", "</s>")},
        ),
        ("post_processor has the template 'A'", {}, {"template": ("A",)}),
        ("post_processor has RobertaP", {}, {"post_processor": {"type": "RobertaProcessing"}}),
        ("decoder has ByteLevel", {}, {"decoder": {"type": "ByteLevel"}}),
        ("decoder has nothing", {}, {"decoder": None}),
        ("model has WordPiece", {"type": "WordPiece"}, {}),
        ("model has unk_id=1, '</s>'", {"unk_id": 1}, {}),
        ("model has unk_id=None", {"unk_id": None}, {}),
        ("model has byte_fallback=True without pieces", {"byte_fallback": True}, {}),
        ("model has Unigram with dropout=0.1", {"dropout": 0.1}, {}),
        ("later_part has", {}, {"later_part": {"type": "X"}}),
    ],
)  # fmt: skip
def test_tokenizer_json_that_does_what_sentencepiece_does_not_is_refused_by_part(
    tmp_path: Path, message: str, changes: dict[str, Any], parts: dict[str, Any]
) -> None:
    size = write_t5_json(tmp_path, changes, **parts)
    with pytest.raises(SourceError, match=rf"tokenizer\.json: .*{message}.* use .* transformers"):
        read_t5(tmp_path, size + 100)


@pytest.mark.parametrize(
    "option", ["dropout=0.1", "fuse_unk=False", "ignore_merges=True", "unk_token=None"]
)
def test_option_of_a_bpe_that_sentencepiece_lacks_is_refused(tmp_path: Path, option: str) -> None:
    write_nllb_vocabulary(tmp_path, codes=())
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    name, _, value = option.partition("=")
    values["model"][name] = ast.literal_eval(value)
    path.write_text(json.dumps(values), "utf-8")
    with pytest.raises(SourceError, match=rf"model has BPE with {option}"):
        read_t5(tmp_path, 300)


@pytest.mark.parametrize(
    "parts",
    [
        {},  # as transformers 4.3 to 4.32 wrote them
        {  # before
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": ""},
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [SPLIT, SPACE | {"str_rep": "\u2581", "add_prefix_space": True}],
            },
            "decoder": SPACE | {"add_prefix_space": True},
        },
        {  # after
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Strip", "strip_left": False, "strip_right": True},
                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
                ],
            },
            "pre_tokenizer": SPACE | {"prepend_scheme": "first", "split": True},
            "truncation": {"direction": "Right", "max_length": 4},
        },
    ],
    ids=["4.3", "4.0", "4.33"],
)
def test_forms_of_tokenizer_json_that_transformers_wrote_are_read(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    size = write_t5_json(tmp_path, **parts)
    vocabulary, rows, _ = read_t5(tmp_path, size + 100)
    original = Processor(model_proto=train_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    line = "the old  king running walked"
    [ids] = vocabulary.src.encode([line])
    assert rows.row[ids].tolist() == [*original.encode(line), 1]


def test_bytes_of_a_bpe_are_spelled(tmp_path: Path) -> None:
    size = write_nllb_vocabulary(tmp_path)
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    values["model"]["byte_fallback"] = True
    values["model"]["vocab"] |= {token["content"]: token["id"] for token in values["added_tokens"]}
    values["model"]["vocab"] |= {f"<0x{n:02X}>": size + n for n in range(256)}
    path.write_text(json.dumps(values), "utf-8")
    with pytest.raises(SourceError, match="decoder has no ByteFallback"):
        read_m2m100(tmp_path, size + 256)
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, values["decoder"]]}
    path.write_text(json.dumps(values | {"decoder": decoder}), "utf-8")
    vocabulary, rows, _ = read_m2m100(tmp_path, size + 256)
    [ids] = vocabulary.src.encode(["\u732b"])
    assert rows.row[ids[-4:]].tolist() == [*(size + n for n in "\u732b".encode()), 2]


def test_files_that_disagree_are_refused_by_both_names(tmp_path: Path) -> None:
    size = write_t5_json(tmp_path)

    def refuse(message: str) -> None:
        with pytest.raises(SourceError, match=message):
            read_t5(tmp_path, size + 100)

    path = tmp_path / "spiece.model"
    path.write_bytes(train_model(1, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    refuse(r"tokenizer\.json and spiece\.model disagree: only one has the piece .* its ids differ")
    model = spm.ModelProto.FromString(train_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    path.write_bytes(model.SerializeToString())
    read_t5(tmp_path, size + 100)
    model.pieces[9].score -= 1
    path.write_bytes(model.SerializeToString())
    refuse("disagree: they have other scores of")
    model.pieces[9].score += 1
    model.normalizer_spec.precompiled_charsmap = b""
    path.write_bytes(model.SerializeToString())
    refuse("disagree: they have other rules of normalisation")
    path.unlink()
    write_json(tmp_path / "added_tokens.json", {"<name>": size})
    write_settings(tmp_path, added_tokens_decoder={str(size + 1): {"content": "<name>"}})
    refuse(rf"tokenizer_config\.json and added_tokens\.json disagree: '<name>' is {size + 1} and")
    (tmp_path / "added_tokens.json").unlink()
    write_settings(tmp_path, added_tokens_decoder={"1": {"content": model.pieces[9].piece}})
    refuse(r"tokenizer_config\.json: '.*' has the id 1, but 9 in the vocabulary")
    write_settings(tmp_path, added_tokens_decoder={}, pad_token="<pad>")
    write_json(tmp_path / "special_tokens_map.json", {"pad_token": {"content": "<s>"}})
    refuse(r"special_tokens_map\.json and tokenizer_config\.json disagree: pad_token is '<s>' and")
    write_settings(tmp_path, tokenizer_class="T5TokenizerFast")
    settings = TokenizerSettings(tmp_path, {"tokenizer_class": "MBartTokenizer"})
    with pytest.raises(SourceError, match=r"disagree: .* 'T5TokenizerFast' and 'MBartTokenizer'"):
        settings.check_class("T5Tokenizer", "T5Tokenizer")


@pytest.mark.parametrize(("first", "second", "wrong"), [(1, 2, "a"), (1, 0, "a"), (0, 2, "b")])
def test_added_token_that_would_get_another_id_is_refused(
    tmp_path: Path, first: int, second: int, wrong: str
) -> None:
    """`tokenizers` gives the next ids, in the order of the file."""
    size = write_t5_json(tmp_path)
    write_settings(tmp_path, extra_ids=0)
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    for content, row in (("<a>", first), ("<b>", second)):
        values["added_tokens"].append({"content": content, "id": size + row, "special": False})
    write_json(path, values)
    with pytest.raises(SourceError, match=rf"tokenizer\.json: the added token '<{wrong}>' has"):
        read_t5(tmp_path, size + 9)


@pytest.mark.parametrize(
    ("settings", "added"),
    [
        ({"additional_special_tokens": ["<a>", {"content": "<b>"}]}, ["<a>", "<b>"]),
        ({"extra_special_tokens": {"a_token": "<a>"}}, ["<a>"]),
        ({"extra_special_tokens": ["<a>"], "additional_special_tokens": ["<b>"]}, ["<a>"]),
        ({"sep_token": "<a>", "added_tokens_decoder": {}}, ["<a>"]),
    ],
)
def test_special_tokens_without_an_id_follow_the_sentinels_of_t5(
    tmp_path: Path, settings: dict[str, Any], added: list[str]
) -> None:
    """They are those of the fields that `transformers` 5 reads."""
    size = write_t5_vocabulary(tmp_path)
    write_settings(tmp_path, **settings)
    if "added_tokens_decoder" in settings:  # then transformers reads no other file
        write_json(tmp_path / "special_tokens_map.json", {"additional_special_tokens": ["<b>"]})
    vocabulary, rows, _ = read_t5(tmp_path, size)
    assert vocabulary.src.table is not None
    found = {each.text: rows.row[each.id] for each in vocabulary.src.table.added}
    assert found == {name: size - 7 + number for number, name in enumerate(added)}


def test_sentencepiece_model_without_a_space_before_a_text_is_refused(tmp_path: Path) -> None:
    for name, value in (("add_dummy_prefix", False), ("treat_whitespace_as_suffix", True)):
        options = {name: value, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        (tmp_path / "spiece.model").write_bytes(train_model(0, **options))
        with pytest.raises(SourceError, match=rf"spiece\.model: {name}={value} is not supported"):
            read_t5(tmp_path, 300)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": [{"type": "Precompiled", "precompiled_charsmap": "AAAA"}, SEVERAL]},
        {"normalizer": [{"type": "Precompiled", "precompiled_charsmap": 5}, SEVERAL]},
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", "high"]]}},
        {"model": {"type": "Unigram", "unk_id": 9, "vocab": []}},
        {"model": None},
        {"decoder": [SPACE]},
        {"pre_tokenizer": "Metaspace"},
        {"added_tokens": [5]},
        {"added_tokens": {"a": 5}},
    ],
)
def test_damaged_tokenizer_json_is_named(tmp_path: Path, parts: dict[str, Any]) -> None:
    size = write_t5_json(tmp_path)
    path = tmp_path / "tokenizer.json"
    if normalizers := parts.get("normalizer"):
        parts = {"normalizer": {"type": "Sequence", "normalizers": normalizers}}
    write_json(path, json.loads(path.read_text("utf-8")) | parts)
    with pytest.raises(SourceError, match=r"tokenizer\.json.* is damaged"):
        read_t5(tmp_path, size + 100)


def test_tokenizer_json_beside_an_m2m100_must_have_its_ids(tmp_path: Path) -> None:
    size = write_m2m100_vocabulary(tmp_path)
    rows = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    path = tmp_path / "tokenizer.json"
    added = [{"id": len(rows), "content": "__af__"}]
    write_json(path, {"model": {"vocab": rows}, "added_tokens": added})
    assert len(read_m2m100(tmp_path, size).languages) == 100
    write_json(path, {"model": {"vocab": rows | {[*rows][9]: 1}}})
    with pytest.raises(
        SourceError, match=r"vocab\.json and tokenizer\.json disagree: '.*' is 9 and 1"
    ):
        read_m2m100(tmp_path, size)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(SourceError, match=r"vocab\.json is missing, .* tokenizer_class='Nllb"):
        read_m2m100(tmp_path, size)


SENTINELS = [f"<extra_id_{n}>" for n in range(125)]
BYT5_SETTINGS: dict[str, dict[str, Any]] = {
    "none but the class": {},
    "transformers 4": {"extra_ids": 125, "additional_special_tokens": SENTINELS},
    "transformers 5": {  # which saves that there are none
        "extra_ids": 0,
        "extra_special_tokens": SENTINELS,
        "added_tokens_decoder": {
            str(row): {"content": text, "lstrip": row < 3, "rstrip": row < 3, "special": row > 2}
            for row, text in [
                (0, "<pad>"), (1, "</s>"), (2, "<unk>"), *enumerate(SENTINELS, start=259),
            ]
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", BYT5_SETTINGS.values(), ids=BYT5_SETTINGS)
def test_bytes_have_the_ids_of_byt5(tmp_path: Path, settings: dict[str, Any]) -> None:
    write_settings(tmp_path, tokenizer_class="ByT5Tokenizer", **settings)
    vocabulary, rows, _ = read_byt5(tmp_path, 384)
    assert vocabulary.src is vocabulary.tgt
    assert vocabulary.src.kind == "bytes"
    for line in ("naïve  ▁ <extra_id_0> 世界", "\x7f\t.", ""):
        [ids] = vocabulary.src.encode([line])
        expected = [byte + 3 for byte in line.encode()]
        assert rows.row[ids].tolist() == [*expected, 1]
        assert vocabulary.tgt.decode([ids]) == [line]
    assert rows.row[vocabulary.src.sentinel_ids].tolist() == [*range(259, 384)]
    assert rows.row[[PAD_ID, BOS_ID, EOS_ID, UNK_ID]].tolist() == [NO_ROW, 0, 1, 2]
    assert rows.is_output.tolist() == [False, *[True] * 384]
    with pytest.raises(SourceError, match=r"vocab_size=400, but ByT5Tokenizer has 384 ids: 3 spec"):
        read_byt5(tmp_path, 400)
    (tmp_path / "added_tokens.json").write_text('{"<new>": 384}', "utf-8")
    with pytest.raises(SourceError, match=r"the added token '<new>' is no byte"):
        read_byt5(tmp_path, 384)


@pytest.mark.parametrize(
    ("read", "settings", "message"),
    [
        (read_m2m100, {"tokenizer_class": "ByT5Tokenizer"}, "'ByT5Tokenizer': bytes, a vocabulary"),
        (read_t5, {"tokenizer_class": "OwnTokenizer"}, "'OwnTokenizer': not supported; use tr"),
        (read_t5, {"add_eos_token": False}, "add_eos_token=False is not supported; it can be True"),
        (read_t5, {"add_prefix_space": False}, "add_prefix_space=False"),
        (read_t5, {"eos_token": "<eos>"}, "eos_token='<eos>' is not supported; it can be '</s>'"),
        (read_t5, {"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs=.*sampling"),
        (read_t5, {"extra_ids": 9.5}, r"extra_ids=9\.5 is not a whole number"),
        (read_t5, {"auto_map": {"AutoTokenizer": ["a.B", None]}}, "auto_map=.* code"),
        (read_mbart, {}, "without a tokenizer_class .* MBartTokenizer: .* mBART-25"),
        (read_mbart, {"tokenizer_class": "BarthezTokenizer"}, "'BarthezTokenizer': not supported"),
        (read_m2m100, {"tokenizer_class": "PreTrainedTokenizerFast"}, "for one direction, not"),
        (read_marian, {"separate_vocabs": True}, "separate_vocabs=True"),
    ],
)  # fmt: skip
def test_tokenizer_that_is_not_understood_is_refused_by_class_or_setting(
    tmp_path: Path, read: Any, settings: dict[str, Any], message: str
) -> None:
    write_t5_vocabulary(tmp_path)
    write_settings(tmp_path, **settings)
    with pytest.raises(SourceError, match=rf"tokenizer_config\.json: .*{message}"):
        read(tmp_path, 300)


def test_setting_that_nobody_knows_is_refused_if_it_may_change_sub_words(tmp_path: Path) -> None:
    write_settings(tmp_path, later=1, clean_up_tokenization_spaces=True, model_max_length=10**30)
    warnings = TokenizerSettings(tmp_path, {}).finish()
    assert [each.partition("=")[0] for each in warnings] == [
        "tokenizer_config.json: clean_up_tokenization_spaces", "tokenizer_config.json: later",
    ]  # fmt: skip
    write_settings(tmp_path, keep_accents=False, byte_level=True)
    with pytest.raises(SourceError, match="byte_level=True is not understood"):
        TokenizerSettings(tmp_path, {}).finish()
    write_settings(tmp_path, source_lang=["en"])
    with pytest.raises(SourceError, match=r"source_lang=\['en'\] is no code of a language"):
        TokenizerSettings(tmp_path, {}).read_language("source_lang")
