"""The Transformer of "Attention Is All You Need" in JAX and Flax.

    import t2t

    run = t2t.load("runs/en-de")
    run.translate(["A girl climbs."])

Each file beside this one is a program, `t2t NAME` or `python -m t2t.NAME`; the library is in the
folders.
"""

from t2t.api.load import load

__all__ = ["load"]
