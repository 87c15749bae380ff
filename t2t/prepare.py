"""Prepares what training reads: `python -m t2t.prepare --config=configs/base.py --workdir=RUN`.

It downloads the data, trains the vocabulary into the run directory, and tokenises the corpora into
data.cache_directory; either may be in a bucket. It needs no accelerator. What is there already is
kept, so the same command continues an interrupted one. Several processes (--distributed) share the
tokenising. Training then starts in seconds; it prepares small corpora itself.

Without --workdir it only downloads the data, and prints the size of each split.
"""

import dataclasses
import functools

from t2t.config.config_flag import read_config, read_given
from t2t.config.requests import Hosts, RunPath
from t2t.config.rules import check_effect
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareRequest(Hosts):
    """A recipe and the run whose vocabulary is trained."""

    config: str
    workdir: RunPath | None = None  # the run directory whose vocabulary is trained
    allow_unused: bool = False  # accept fields without effect, as t2t.train does


def main(request: PrepareRequest) -> None:
    """Prepares as requested."""
    from t2t.data import corpus_sources

    workdir, fetch = request.workdir, None if request.distributed else corpus_sources.prepare
    config = read_config(workdir=workdir, fetch=fetch, trains_alone=False)
    is_new = workdir and not (workdir / "config.json").exists()
    if is_new and not request.allow_unused:
        check_effect([config], read_given())

    import jax

    from t2t.api.prepare_run import prepare
    from t2t.runtime.distributed import join

    jax.config.update("jax_platforms", "cpu")  # leave the accelerators to others
    join(**request.hosts)
    prepare(config, workdir, functools.partial(print, flush=True))


if __name__ == "__main__":
    command_line.run(main)
