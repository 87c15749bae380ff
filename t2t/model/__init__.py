"""The model of "Attention Is All You Need" (Vaswani et al. 2017).

The files can be read beside the paper in this order:

    section 3.4  embedding.py           token embeddings and output logits
    section 3.5  position.py            sinusoidal encodings and later alternatives
    section 3.2  attention.py           equation 1 and multi-head attention
                 masks.py               which query sees which key
    section 3.3  feed_forward.py        equation 2
    section 3.1  norm.py, residual.py   add and norm around each sub-layer
                 transformer_layers.py  one encoder layer and one decoder layer
    figure 1     transformer.py         the whole model, for training and for decoding
                 kv_cache.py            keys and values that decoding keeps between steps
    section 5.4  dropout.py             (label smoothing is in t2t/training/loss.py)

The other files are interface.py (the methods that training and search call), build.py (builds a
model from a config), ensemble.py, compute_policy.py and precision.py (dtypes), matmul.py,
initialization.py, flops.py, and a recurrent baseline in rnn.py and rnn_layers.py. JAX
differentiates every formula here; faster implementations of the same formulas ("twins"), some with
hand-written gradients, are in t2t/ops. The letters in array shapes (B, T, H, ...) are explained in
t2t/data/batch.py.
"""
