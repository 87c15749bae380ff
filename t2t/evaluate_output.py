"""Scores what another program translated, such as fairseq, Eole or an LLM.

    python -m t2t.evaluate_output --hypotheses=FILE --src=FILE --ref=FILE --output=system.json
    python -m t2t.evaluate_output --table=FILE --system=NAME --seed=1 --output=name-1.json

It needs no run. `t2t.compare` judges the evaluation like any other. Outputs of several seeds,
joined by commas, are one system.
"""

import dataclasses

from t2t.config.variants import import_plugins
from t2t.evaluation.requests import MeasurePlugins, OutputRequest
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOutputRequest(OutputRequest, MeasurePlugins):
    """The translations, and the modules that register measures."""


def main(request: EvaluateOutputRequest) -> None:
    """Scores the translations, and prints a summary."""
    from t2t.api.evaluate_run import describe
    from t2t.evaluation.outputs import evaluate_output
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()  # for measures that a model computes
    import_plugins(request.plugins)
    print(describe(evaluate_output(request)))


if __name__ == "__main__":
    command_line.run(main)
