"""Fast implementations ("twins") of the formulas in `t2t/model`.

A twin has the same parameters as its formula and returns the same values up to rounding, but is
faster or needs less memory on some hardware. What it rounds is in its docstring: on GPUs and TPUs
the loss of training is computed from logits in bfloat16. Sums over blocks, chunks and positions are
float32. Some twins do not support every case, for example a
bias of attention, and check that by assertions. `select_kernels.py` selects the implementation of
each operation, and `build_model.py` builds a model with them. `tests/ops/test_twins.py` compares
values and gradients of each twin with its formula, except for the norm's kernel
(`tests/ops/test_fused_norm.py`) and cuDNN's attention, which needs a GPU
(`tests/ops/test_cudnn_attention.py`).
"""
