"""The paper's model, as the paper writes it.

To be read beside the paper, in this order:

    section 3.4  embedding.py           words as vectors, and logits from the same table
    section 3.5  position.py            sinusoids, and what came after them
    section 3.2  attention.py           equation 1, and multi-head attention
                 masks.py               which query sees which key
    section 3.3  feed_forward.py        equation 2
    section 3.1  norm.py, residual.py   where the norm goes, and what is added
                 transformer_layers.py  a layer of the encoder, and one of the decoder
    figure 1     transformer.py         the whole, in training and step by step
                 kv_cache.py            what decoding keeps between steps
    section 5.4  dropout.py             (label smoothing is in t2t/training/loss.py)

Around it: interface.py (what training and search know of a model), build.py (from a config to a
model), compute_policy.py and precision.py (dtypes), matmul.py, initialization.py, flops.py; and
what the paper compares with: rnn.py and rnn_layers.py. Every formula here is plain and
differentiated by JAX; what is faster is a twin in t2t/ops.
"""
