"""Fast twins of the formulas in `t2t/model` and `t2t/training/loss.py`.

A twin has the name, the signature and the values of its formula, and is faster or needs less memory
on some hardware. `choose.py` decides which is taken; tests/ops/test_twins.py holds each to its
formula.
"""
