"""The Transformer of "Attention Is All You Need" in JAX and Flax.

    import t2t

    run = t2t.load("runs/en-de")
    run.translate(["A girl climbs."])

Every other file in this folder is a program, started by `t2t NAME` or `python -m t2t.NAME`. The
subfolders hold the library.
"""

from t2t.api.load import load

__all__ = ["load"]
