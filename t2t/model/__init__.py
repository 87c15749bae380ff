"""The model of "Attention Is All You Need" (Vaswani et al. 2017).

The files can be read beside the paper in this order:

    section 3.5  position.py     sinusoidal encodings and later alternatives
    section 3.2  attention.py    equation 1 and multi-head attention
                 masks.py        which query sees which key
    section 3.3  layers.py       equation 2, embeddings, norms and dropout
                 linear.py       x W + b, and how W is drawn
    section 3.1  stack.py        a layer of the encoder or the decoder, add and norm; stacks
    section 3.4  interface.py    tables of embeddings, and logits
    figure 1     transformer.py  the whole model, for training and for decoding
                 kv_cache.py     keys and values that decoding keeps between steps
    section 5.4  loss.py         label smoothing

Two other families are made from the same layers: decoder_only.py and encoder_only.py. A recurrent
baseline is in rnn.py and rnn_layers.py. interface.py also has the methods that training and search
call. The other files are compute_policy.py (dtypes and implementations), experts.py and
ensemble.py. JAX differentiates every formula here; faster implementations of the same
formulas ("twins"), some with hand-written gradients, are in t2t/ops, where build_model.py builds a
model from a config. The letters in array shapes (B, T, H, ...) are explained in t2t/data/batch.py.
"""
