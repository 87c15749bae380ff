"""Measures the training throughput of PyTorch on the workload; prints one line of JSON.

The three programs are PyTorch's own `nn.Transformer`, a Transformer written by hand with PyTorch's
fused attention, and the Marian model of Hugging Face. Needs torch (and transformers), not JAX.
"""

import argparse
import itertools
import json
import math
import os
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.workload import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SIZES,
    Pair,
    Size,
    cut_batches,
    draw_pairs,
    number_sentences,
    pack_rows,
    print_speed,
    repeat_for,
    shift_rows,
)

DROPOUT = 0.1
LONGEST = 512  # positions
# The kinds of attention that `Packed` may use, the fastest first.
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def sinusoids(d_model: int) -> Tensor:
    """Returns the sinusoidal positions of the paper, sines and cosines interleaved."""
    rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000) / d_model))
    angles = torch.arange(LONGEST)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class Embedded(nn.Module):
    """Embeddings of `Stock` and `ByHand`: one table for source, target and logits."""

    def __init__(self, size: Size):
        super().__init__()
        self.size = size
        self.table = nn.Embedding(size.vocab_size, size.d_model)
        nn.init.normal_(self.table.weight, std=size.d_model**-0.5)
        self.register_buffer("positions", sinusoids(size.d_model))

    def embed(self, ids: Tensor, places: Tensor | None = None) -> Tensor:
        """Returns scaled embeddings plus positions, with dropout; places: those of the ids."""
        rows = self.positions[: ids.shape[1]] if places is None else self.positions[places]
        x = self.table(ids) * math.sqrt(self.size.d_model) + rows
        return F.dropout(x, DROPOUT, self.training)


class Stock(Embedded):
    """PyTorch's `nn.Transformer`, unchanged."""

    def __init__(self, size: Size):
        super().__init__(size)
        shape = (size.d_model, size.num_heads, size.num_layers, size.num_layers, size.d_ff)
        self.transformer = nn.Transformer(*shape, DROPOUT, batch_first=True)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        """Returns the loss."""
        padding = src == PAD_ID
        length = tgt_in.shape[1]
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt_in),
            tgt_mask=torch.ones(length, length, dtype=torch.bool, device=src.device).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        real = tgt_out != PAD_ID
        return smoothed_loss(F.linear(hidden[real], self.table.weight), tgt_out[real])


