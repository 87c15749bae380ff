import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import t2t
from configs import fine_tune
from t2t.api import train_run
from t2t.api.export_run import export
from t2t.api.import_model import import_model
from t2t.api.run_summary import describe_run
from t2t.config.fields import ConfigError, DecodingConfig, TokenizerConfig
from t2t.config.files import load_config, save_config
from t2t.config.rules import validate
from t2t.data.corpus import ListCorpus
from t2t.data.preparation import fill_tokenizer, make_vocabulary
from t2t.data.tokenizer import Vocabulary
from t2t.interop.hugging_face_export import plan_export
from t2t.interop.hugging_face_export import write_model as write_model_of_transformers
from t2t.interop.hugging_face_folder import SourceError, open_tensors, read_json, write_json
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.tokenizer_json import NAME
from t2t.storage.atomic_files import write_file
from t2t.training.checkpoint import restore_params
from tests.interop.foreign_folders import (
    write_byt5_model,
    write_config,
    write_m2m100_vocabulary,
    write_madlad_model,
    write_model,
    write_nllb_model,
    write_t5_model,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (folder := tmp_path / "source").mkdir()
    write_model(folder)
    return folder


def test_run_has_config_vocabulary_checkpoint_and_provenance(source: Path, tmp_path: Path) -> None:
    config = import_model(str(source), tmp_path / "run")
    assert load_config(tmp_path / "run" / "config.json") == config
    assert (config.data.src_language, config.data.tgt_language) == ("en", "de")
    assert (config.decoding.beam_size, config.decoding.length_penalty) == (6, "length")
    run = t2t.load(tmp_path / "run", checkpoint="last")
    size = config.tokenizer.vocab_size
    assert run.vocabulary.src.vocab_size == run.vocabulary.tgt.vocab_size == size
    assert len(Rows.load(tmp_path / "run" / "vocab").row) == size
    assert f"none: imported from {source}, " in describe_run(tmp_path / "run")
    origin = json.loads((tmp_path / "run" / "import.json").read_text("utf-8"))
    assert origin["source"] == str(source)
    weights = (source / "model.safetensors").read_bytes()
    recorded = origin["files"]["model.safetensors"]
    assert recorded == {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}


def test_vocabulary_of_an_imported_run_is_kept_in_fine_tuning(source: Path, tmp_path: Path) -> None:
    config = import_model(str(source), tmp_path / "run")
    given = tmp_path / "run" / "vocab"
    config.tokenizer = TokenizerConfig(path=str(given))
    filled = fill_tokenizer(config).tokenizer
    assert filled.shared  # source and target have a model each, but the same ids
    assert (filled.kind, filled.vocab_size) == ("unigram", Rows.load(given).row.size)
    make_vocabulary(config, tmp_path / "tuned", [ListCorpus("pairs", [("a", "b")])])
    assert Rows.load(tmp_path / "tuned" / "vocab").row.tolist() == Rows.load(given).row.tolist()


def test_byt5_becomes_a_run_of_bytes_that_translates_and_may_be_fine_tuned(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    write_byt5_model(source)
    config = import_model(str(source), tmp_path / "run")
    assert (config.tokenizer.kind, config.tokenizer.vocab_size) == ("bytes", 265)
    assert config.data.max_length == 2048  # bytes
    understood = json.loads((tmp_path / "run" / "import.json").read_text("utf-8"))["understood"]
    assert understood["vocabulary"] == "256 bytes, 5 sentinels"
    run = t2t.load(tmp_path / "run", checkpoint="last")
    assert len(run.translate(["naïve"])) == 1
    config.tokenizer = TokenizerConfig(path=str(tmp_path / "run" / "vocab"))  # in fine-tuning
    filled = fill_tokenizer(config).tokenizer
    assert (filled.kind, filled.vocab_size, filled.sentinels) == ("bytes", 265, 5)


def test_what_was_not_understood_or_taken_is_logged_and_recorded(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = json.loads((source / "config.json").read_text("utf-8"))
    write_config(source, values | {"attention_window": 64, "later_field": 3})
    generation = {"num_beams": 1, "no_repeat_ngram_size": 3, "later_search": 2}
    (source / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    refuse(source, tmp_path, r"attention_window=64 .* --ignore_fields=attention_window")
    run = tmp_path / "run"
    config = import_model(
        str(source), run, ignore_fields=["attention_window"], src_language="eng", tgt_language="fr"
    )
    assert config.decoding.beam_size == 1
    warnings = [record.message for record in caplog.records]
    for expected in (
        "later_field=3",
        "later_search=2",
        "no_repeat_ngram_size=3",
        "is for de; --tgt",
    ):
        assert [expected in warning for warning in warnings].count(True) == 1
    origin = json.loads((run / "import.json").read_text("utf-8"))
    assert origin["ignored_fields"] == {"attention_window": 64}
    assert origin["warnings"] == warnings
    assert "--src_language" not in "".join(warnings)
    assert origin["understood"]["search"] == "beam of 1"
    assert origin["understood"]["family"] == "marian MarianMTModel"


def test_table_of_a_resized_t5_bars_what_is_no_output(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    write_madlad_model(source)
    config = import_model(str(source), tmp_path / "run")
    assert (config.model.decoder_start, config.model.output_bias) == ("unk", True)
    assert fine_tune.get_config(str(tmp_path / "run")).training.frozen == ("output_bias",)
    params, _ = restore_params(tmp_path / "run", "last")
    export(tmp_path / "run", "last", tmp_path / "out", engine="hf")
    assert open_tensors(source).shapes == open_tensors(tmp_path / "out").shapes
    vocabulary = Vocabulary.load(tmp_path / "run" / "vocab")
    rows = Rows.load(tmp_path / "run" / "vocab")
    planned = plan_export(config, vocabulary, rows)
    params["output_bias"] = params["output_bias"] + np.arange(len(rows.row))
    with pytest.raises(ConfigError, match=r"model\.output_bias=True was trained, .*frozen"):
        write_model_of_transformers(planned, config, params, vocabulary, tmp_path / "again")


@pytest.mark.usefixtures("one_device")
def test_imported_t5_learns_several_tasks_with_its_own_prefixes_and_sentinels(
    tmp_path: Path,
) -> None:
    (source := tmp_path / "source").mkdir()
    write_t5_model(source)
    import_model(str(source), tmp_path / "t5")
    for language, lines in (("en", ["the queen sees the king"] * 9), ("de", ["die Königin"] * 9)):
        (tmp_path / f"train.{language}").write_text("\n".join(lines) + "\n", "utf-8")
    config = fine_tune.get_config(str(tmp_path / "t5"))
    translate, fill = "the king", "two houses"  # which this small vocabulary spells
    config.data = dataclasses.replace(
        config.data, cache_directory=str(tmp_path / "cache"), max_length=64, packed_length=0,
        batch_tokens=1024, train_src=(f"{tmp_path}/train.en",), train_tgt=(f"{tmp_path}/train.de",),
        mixture=(
            f"translate: prefix='{translate}'", f"fill: objective=span_corruption prefix='{fill}'"
        ),
    )  # fmt: skip
    config.training = dataclasses.replace(config.training, steps=3, warmup_steps=1)
    assert train_run.train(validate(config), tmp_path / "run")
    vocabulary = Vocabulary.load(tmp_path / "run" / "vocab")
    texts, [whole] = ["the queen"], vocabulary.src.encode([f"{translate} the queen"])
    assert t2t.load(tmp_path / "run", "last").encode(texts) == [whole]
    filler = t2t.load(tmp_path / "run", "last", task="fill")
    assert filler.fill("the <extra_id_0> sees")[0].text.startswith("the ")
    [gap, *_] = vocabulary.tgt.sentinel_ids
    assert vocabulary.tgt.pieces([gap]) == ["<extra_id_0>"]


def refuse(source: Path, tmp_path: Path, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        import_model(str(source), tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "it can be marian, m2m_100, mbart, t5, mt5, umt5"),
        ({"model_type": "bart"}, "is not supported: .* no SentencePiece model"),
        ({"model_type": "prophetnet"}, "is not supported: ProphetNet predicts several sub-words"),
        ({"model_type": "llama"}, "is not supported: it is a decoder alone"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config=.* GPTQ, AWQ"),
        ({"eos_token_id": 7}, "eos_token_id=7 is not supported; it can be 0"),
        ({"num_beams": "4"}, "config.json: num_beams='4' is not a whole number"),
        ({"decoder_layers": 3}, r"weights lack model\.decoder\.layers\.2\..* and \d+ more"),
        ({}, r"has no tokenizer: .*tokenizer\.save_pretrained.* --tokenizer"),
    ],
)
def test_folder_of_another_model_is_refused_and_leaves_nothing_behind(
    source: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    values = json.loads((source / "config.json").read_text("utf-8"))
    write_config(source, values | changes)
    for name in ("source.spm", "target.spm", "vocab.json") if not changes else ():
        (source / name).unlink()
    refuse(source, tmp_path, message)


def test_interruption_and_missing_packages_leave_nothing_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_at_the_last_file(path: Path, content: bytes) -> None:
        if path.name == "config.json":
            raise KeyboardInterrupt
        write_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("t2t.training.checkpoint.write_file", stop_at_the_last_file)
        with pytest.raises(KeyboardInterrupt):
            import_model(str(source), tmp_path / "run")
    with pytest.raises(ConfigError, match="verfy=True: no such field; perhaps verify, "):
        import_model(str(source), tmp_path / "run", verfy=True)
    with pytest.raises(ConfigError, match="source='' must not be empty"):
        import_model("", tmp_path / "run")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"--verify needs transformers.*pip install"):
        import_model(str(source), tmp_path / "run", verify=True)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    with pytest.raises(ConfigError, match=r"--workdir=.* exists already; choose a new directory"):
        import_model(str(source), source)


def test_directions_of_a_model_of_many_languages_are_asked_for_and_checked(
    source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"--directions=en-de: .* leave it out"):
        import_model(str(source), tmp_path / "run", directions=["en-de"])
    write_nllb_model(source)
    with pytest.raises(ConfigError, match=r"deu_Latn, .* with --directions=SOURCE-TARGET"):
        import_model(str(source), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"no language eng_Lat; perhaps eng_Latn"):
        import_model(str(source), tmp_path / "run", directions=["eng_Lat-deu_Latn"])
    directions = ["eng_Latn-deu_Latn", "deu_Latn-eng_Latn"]
    config = import_model(str(source), tmp_path / "run", directions=directions)
    assert config.data.directions == tuple(directions)
    run = t2t.load(tmp_path / "run", checkpoint="last", task="deu_Latn-eng_Latn")
    tags = [run.vocabulary.src.tag_ids, run.vocabulary.tgt.tag_ids]
    assert [run.vocabulary.src.pieces(ids) for ids in tags] == [["<2deu_Latn>"], ["<2eng_Latn>"]]


@pytest.mark.parametrize(
    "given",
    [
        {"num_beams": 4, "max_length": 200, "no_repeat_ngram_size": 3, "early_stopping": True},
        {"do_sample": True, "temperature": 0.5, "eos_token_id": 2, "decoder_start_token_id": 2},
    ],
)
def test_fields_of_generation_go_out_as_they_came_in(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any]
) -> None:
    for path in source.iterdir():
        path.unlink()
    write_nllb_model(source)
    write_json(source / "generation_config.json", given)
    directions = ["eng_Latn-deu_Latn", "deu_Latn-eng_Latn"]
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    codes = {}
    for count in (1, 2):
        run, out = tmp_path / f"run{count}", tmp_path / f"out{count}"
        import_model(str(source), run, directions=directions[:count])
        caplog.clear()
        export(run, "last", out, engine="hf")
        found = read_json(out, "generation_config.json")
        forced = found.pop("forced_bos_token_id", None)
        assert found == ids | given
        codes = {each["content"]: each["id"] for each in read_json(out, NAME)["added_tokens"]}
        assert forced == (codes["deu_Latn"] if count == 1 else None)
        warnings = [each.message.partition(" ")[0] for each in caplog.records]
        assert warnings == ["forced_bos_token_id"] * (count == 2)
    config = load_config(tmp_path / "run1" / "config.json")
    config.decoding = DecodingConfig(beam_size=5, length_penalty="length", alpha=1.0)
    save_config(config, tmp_path / "run1" / "config.json")
    export(tmp_path / "run1", "last", tmp_path / "changed", engine="hf")
    found = read_json(tmp_path / "changed", "generation_config.json")
    assert (found["num_beams"], found["forced_bos_token_id"]) == (5, codes["deu_Latn"])
    assert "forced_eos_token_id" not in found


def test_sampling_at_temperature_0_goes_out_as_greedy_search(source: Path, tmp_path: Path) -> None:
    write_json(source / "generation_config.json", {"do_sample": True, "temperature": 0.0})
    import_model(str(source), tmp_path / "run")
    export(tmp_path / "run", "last", tmp_path / "out", engine="hf")
    found = read_json(tmp_path / "out", "generation_config.json")
    assert (found["num_beams"], found.get("do_sample"), found.get("temperature")) == (1, None, None)


def test_files_that_begin_or_end_outputs_otherwise_are_refused(
    source: Path, tmp_path: Path
) -> None:
    for name in ("eos_token_id", "decoder_start_token_id"):
        write_json(source / "generation_config.json", {name: 7})
        refuse(source, tmp_path, rf"generation_config\.json and config\.json disagree: {name} is 7")


def test_sources_of_small100_begin_with_the_tag_of_the_target(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    settings = {"tokenizer_class": "SMALL100Tokenizer"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    write_nllb_model(source, write_m2m100_vocabulary)
    config = import_model(str(source), tmp_path / "run", directions=["en-fr"])
    assert config.data.direction_tags == "target"
