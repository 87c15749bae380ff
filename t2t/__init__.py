"""The Transformer of "Attention Is All You Need" in JAX and Flax.

    import t2t

    run = t2t.load("runs/en-de")
    run.translate(["A girl climbs."])

`t2t.train(config, workdir)`, `t2t.evaluate(run)`, `t2t.evaluate_output(hypotheses, output)` and
`t2t.compare(run, other)` do what the programs of these names do. Every other file in this folder is
a program, started by `t2t NAME` or `python -m t2t.NAME`. The subfolders hold the library.
"""

from t2t.api.notebook import compare, evaluate, evaluate_output, load, train

__all__ = ["compare", "evaluate", "evaluate_output", "load", "train"]
