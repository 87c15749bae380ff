"""t2t.export: what it writes, and what it refuses."""

import errno
import json
from pathlib import Path

import ctranslate2
import pytest
import sentencepiece

from t2t.api.export_run import export
from t2t.api.line_translator import LineTranslator, translate_lines
from t2t.config.fields import ConfigError
from t2t.config.files import load_config, save_config
from t2t.data.tokenizer import VocabularyError
from t2t.decoding.translation import clean_line
from t2t.evaluation.requests import ModelRequest
from t2t.training.run_directory import RunError
from tests import programs

LINE = "The old man sells two dogs."


def translate(directory: Path, **options: str) -> str:
    """Translates greedily with only the exported directory, as its user would."""
    text = sentencepiece.SentencePieceProcessor(str(directory / "vocab" / "joint.model"))
    translator = ctranslate2.Translator(str(directory), intra_threads=1, **options)
    pieces = text.encode(LINE, out_type=str)
    limit = len(pieces) + 4  # the config allows 4 more than the source
    [result] = translator.translate_batch(
        [pieces], beam_size=1, max_decoding_length=limit, min_decoding_length=0
    )
    return clean_line(text.decode(result.hypotheses[0]))


@pytest.mark.parametrize("checkpoint", ["best", "avg:3"])
def test_exported_model_translates_as_the_run_does(
    run: Path, tmp_path: Path, checkpoint: str
) -> None:
    export(run, checkpoint, tmp_path / "models" / "toy")
    translator = LineTranslator(ModelRequest((run,), checkpoint, decoding={"beam_size": 1}))
    [[expected]] = translate_lines(translator, iter([LINE.encode()]))
    assert translate(tmp_path / "models" / "toy", compute_type="float32") == expected.text


def test_refused_export_writes_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already; choose a new directory"):
        export(run, "best", run)
    (tmp_path / "file").touch()
    with pytest.raises((RunError, VocabularyError), match="cannot be written"):
        export(run, "best", tmp_path / "file" / "model")
    output = tmp_path / "models" / "model"
    with pytest.raises(ConfigError, match="--quantization=int8 is one of CTranslate2"):
        export(run, "best", output, "int8", engine="hf")
    config = load_config(run / "config.json")
    config.model.norm, config.model.norm_position = "none", "pre"
    save_config(config, tmp_path / "config.json")
    (tmp_path / "vocab").symlink_to(run / "vocab")
    for engine, message in (
        ("ctranslate2", r"model\.norm='none' is not .* by CTranslate2; it supports layer, rms"),
        ("hf", r"model\.norm='none' is not .* of transformers; it supports layer"),
    ):
        with pytest.raises(ConfigError, match=message):
            export(tmp_path, "best", output, engine=engine)
    assert not output.parent.exists()


@pytest.mark.parametrize(
    ("engine", "writer"),
    [
        ("ctranslate2", "ctranslate2_export.write_model"),
        ("hf", "hugging_face_export.write_tokenizer"),
    ],
)
def test_failed_export_leaves_nothing_in_the_way_of_the_next(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, writer: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    output = tmp_path / "models" / "model"
    with monkeypatch.context() as patch:
        patch.setattr(f"t2t.interop.{writer}", fail)
        with pytest.raises(RunError, match="cannot be written: No space left"):
            export(run, "best", output, engine=engine)
    assert [*output.parent.iterdir()] == []
    export(run, "best", output, engine=engine)
    assert (output / "config.json").exists()


def test_folder_for_transformers_has_model_search_and_tokenizer(run: Path, tmp_path: Path) -> None:
    """`test_against_transformers.py` loads such a folder."""
    export(run, "avg:3", tmp_path / "models" / "hf", engine="hf")
    assert sorted(path.name for path in (tmp_path / "models" / "hf").iterdir()) == [
        "config.json", "generation_config.json", "lines.json", "model.safetensors", "source.spm",
        "target.spm", "tokenizer_config.json", "vocab.json",
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["hf"]
    settings = json.loads((tmp_path / "models" / "hf" / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["length_penalty"]) == (4, 0.6)


@pytest.mark.parametrize("tags", ["target", "both"])
def test_user_of_the_other_engine_is_told_of_the_tags(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, tags: str
) -> None:
    config = load_config(run / "config.json")
    config.data.directions, config.data.direction_tags = ("en-de",), tags
    save_config(config, tmp_path / "config.json")
    for name in ("vocab", "checkpoints"):
        (tmp_path / name).symlink_to(run / name)
    export(tmp_path, "last", tmp_path / "model")
    source, target = ("'<2en>'", "<2de>") if tags == "both" else ("'<2de>'", "")
    [message] = [each.message for each in caplog.records if "no tags" in each.message]
    assert source in message
    assert ("target_prefix=[['<2de>']]" in message) == bool(target)


def test_program_takes_its_flags(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "model"
    flags = f"--output={output}", "--checkpoint=last", "--quantization=int8"
    done = programs.run("t2t.export", f"--workdir={run}", "--format=ctranslate2", *flags)
    assert (done.returncode, done.stdout) == (0, f"{output}\n")
    assert json.loads((output / "config.json").read_text())["layer_norm_epsilon"] == 1e-6
    assert translate(output)
    export(run, "last", tmp_path / "whole")
    whole, quantized = (
        (folder / "model.bin").stat().st_size for folder in (tmp_path / "whole", output)
    )
    assert quantized < whole
