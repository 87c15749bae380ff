"""`export`: converts a run for another engine."""

from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.config.files import load_config
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.load_models import require_ctranslate2
from t2t.storage.atomic_files import atomic_path, explain_write_errors, make_folder
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError


def export(workdir: Path, checkpoint: str, output: Path, quantization: str | None = None) -> None:
    """Writes the model to a new directory.

    Raises:
        ConfigError: CTranslate2 is not installed or lacks such a model, or `output` exists.
        RunError: the checkpoint does not exist, or `output` cannot be written.
    """
    require_ctranslate2()
    from t2t.interop.ctranslate2_export import check_support, write_model

    config = load_config(workdir / "config.json")
    check_support(config.model)
    vocabulary = Vocabulary.load(workdir / "vocab")
    params, _ = restore_params(workdir, checkpoint)
    if output.exists():
        raise ConfigError(f"--output={output} exists already; choose a new directory")
    src, tgt = vocabulary.src, vocabulary.tgt
    pieces = src.pieces(range(src.vocab_size)), tgt.pieces(range(tgt.vocab_size))
    with explain_write_errors(RunError, f"--output={output}"):
        make_folder(output.parent)
        with atomic_path(output) as draft:
            draft.mkdir()
            vocabulary.save(draft / "vocab")
            write_model(config.model, params, pieces, draft, quantization)
