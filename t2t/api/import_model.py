"""`import_model`: makes a run of a model that `transformers` saved."""

import difflib
import json
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t2t.config.fields import Config, ConfigError, MeshConfig
from t2t.config.files import save_config
from t2t.config.languages import normalize_language
from t2t.config.measures import list_scored
from t2t.config.requests import make_request
from t2t.config.rules import validate
from t2t.interop.foreign_model import ForeignModel, read_model
from t2t.interop.foreign_search import (
    GENERATION,
    ForeignSearch,
    check_same_ids,
    list_generation,
    list_unknown,
    read_search,
)
from t2t.interop.hugging_face_folder import find_folder, open_tensors, read_json
from t2t.interop.requests import ImportRequest
from t2t.interop.strict_config import START_IDS
from t2t.interop.verify_import import check_installed, compare_with_original
from t2t.ops.flops import count_parameters
from t2t.runtime.mesh import make_mesh
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import explain_write_errors
from t2t.storage.paths import check_new_run_path, hash_file
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

# Sub-words, and bytes, of a source: a longer one is cut into pieces.
_LONGEST, _LONGEST_BYTES = 512, 2048
_log = logging.getLogger(__name__)


def import_model(source: str, workdir: str | os.PathLike[str], **options: Any) -> Config:
    """Writes a run directory with config, vocabulary, one checkpoint and provenance.

    The checkpoint is that of step 0. Tensors are read one by one, and placed on all devices.

    Args:
        source: a folder, or "hf:OWNER/NAME[@REVISION]".
        workdir: a new run directory; it appears when it is complete.
        options: the other flags of the program, such as `verify=True`: the fields of
            `t2t.interop.requests.ImportRequest`.

    Returns:
        The config of the run. What was understood is in `import.json` (`read_import`).

    Raises:
        SourceError: the model is not supported, damaged or incomplete, or differs from the
            original.
        ConfigError: an option is unknown or wrong, the run directory exists, the directions do not
            fit the model, or `transformers` is not installed.
        RunError: it cannot be written.
    """
    request = make_request(ImportRequest, {"source": source, "workdir": workdir, **options})
    if request.workdir.exists():
        raise ConfigError(f"--workdir={request.workdir} exists already; choose a new directory")
    check_new_run_path(request.workdir)
    if request.verify:
        check_installed()
    folder = find_folder(request.source)
    tensors = open_tensors(folder)  # first: GGUF, for example, has no config.json
    values = read_json(folder, "config.json")
    vocabulary = folder
    if request.tokenizer:
        vocabulary = find_folder(request.tokenizer, "tokenizer", weights=False)
    model = read_model(vocabulary, values, tensors, request.ignore_fields)
    has_file = (folder / GENERATION).exists()
    given = read_json(folder, GENERATION) if has_file else values
    if has_file:
        check_same_ids(folder, values, given)
    rows = model.vocabulary.rows
    start = int(rows.row[START_IDS[model.config.decoder_start]])
    forced = _find_forced(model, request.directions)
    file = GENERATION if has_file else "config.json"
    search = read_search(given, rows, _find_longest(model), start, forced, file)
    config = _make_config(model, search)
    config.data.src_language = request.src_language or config.data.src_language
    config.data.tgt_language = request.tgt_language or config.data.tgt_language
    _set_directions(config, model, request.directions)
    warnings = _list_warnings(config, model, search, list_unknown(given) if has_file else {})
    for warning in warnings:
        _log.warning("%s", warning)
    origin = _describe_source(request, folder, vocabulary, values)
    origin["generation"] = given if has_file else list_generation(given)
    origin["warnings"] = warnings
    origin["understood"] = _describe_understood(config, model, search, values)
    # All devices together hold the parameters, if their number divides d_model.
    shards = jax.device_count() if model.config.d_model % jax.device_count() == 0 else 1
    with jax.set_mesh(make_mesh(MeshConfig(fsdp=shards))):
        params = model.read_params()
        if request.verify:
            origin["verified"] = compare_with_original(folder, vocabulary, config, model, params)
        with explain_write_errors(RunError, f"--workdir={request.workdir}"):
            write_run(request.workdir, params, 0, _list_files(config, model, origin))
    return config


def _list_warnings(
    config: Config, model: ForeignModel, search: ForeignSearch, unknown: Mapping[str, Any]
) -> list[str]:
    """Lists what is not understood or not taken, one line each."""
    given = {"src": config.data.src_language, "tgt": config.data.tgt_language}
    return [
        *(
            f"tokenizer_config.json says that the model is for {own}; --{side}_language={code} "
            "is taken"
            for (side, code), own in zip(given.items(), model.own_languages, strict=True)
            if own and code and normalize_language(own) != normalize_language(code)
        ),
        *(
            f"{file}: {name}={value!r} is not known and is ignored"
            for file, fields in (("config.json", model.unknown), (GENERATION, unknown))
            for name, value in fields.items()
        ),
        *model.warnings,
        *(f"the search of the source: {warning}" for warning in search.warnings),
    ]


