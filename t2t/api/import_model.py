"""`import_model`: makes a run of a model that `transformers` saved."""

import difflib
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t2t.config.fields import Config, ConfigError, DecodingConfig, MeshConfig
from t2t.config.files import save_config
from t2t.config.rules import validate
from t2t.interop.foreign_model import ForeignModel, read_model
from t2t.interop.hugging_face_folder import find_folder, hash_file, open_tensors, read_json
from t2t.interop.t5_family import METRICX_ARCHITECTURES
from t2t.runtime.mesh import make_mesh
from t2t.storage.atomic_files import explain_write_errors
from t2t.storage.paths import check_new_run_path
from t2t.training.checkpoint import write_run
from t2t.training.provenance import (
    IMPORTED,
    PACKAGES,
    find_revision,
    find_versions,
    now,
    read_import,
)
from t2t.training.run_directory import RunError

_LONGEST = 512  # sub-words of a source: a longer one is cut into pieces


def import_model(
    source: str,
    workdir: Path,
    src_language: str = "",
    tgt_language: str = "",
    directions: Sequence[str] = (),
    tokenizer: str = "",
) -> Config:
    """Writes a run directory with config, vocabulary, one checkpoint and provenance.

    The checkpoint is that of step 0. Tensors are read one by one, and placed on all devices.

    Args:
        source: a folder, or "hf:OWNER/NAME[@REVISION]".
        workdir: a new run directory; it appears when it is complete.
        src_language: language code; empty: that of the source's tokenizer_config.json.
        tgt_language: likewise.
        directions: of a model of many languages, such as eng_Latn-deu_Latn.
        tokenizer: the folder of the vocabulary, named like `source`; empty: that of the source.

    Returns:
        The config of the run.

    Raises:
        SourceError: the model is not supported, damaged or incomplete.
        ConfigError: the run directory exists, or the directions do not fit the model.
        RunError: it cannot be written.
    """
    if workdir.exists():
        raise ConfigError(f"--workdir={workdir} exists already; choose a new directory")
    check_new_run_path(workdir)
    folder = find_folder(source)
    values = read_json(folder, "config.json")
    tensors = open_tensors(folder)
    vocabulary = find_folder(tokenizer, "tokenizer", weights=False) if tokenizer else folder
    model = read_model(vocabulary, values, tensors)
    config = _make_config(model, folder, values)
    config.data.src_language = src_language or config.data.src_language
    config.data.tgt_language = tgt_language or config.data.tgt_language
    _set_directions(config, model, directions)
    # All devices together hold the parameters, if their number divides d_model.
    shards = jax.device_count() if model.config.d_model % jax.device_count() == 0 else 1
    with jax.set_mesh(make_mesh(MeshConfig(fsdp=shards))):
        params = model.read_params(tensors)
        origin = _describe_source(source, folder, values)
        if tokenizer:
            origin["tokenizer"] = {"source": tokenizer, "files": _hash_files(vocabulary)}
        with explain_write_errors(RunError, f"--workdir={workdir}"):
            write_run(workdir, params, 0, _list_files(config, model, origin))
    return config


def is_metricx(workdir: Path) -> bool:
    """Returns whether an imported run is MetricX, which scores translations and makes none."""
    origin = read_import(workdir)
    return bool(origin and origin["config"].get("architectures") == METRICX_ARCHITECTURES)


def _make_config(model: ForeignModel, folder: Path, values: Mapping[str, Any]) -> Config:
    """The config of the run: the search is the source's, with its penalty length ** alpha."""
    vocabulary = model.vocabulary.vocabulary
    generation = _read_optional(folder, "generation_config.json")
    given = {**values, **generation}
    beam_size: Any = given.get("num_beams")
    alpha: Any = given.get("length_penalty")
    decoding = DecodingConfig(length_penalty="length", alpha=1.0)
    if type(beam_size) is int and beam_size > 1:
        decoding.beam_size = beam_size
    if type(alpha) in (int, float) and alpha >= 0:
        decoding.alpha = float(alpha)
    config = Config(model=model.config, decoding=decoding)
    config.tokenizer.kind = vocabulary.src.kind
    config.tokenizer.vocab_size = vocabulary.tgt.vocab_size
    config.tokenizer.byte_fallback = vocabulary.src.has_bytes
    config.data.max_length = _LONGEST
    tokenizer = _read_optional(folder, "tokenizer_config.json")
    config.data.src_language = str(tokenizer.get("source_lang") or "")
    config.data.tgt_language = str(tokenizer.get("target_lang") or "")
    return validate(config)


def _set_directions(config: Config, model: ForeignModel, directions: Sequence[str]) -> None:
    """Sets the directions of a model that has codes of languages, after checking them."""
    known = model.vocabulary.languages
    if bool(known) != bool(directions):
        examples = ", ".join(known[:5])
        raise ConfigError(
            f"this model has the languages {examples}, ... ({len(known)}); say from which to which "
            f"it is to translate, with --directions=SOURCE-TARGET,..."
            if known
            else f"--directions={','.join(directions)}: this model has no codes of languages; "
            "leave it out"
        )
    config.data.directions = tuple(directions)
    config.data.direction_tags = "both" if model.tags_both else "target"
    validate(config)
    for direction in directions:
        src, _, tgt = direction.partition("-")
        for code in (src, tgt) if model.tags_both else (tgt,):
            if code not in known:
                close = difflib.get_close_matches(code, known, 3, 0.0)
                raise ConfigError(
                    f"--directions={direction}: this model has no language {code}; perhaps "
                    f"{', '.join(close)}"
                )


def _read_optional(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder, name) if (folder / name).exists() else {}


def _describe_source(source: str, folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `import.json`."""
    return {
        "date": now(),
        "command": shlex.join(sys.orig_argv),
        "source": source,
        "folder": str(folder),
        "files": _hash_files(folder),
        "config": values,
        **find_revision(()),
        "versions": find_versions(PACKAGES),
    }


def _hash_files(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: {"bytes": path.stat().st_size, "sha256": hash_file(path)} for path in files}


def _list_files(config: Config, model: ForeignModel, origin: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of the run directory besides the checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary, rows, _ = model.vocabulary
        vocabulary.save(folder / "vocab")
        rows.save(folder / "vocab")
        save_config(config, folder / "config.json")
        (folder / IMPORTED).write_text(json.dumps(origin, indent=2) + "\n", "utf-8")
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