class Attention(nn.Module):
    """Multi-head attention; self-attention computes queries, keys and values in one product."""

    def __init__(self, size: Size, *, over_memory: bool):
        super().__init__()
        self.num_heads = size.num_heads
        width = size.d_model
        self.query = nn.Linear(width, width) if over_memory else None
        self.joined = nn.Linear(width, (2 if over_memory else 3) * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Returns the output projection of all heads."""
        parts = self.joined(memory).chunk(2 if self.query else 3, -1)
        query, keys, values = (self.query(x), *parts) if self.query else parts
        heads = F.scaled_dot_product_attention(
            *map(self.split, (query, keys, values)), attn_mask=mask, is_causal=causal
        )
        return self.output(heads.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """Splits the last dimension into heads and moves them before the positions."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """A post-norm layer of the encoder or the decoder."""

    def __init__(self, size: Size, *, decoder: bool):
        super().__init__()
        width = size.d_model
        self.self_attention = Attention(size, over_memory=False)
        self.cross_attention = Attention(size, over_memory=True) if decoder else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decoder else 2))
        self.inner, self.outer = nn.Linear(width, size.d_ff), nn.Linear(size.d_ff, width)

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, own: Tensor | None = None
    ) -> Tensor:
        """Returns x after this layer; in the decoder `own` is the mask of x, by default causal."""

        def add(x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
            return norm(x + F.dropout(y, DROPOUT, self.training))

        own = own if self.cross_attention else mask
        x = add(x, self.self_attention(x, x, own, own is None), self.norms[0])
        if self.cross_attention:
            x = add(x, self.cross_attention(x, memory, mask, False), self.norms[1])
        return add(x, self.outer(F.relu(self.inner(x))), self.norms[-1])


class Layers(Embedded):
    """The layers of `ByHand` and `Packed`: fused attention, no dropout of its weights."""

    def __init__(self, size: Size):
        super().__init__(size)
        number = range(size.num_layers)
        self.encoder = nn.ModuleList(Layer(size, decoder=False) for _ in number)
        self.decoder = nn.ModuleList(Layer(size, decoder=True) for _ in number)


class ByHand(Layers):
    """A Transformer by hand on padded rows, without logits for padding."""

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        """Returns the loss."""
        mask = (src != PAD_ID)[:, None, None, :]
        memory, hidden = self.embed(src), self.embed(tgt_in)
        for layer in self.encoder:
            memory = layer(memory, mask)
        for layer in self.decoder:
            hidden = layer(hidden, mask, memory)
        real = tgt_out != PAD_ID
        return smoothed_loss(F.linear(hidden[real], self.table.weight), tgt_out[real])


class Packed(Layers):
    """The same on packed rows, with shapes that never change, so that it can be compiled."""

    def forward(
        self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor, numbers: Tensor, places: Tensor
    ) -> Tensor:
        """Returns the loss; of source and target the sentences' numbers and the places in them."""
        from_src, from_tgt = numbers
        encoder, cross, own = (
            (queries[:, None, :, None] == keys[:, None, None, :])
            for queries, keys in ((from_src, from_src), (from_tgt, from_src), (from_tgt, from_tgt))
        )
        memory, hidden = self.embed(src, places[0]), self.embed(tgt_in, places[1])
        for layer in self.encoder:
            memory = layer(memory, encoder)
        for layer in self.decoder:
            hidden = layer(hidden, cross, memory, own.tril())
        return smoothed_loss(F.linear(hidden, self.table.weight).flatten(0, 1), tgt_out.flatten())


class Marian(nn.Module):
    """The Marian model of Hugging Face, with its own masks and positions."""

    def __init__(self, size: Size):
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        both = {}
        for stack in ("encoder", "decoder"):
            both[f"{stack}_layers"] = size.num_layers
            both[f"{stack}_ffn_dim"] = size.d_ff
            both[f"{stack}_attention_heads"] = size.num_heads
        config = MarianConfig(
            **both,
            vocab_size=size.vocab_size,
            d_model=size.d_model,
            dropout=DROPOUT,
            activation_function="relu",
            max_position_embeddings=LONGEST,
            scale_embedding=True,
            pad_token_id=PAD_ID,
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            decoder_start_token_id=BOS_ID,
        )
        self.model = MarianMTModel._from_config(config, attn_implementation="sdpa")

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        """Returns the loss."""
        seen = (src != PAD_ID).long()
        logits = self.model(
            input_ids=src, attention_mask=seen, decoder_input_ids=tgt_in, use_cache=False
        ).logits
        return smoothed_loss(logits.flatten(0, 1), tgt_out.flatten())


PROGRAMS: dict[str, Callable[[Size], nn.Module]] = {
    "nn": Stock,
    "hand": ByHand,
    "marian": Marian,
}


def smoothed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with label smoothing 0.1, mean over tokens without padding."""
    return F.cross_entropy(logits.float(), targets, ignore_index=PAD_ID, label_smoothing=0.1)


def pad(batch: list[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """Pads a batch; returns (src, tgt_in, tgt_out)."""

    def stack(rows: list[np.ndarray]) -> Tensor:
        padded = [torch.as_tensor(row, dtype=torch.long) for row in rows]
        return nn.utils.rnn.pad_sequence(padded, batch_first=True, padding_value=PAD_ID)

    shifted = [np.concatenate([[BOS_ID], tgt[:-1]]) for _, tgt in batch]
    return stack([src for src, _ in batch]), stack(shifted), stack([tgt for _, tgt in batch])


def train_rows(size: Size, rows: int, length: int, seconds: float, device: str) -> None:
    """Measures steps of `Packed` on a batch of packed rows; prints target tokens per second.

    As fast as PyTorch is known to be: bfloat16 autocast, `torch.compile`, attention by cuDNN where
    it can, fused Adam. Dropout is that of t2t's recipes.
    """
    model = Packed(size).train().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    src, tgt = pack_rows(size, rows, length)
    numbered = [np.stack(both) for both in zip(*map(number_sentences, (src, tgt)), strict=True)]
    batch = [
        torch.as_tensor(each, dtype=torch.long, device=device)
        for each in (src, shift_rows(tgt), tgt, *numbered)
    ]
    # On CPUs, where this is only tried out, without the C++ compiler that "inductor" needs there.
    compute_loss = torch.compile(model, backend="inductor" if device == "cuda" else "aot_eager")
    tokens = int((tgt != PAD_ID).sum())

    def train(_: int) -> int:
        with torch.autocast(device, torch.bfloat16), sdpa_kernel(ATTENTION, set_priority=True):
            loss = compute_loss(*batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return tokens

    print_speed(train, seconds, f"torch {torch.__version__}")


def main() -> None:
    """Trains for `--seconds`, after a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--program", choices=PROGRAMS, default="nn")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--positions", type=int, default=2048, help="positions of a batch per side")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--packed_rows", type=int, default=0,
        help="packed rows of this length, with the program by hand, compiled, in bfloat16",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="with --packed_rows: cpu or cuda")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    size = SIZES[arguments.size]
    if length := arguments.packed_rows:
        rows = arguments.positions // length
        train_rows(size, rows, length, arguments.seconds, arguments.device)
        return
    model = PROGRAMS[arguments.program](size).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    batches = cut_batches(draw_pairs(size, 20_000), 2 * arguments.positions)
    padded = [pad(batch) for batch in batches]

    def train(number: int) -> int:
        number %= len(batches)
        narrow = arguments.precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = model(*padded[number])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return sum(len(tgt) for _, tgt in batches[number])

    steps = itertools.count()
    started = time.perf_counter()
    for _ in range(4):
        train(next(steps))
    result: dict[str, object] = {"compile_seconds": time.perf_counter() - started}
    result |= repeat_for(arguments.seconds, steps, train)
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    result["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result["version"] = f"torch {torch.__version__}"
    print(json.dumps(result))


if __name__ == "__main__":
    main()