def _find_longest(model: ForeignModel) -> int:
    """Returns the longest source."""
    is_bytes = model.vocabulary.vocabulary.src.kind == "bytes"
    longest = _LONGEST_BYTES if is_bytes else _LONGEST
    return min(longest, model.config.position_limit or longest)


def _find_forced(model: ForeignModel, directions: Sequence[str]) -> list[int]:
    """The original's ids of the tags with which outputs begin."""
    if not model.tags_both:
        return []
    tokenizer = model.vocabulary.vocabulary.tgt
    codes = {direction.partition("-")[2] for direction in directions}
    known = sorted(codes.intersection(model.vocabulary.languages))
    ids = [tokenizer.with_tag(f"<2{code}>").tag_ids[0] for code in known]
    return [int(row) for row in model.vocabulary.rows.row[ids]]


def describe_import(workdir: Path) -> str:
    """Describes an imported run: what was understood, in a table, and what to do next."""
    origin = read_import(workdir)
    assert origin is not None
    rows = [*origin["understood"].items()]
    verified = origin.get("verified", {}).items()
    rows += [(f"verified: {name.replace('_', ' ')}", found or "none") for name, found in verified]
    ignored = ", ".join(f"{name}={value!r}" for name, value in origin["ignored_fields"].items())
    table = format_table([*rows, ("ignored by --ignore_fields", ignored or "none")])
    run = shlex.quote(str(workdir))
    use = f"translate --workdir={run} --checkpoint=last"
    if scored := find_scored(workdir):
        use = f"evaluate --workdir=RUN --measure_model={scored[0]}={run}"
    return f"{table}\n{workdir}\nnext: python -m t2t.{use}"


def find_scored(workdir: Path) -> list[str]:
    """Returns the measures that an imported run computes; it then makes no translations."""
    origin = read_import(workdir)
    return list_scored(origin["config"].get("architectures")) if origin else []


def _make_config(model: ForeignModel, search: ForeignSearch) -> Config:
    """The config of the run."""
    vocabulary = model.vocabulary.vocabulary
    config = Config(model=model.config, decoding=search.decoding)
    config.tokenizer.kind = vocabulary.src.kind
    config.tokenizer.vocab_size = vocabulary.tgt.vocab_size
    config.tokenizer.byte_fallback = vocabulary.src.has_bytes
    config.data.max_length = _find_longest(model)
    if model.config.output_bias and not model.has_bias:
        config.training.frozen = ("output_bias",)  # a fine-tuned one could not be exported
    config.data.src_language, config.data.tgt_language = model.own_languages
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


def _describe_source(
    request: ImportRequest, folder: Path, vocabulary: Path, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of `import.json` that is known before the tensors are read."""
    origin = {
        "date": now(),
        "command": shlex.join(sys.orig_argv),
        "source": request.source,
        "folder": str(folder),
        "files": _hash_files(folder),
        "config": values,
        **find_revision(()),
        "versions": find_versions(PACKAGES),
    }
    if request.tokenizer:
        origin["tokenizer"] = {"source": request.tokenizer, "files": _hash_files(vocabulary)}
    origin["ignored_fields"] = {name: values[name] for name in request.ignore_fields}
    return origin


def _describe_understood(
    config: Config, model: ForeignModel, search: ForeignSearch, values: Mapping[str, Any]
) -> dict[str, str]:
    """Returns what was understood of the source: parts of the model, with a line for each."""
    own, given, rows = config.model, model.given, model.vocabulary.rows
    architectures = ", ".join(values.get("architectures") or [])
    decoding = config.decoding
    beam = f"beam of {decoding.beam_size}"
    if decoding.strategy == "sampling":
        beam = (
            f"samples, temperature {decoding.temperature:g}, top_k {decoding.top_k}, top_p "
            f"{decoding.top_p:g}"
        )
    elif decoding.beam_size > 1:
        beam += f", log P divided by length ** {decoding.alpha:g}"
    if decoding.min_length:
        beam += f", at least {decoding.min_length} sub-words"
    encoder, decoder = own.depth
    size = len(rows.row)
    limit = f", {own.max_positions} at most" if own.position_limit else ""
    return {
        "family": f"{given.get('model_type')} {architectures}".strip(),
        "layers": f"{encoder} of the encoder, {decoder} of the decoder",
        "widths": f"d_model {own.d_model}, d_ff {own.d_ff}, {own.num_heads} heads of "
        f"{own.key_width}",
        "parameters": f"{count_parameters(own, size, size):,}",
        "positions": own.position + limit,
        "vocabulary": ", ".join(
            f"{n:,} {name}" for name, n in model.vocabulary.count_pieces().items()
        ),
        "search": beam,
        "longest output": f"its source and {decoding.max_extra_length} sub-words; generate() of "
        f"transformers: {search.max_length}",
        "without effect": ", ".join(given.list_without_effect()) or "none",
        "not known": ", ".join(model.unknown) or "none",
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
