"""Epochs of training text whose sub-words are sampled (`subword_sampling`), each with own tokens.

While an epoch is trained on, another process tokenises the next one into the cache. The run
directory keeps the number of batches of each epoch (`epochs.json`), so that the batch of a step is
found without tokenising the epochs before it. Every process of a run does the same work; of those
that share a cache directory, the first one to finish wins.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from t2t.config.field_types import Role
from t2t.config.fields import Config, fields_with
from t2t.config.files import overrides, read_saved_config
from t2t.config.stages import Stage
from t2t.config.variants import COPIES, open_plugins, trust_plugins
from t2t.data.batch import HostBatch
from t2t.data.corpus import Corpus, DataError, hash_strings
from t2t.data.corpus_sources import open_training
from t2t.data.loader import Loader
from t2t.data.stages import find_stage, list_stages
from t2t.data.subword_sampling import sample_vocabulary
from t2t.data.token_cache import TokenizedCorpus, remove_tokens, tokenize_corpus
from t2t.data.tokenizer import Vocabulary
from t2t.runtime.distributed import is_first
from t2t.storage.atomic_files import write_file
from t2t.storage.paths import make_path, make_run_path
from t2t.storage.staging import find_local

_log = logging.getLogger(__name__)

_FILE = "epochs.json"  # in the run directory
_ROOT = Path(__file__).parents[2]  # where t2t can be imported
_SECONDS_TO_END = 10  # of the process that tokenises an epoch, after a SIGINT

MakeLoader = Callable[[Sequence[TokenizedCorpus], Stage], Loader]


class SampledEpochs:
    """The batches of a run by step; `iterate_stages` yields those of text that is not sampled."""

    def __init__(
        self,
        config: Config,
        workdir: Path,
        corpora: Sequence[Corpus],
        vocabulary: Vocabulary,
        make_loader: MakeLoader,
    ):
        """Reads from the run directory how many batches the epochs have, as far as it is known.

        `make_loader` makes the loader of an epoch from its tokens and its stage.
        """
        self._stages = list_stages(config.data, corpora)
        self._config, self._workdir, self._corpora = config, workdir, corpora
        self._vocabulary, self._make_loader = vocabulary, make_loader
        first = sample_vocabulary(vocabulary, config, 0).fingerprint()
        texts = [corpus.fingerprint() for corpus in corpora]
        names = fields_with(Role.TEXT, Role.BATCHES)
        known = [f"{name}={x}" for name, x in overrides(config).items() if name in names]
        self._key = hash_strings(first, *texts, *known)
        saved = {}
        with contextlib.suppress(FileNotFoundError, ValueError):  # damaged: counted again
            saved = json.loads((workdir / _FILE).read_text("utf-8"))
        # Counts of another config, possible until the first checkpoint, are ignored.
        self._batch_counts: list[int] = saved["batches"] if saved.get("key") == self._key else []
        self._opened: tuple[int, Loader] | None = None  # the epoch that was opened last
        self._is_closing = False

    def iterate(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Yields the batches of steps [start, stop); removes the tokens of finished epochs."""
        self._is_closing = False
        epoch, index = self._find(start)
        loader: Loader | None = self.open(epoch)
        with ThreadPoolExecutor(1, "next epoch") as thread, contextlib.ExitStack() as children:
            while loader:
                size = self._batch_counts[epoch]
                count = min(size - index, stop - start)
                following: Future[Loader] | None = None
                if start + count < stop:
                    child = children.enter_context(self._tokenize_apart(epoch + 1))
                    following = thread.submit(self._open_after, child, epoch + 1)
                # The plan shuffles this epoch by its number.
                first = epoch * loader.plan.steps_per_epoch + index
                yield from loader.iterate(first, first + count)
                loader = following.result() if following else None
                self._remove(epoch - 1)
                start, epoch, index = start + count, epoch + 1, 0
        self._remove(epoch - 1)

    def open(self, epoch: int) -> Loader:
        """Opens the tokens of an epoch, or makes them; returns their loader.

        The loader counts steps as if all epochs had as many batches as this one: this epoch begins
        at step `epoch * plan.steps_per_epoch`.
        """
        if self._opened and self._opened[0] == epoch:
            return self._opened[1]
        tokenized = tokenize_epoch(self._config, self._corpora, self._vocabulary, epoch)
        start = sum(self._batch_counts[:epoch])
        stage = find_stage(self._stages, start)
        loader = self._make_loader(tokenized, stage)
        self._opened = epoch, loader
        size = min(loader.plan.steps_per_epoch, stage.stop - start)
        before = self._batch_counts[epoch : epoch + 1]
        if before not in ([], [size]):
            raise DataError(
                f"{self._workdir / _FILE} has {before[0]} batches in epoch {epoch}, but there are "
                f"{size}: something that it does not name has changed, such as code "
                "of a plugin; restore that, or choose another --workdir"
            )
        if epoch == len(self._batch_counts):
            self._batch_counts.append(size)
            if is_first():
                known = {"key": self._key, "batches": self._batch_counts}
                write_file(self._workdir / _FILE, json.dumps(known))
        return loader

    def open_step(self, step: int) -> Loader:
        """Opens the epoch of a step; tokenises epochs before it whose batches are not known."""
        return self.open(self._find(step)[0])

    def _find(self, step: int) -> tuple[int, int]:
        """Returns the epoch of a step, and the number of its batch within the epoch."""
        epoch = 0
        while True:
            if is_new := epoch == len(self._batch_counts):
                self.open(epoch)
            if step < self._batch_counts[epoch]:
                return epoch, step
            if is_new:
                self._remove(epoch)
            step -= self._batch_counts[epoch]
            epoch += 1

    @contextlib.contextmanager
    def _tokenize_apart(self, epoch: int) -> Iterator[subprocess.Popen[str]]:
        """Starts the process that tokenises an epoch; stops it if it runs when the context ends."""
        # A shell that starts training in the background lets it, and so its child, ignore SIGINT.
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from t2t.data.sampled_epochs import main; main()"
        )
        paths = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
        arguments = str(self._workdir), str(epoch), *self._list_own_plugins()
        child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process, which ends the other one
        )
        try:
            yield child
        finally:
            self._is_closing = True
            child.send_signal(signal.SIGINT)
            try:
                child.wait(timeout=_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _list_own_plugins(self) -> list[str]:
        """The plugins that this process has not imported from the copies in the run directory."""
        copies = str(self._workdir / COPIES)
        modules = {name: sys.modules.get(name) for name in self._config.plugins}
        return [
            name
            for name, module in modules.items()
            if not str(getattr(module, "__file__", "")).startswith(copies)
        ]

    def _open_after(self, child: "subprocess.Popen[str]", epoch: int) -> Loader:
        """Opens an epoch when the process that tokenises it has ended."""
        _, errors = child.communicate()
        if self._is_closing:
            raise RuntimeError("training ended before this epoch")  # nobody asks for the result
        if child.returncode:
            reason = (errors.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
            _log.warning("epoch %d is tokenised again: %s", epoch, reason)
        return self.open(epoch)

    def _remove(self, epoch: int) -> None:
        """Removes the tokens of an epoch; they can be made again."""
        if epoch >= 0:
            vocabulary = sample_vocabulary(self._vocabulary, self._config, epoch)
            for corpus in self._corpora:
                remove_tokens(corpus, vocabulary, find_sampled_cache(self._config))


def tokenize_epoch(
    config: Config, corpora: Sequence[Corpus], vocabulary: Vocabulary, epoch: int
) -> list[TokenizedCorpus]:
    """Tokenises the training corpora for an epoch, unless that is already done.

    Raises:
        DataError: The cache cannot be written.
    """
    sampled = sample_vocabulary(vocabulary, config, epoch)
    folder = find_sampled_cache(config)
    return [tokenize_corpus(corpus, sampled, folder) for corpus in corpora]


def find_sampled_cache(config: Config) -> Path:
    """The cache of sampled tokens, always on this host: they are used once."""
    return find_local(make_path(config.data.cache_directory), "sampled")


def main() -> None:
    """Tokenises an epoch, with the plugins of the process that asks for it.

    The arguments are the run directory, the epoch's number, and the plugins that are to be imported
    from the path; the others are imported from the run directory, as that process has done.

    A SIGINT removes what is unfinished. A SIGTERM to all processes of a job is left to training,
    which sends a SIGINT when it ends.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    workdir, epoch = make_run_path(sys.argv[1]), int(sys.argv[2])
    trust_plugins(sys.argv[3:], copies=True)
    config = read_saved_config(workdir / "config.json")
    open_plugins(config.plugins, workdir)
    corpora = open_training(config.data, config.tokenizer)
    tokenize_epoch(config, corpora, Vocabulary.load(workdir / "vocab"), epoch)
