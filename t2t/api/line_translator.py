"""`LineTranslator` and `translate_lines`: the translation of lines as `t2t.translate` does it."""

import codecs
import dataclasses
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm.contrib.logging import logging_redirect_tqdm

from t2t.config.fields import ConfigError
from t2t.data.corpus import DataError
from t2t.decoding.bulk import BATCHES_TOGETHER, BulkPart, process_files
from t2t.decoding.translation import Translation, format_lines
from t2t.decoding.translator import Translator
from t2t.decoding.word_alignments import WordAligner, format_links
from t2t.evaluation.load_models import RunModel, identify_running_code, record_search
from t2t.evaluation.requests import ModelRequest
from t2t.storage.open_text import unpack
from t2t.training.provenance import hash_params

_log = logging.getLogger(__name__)


class LineTranslator:
    """Translates lines with the models of a request, which it loads once."""

    def __init__(
        self,
        request: ModelRequest,
        *,
        n_best: int = 1,
        backend: str = "jax",
        compute_type: str | None = None,
        alignment_layer: int | None = None,
        make: Callable[[RunModel], Translator] | None = None,
    ):
        """Loads the models.

        Args:
            request: runs, checkpoints and search.
            n_best: at most the beam size; 1 with sampling, where `num_samples` says how many.
            backend: jax or ctranslate2.
            compute_type: of ctranslate2; None: float32.
            alignment_layer: of the decoder; 0: the last but one; None: no alignment.
            make: creates what continues prompts or fills gaps; None: the backend's translator.

        Raises:
            ConfigError, RunError, VocabularyError: something is missing or inconsistent.
        """
        self._model = model = RunModel(request)
        search = model.config.decoding
        if n_best > 1 and search.mbr != "none":
            raise ConfigError(f"--mbr={search.mbr} chooses one; leave out --n_best")
        has_search = model.config.data.objective != "masked_lm"
        if has_search and search.strategy == "beam" and n_best > search.beam_size:
            raise ConfigError(
                f"--n_best={n_best} does not fit decoding.beam_size={search.beam_size}; "
                f"use 1 to {search.beam_size}, or a wider beam"
            )
        if search.strategy == "sampling" and n_best > 1:
            raise ConfigError(f"--n_best={n_best} is for beam search; use --num_samples={n_best}")
        self._n_best, self._alignment_layer = n_best, alignment_layer
        self._count = search.num_samples if search.strategy == "sampling" else n_best
        self._aligner = None
        if alignment_layer is not None:
            if len(model.members.configs) > 1:
                raise ConfigError("--alignments need one model; give one run and checkpoint")
            self._aligner = WordAligner(model.config, model.vocabulary, alignment_layer)
        self._translator = make(model) if make else model.make_translator(backend, compute_type)
        self._refuses_lines = make is not None
        self._translator.logs_lengths = False  # `log_lengths` does it once for all lines
        self._restored, self._labels = model.restore()
        self._params = model.place(self._restored)
        self._unsharded = jax.device_put(self._restored) if self._aligner else {}
        self.chunk_size = search.batch_size * BATCHES_TOGETHER

    def record_settings(self) -> dict[str, Any]:
        """Returns what the translations depend on, as JSON, with a hash of all parameters."""
        model, data = self._model, self._model.config.data
        search = record_search(
            self._translator, model.config.decoding, data.tgt_language, model.measure_models
        )
        return {
            "runs": [workdir.resolve().name for workdir, _ in model.request.members],
            "checkpoints": self._labels,
            "weights": model.members.weights,
            "mean": model.members.mean,
            "vocabulary": model.vocabulary.fingerprint(),
            "models": model.record_models(),
            "engine": search["backend"],
            **search["decoding"],
            **identify_running_code(__name__, type(self._translator).__module__),
            "n_best": self._n_best,
            "alignment_layer": self._alignment_layer,
            "parameters": hash_params(self._restored),
        }

    def watch(self, show: Callable[[str], None]) -> None:
        """Shows the text so far, again and again, of a line that is translated alone."""
        self._translator.watch = show

    def show_progress(self) -> None:
        """Shows a bar of the sentences that are translated together, on a terminal."""
        self._translator.shows_progress = sys.stderr.isatty()

    def begin_file(self, number: int) -> None:
        """Takes the random numbers of an input file; standard input has number 0."""
        self._translator.file_number = number

    def check_file(self, path: Path) -> None:
        """Raises what the lines of a file raise, before the first one is translated.

        Raises:
            DataError: a prompt is too long, or a line has no gaps.
        """
        if not self._refuses_lines:
            return
        with path.open("rb") as raw, unpack(raw, f"--input: {path}") as lines:
            for number, line in enumerate(lines):
                try:
                    self._translator.check_lines([line.decode(errors="replace")], number)
                except DataError as error:
                    raise DataError(f"--input: {path}: {error}") from None

    def log_lengths(self) -> None:
        """Warns of lines in pieces, at a limit, failed or with unknown characters."""
        self._translator.log_lengths()
        if self._aligner and self._aligner.num_too_long:
            _log.warning(
                "%d translations have no alignment: they or their sources are too long",
                self._aligner.num_too_long,
            )
            self._aligner.num_too_long = 0

    @property
    def is_numbered(self) -> bool:
        """True if a line may have several translations, which then begin with its number."""
        return self._count > 1 and self._model.config.decoding.mbr == "none"

    def translate(
        self, sentences: Sequence[str], prefixes: Sequence[str] | None = None, first: int = 0
    ) -> list[list[Translation]]:
        """Returns the translations of each sentence; `first` is the number of the first one.

        Raises:
            ConfigError: a prefix is too long.
        """
        found = self._model.translate(
            self._translator, self._params, sentences, self._count, prefixes=prefixes, first=first
        )
        if self._aligner is None:
            return found
        pairs = [
            (sentence, each.text)
            for sentence, own in zip(sentences, found, strict=True)
            for each in own
        ]
        links = iter(self._aligner.align(self._unsharded, pairs))
        return [
            [dataclasses.replace(each, alignment=format_links(next(links))) for each in own]
            for own in found
        ]


