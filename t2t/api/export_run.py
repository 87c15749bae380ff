"""`export`: converts a run for another engine."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from t2t.api.import_model import find_scored
from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.config.files import load_config
from t2t.data.batch import Route
from t2t.data.directions import choose_task, find_route, find_tag, list_tasks
from t2t.data.tokenizer import ORIGINAL_IDS, Vocabulary
from t2t.evaluation.load_models import require_ctranslate2
from t2t.interop.hugging_face_export import plan_export
from t2t.interop.hugging_face_export import write_model as write_hugging_face
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.storage.atomic_files import atomic_path, explain_write_errors
from t2t.training.checkpoint import restore_params
from t2t.training.provenance import read_import
from t2t.training.run_directory import RunError
from t2t.training.sharing import Sharing, make_plain

_log = logging.getLogger(__name__)


def export(
    workdir: Path,
    checkpoint: str,
    output: Path,
    quantization: str | None = None,
    engine: str = "ctranslate2",
    task: str = "",
) -> None:
    """Writes the model to a new directory.

    Args:
        workdir: run directory.
        checkpoint: its name, see `restore_params`.
        output: the new directory; it appears when it is complete.
        quantization: of the weights, for CTranslate2.
        engine: ctranslate2, or hf for `transformers`.
        task: of a run whose tasks have their own stacks, the one whose model is exported.

    Raises:
        ConfigError: the engine lacks such a model or is not installed, or `output` exists.
        RunError: the checkpoint does not exist, or `output` cannot be written.
    """
    if engine == "hf":
        _export_hugging_face(workdir, checkpoint, output, quantization, task)
        return
    require_ctranslate2()
    from t2t.interop.ctranslate2_export import check_support, write_model

    sharing, route, config = _find_task(workdir, task)
    check_support(config.model)
    vocabulary = Vocabulary.load(workdir / "vocab")
    params, _ = restore_params(workdir, checkpoint, config)
    params = sharing.pick(params, route)
    src, tgt = vocabulary.src, vocabulary.tgt
    pieces = src.pieces(range(src.vocab_size)), tgt.pieces(range(tgt.vocab_size))
    with _draft_new(output) as draft:
        vocabulary.save(draft / "vocab")
        write_model(config.model, params, pieces, draft, quantization)
    for each in list_tasks(config.data):
        if each.directions or each.prefix:
            _log.warning("%s", _describe_tags(each))


def _find_task(workdir: Path, name: str) -> tuple[Sharing, Route, Config]:
    """Returns the stacks of a run, those of a task, and the config of its plain model."""
    config = load_config(workdir / "config.json")
    sharing = Sharing(config)
    if sharing.is_plain and not name:
        return sharing, Route(), config
    task = choose_task(config.data, name)
    return sharing, find_route(task), make_plain(config, task)


def _describe_tags(data: DataConfig) -> str:
    """Says which tag and prefix the user of CTranslate2 adds to the texts of a task."""
    src, *tgt = [*find_tag(data).split(), ""][:2]
    own = f" for {data.task}" if data.task else ""
    begin = " ".join(filter(None, [src, data.prefix]))
    text = f"CTranslate2 knows no tags:{own} begin the tokens of each source with {begin!r}"
    tgt = [*filter(None, tgt)]
    return f"{text}, and give target_prefix=[{tgt}] for each" if tgt else text


def _export_hugging_face(
    workdir: Path, checkpoint: str, output: Path, quantization: str | None, task: str
) -> None:
    """Writes what `from_pretrained` of `transformers` loads."""
    if quantization:
        raise ConfigError(
            f"--quantization={quantization} is one of CTranslate2; with --format=hf leave it out"
        )
    if scored := find_scored(workdir):
        raise ConfigError(
            f"{workdir} computes the measure {scored[0]}, and is not exported; use its original "
            "folder"
        )
    sharing, route, config = _find_task(workdir, task)
    vocabulary = Vocabulary.load(workdir / "vocab")
    has_original = (workdir / "vocab" / ORIGINAL_IDS).exists()
    rows = Rows.load(workdir / "vocab") if has_original else None
    planned = plan_export(config, vocabulary, rows)
    params, _ = restore_params(workdir, checkpoint, config)
    params = sharing.pick(params, route)
    search = (read_import(workdir) or {}).get("generation")
    with _draft_new(output) as draft:
        notes = write_hugging_face(planned, config, params, vocabulary, draft, search)
    for note in notes:
        _log.warning("%s", note)


@contextlib.contextmanager
def _draft_new(output: Path) -> Iterator[Path]:
    """Yields a folder that becomes `output`, which must not exist, when the block ends."""
    if output.exists():
        raise ConfigError(f"--output={output} exists already; choose a new directory")
    with explain_write_errors(RunError, f"--output={output}"), atomic_path(output) as draft:
        draft.mkdir()
        yield draft
