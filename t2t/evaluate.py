"""Scores a run on a test set: `python -m t2t.evaluate --workdir=RUN --split=test`.

It reads the run directory and the raw text of the split, or of --src and --ref. It writes the
scores to RUN/evaluations/SPLIT-CHECKPOINT-beam4-alpha0.6.json and, in the same folder, the
hypotheses, sources, references and the references' log-probabilities as .txt, one line per
sentence. Several runs, or checkpoints, are scored as an ensemble.
"""

import dataclasses

from t2t.config.requests import Hosts, Plugins
from t2t.config.variants import import_plugins
from t2t.evaluation.requests import EvaluationRequest
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True)
class EvaluateRequest(EvaluationRequest, Hosts, Plugins):
    """An evaluation, by one process or several."""


def main(request: EvaluateRequest) -> None:
    """Evaluates the run, and prints a summary."""
    from t2t.api.evaluate_run import describe, evaluate
    from t2t.runtime.distributed import is_first, join
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    join(**request.hosts)
    import_plugins(request.plugins)  # that register measures; the run's config names its own
    evaluation = evaluate(request)
    if is_first():
        print(describe(evaluation))


if __name__ == "__main__":
    command_line.run(main)