def decode_lines(lines: Iterator[bytes], first: int = 0) -> Iterator[str]:
    """Decodes lines and removes their endings; `first` is the number of the first line, from 0.

    Invalid UTF-8 is replaced by U+FFFD, and reported after the last line.
    """
    damaged = []
    for number, line in enumerate(lines, start=first + 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:  # a byte order mark is not part of the sentence; training removes it, too
            text = text.removeprefix(codecs.BOM_UTF8)
        try:
            yield text.decode()
        except UnicodeDecodeError:
            damaged.append(number)
            yield text.decode(errors="replace")
    if damaged:
        _log.warning(
            "lines that are not valid UTF-8: %d, first line %d; U+FFFD replaces the invalid bytes",
            len(damaged), damaged[0],
        )  # fmt: skip


def translate_lines(
    translator: LineTranslator,
    lines: Iterator[bytes],
    read_ahead: int | None = None,
    prefixes: Iterator[bytes] | None = None,
) -> Iterator[list[Translation]]:
    """Yields the translations of each line, in the order of the lines.

    `lines`, and the `prefixes` of their translations, are UTF-8 with line endings. `read_ahead`
    lines are translated together; None: `BATCHES_TOGETHER` batches.

    Raises:
        ConfigError, DataError: a prefix is too long, or there is not one for each line.
    """
    text, first = decode_lines(lines), 0
    starts = None if prefixes is None else decode_lines(prefixes)
    try:
        while chunk := list(itertools.islice(text, read_ahead or translator.chunk_size)):
            given = None if starts is None else list(itertools.islice(starts, len(chunk)))
            if given is not None and len(given) < len(chunk):
                raise DataError(f"{first + len(given)} prefixes, but more lines; give one for each")
            yield from translator.translate(chunk, given, first)
            first += len(chunk)
    finally:  # also if the reader of the translations stops early
        translator.log_lengths()
    if starts is not None and next(starts, None) is not None:
        raise DataError(f"more prefixes than the {first} lines; give one for each line")


def translate_bulk(
    translator: LineTranslator,
    inputs: Mapping[Path, Path],
    part: BulkPart,
    shard_lines: int | None,
    scored: bool,
) -> None:
    """Translates this process's part of the files; continues after the shards that exist.

    `shard_lines` are saved together; None: `BATCHES_TOGETHER` batches. A terminal shows a bar.

    Raises:
        ConfigError, DataError: the output exists with other settings, or cannot be written.
    """

    def translate(lines: list[bytes], first: int) -> str:
        found = translator.translate([*decode_lines(iter(lines), first)], first=first)
        return "".join(
            format_lines(number, each, translator.is_numbered, scored)
            for number, each in enumerate(found, start=first + 1)
        )

    for path in inputs:
        translator.check_file(path)
    settings = translator.record_settings() | {"scores": scored}
    translator.show_progress()
    try:
        with logging_redirect_tqdm():  # prints log lines above the bar
            process_files(
                inputs, settings, translate, shard_lines or translator.chunk_size, part,
                begin_file=translator.begin_file,
            )  # fmt: skip
    finally:  # also after Ctrl-C: the next start counts its own lines
        translator.log_lengths()
