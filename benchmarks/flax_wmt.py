"""The Flax WMT example, compiled by its own train step, which is read from a checkout of Flax.

The example is examples/wmt of github.com/google/flax (Apache-2.0), tested at commit 18f8f311. Model
and train step are its own: `jax.shard_map` over one mesh axis, the example's "batch", takes the
place of `jax.pmap`, so its sums over devices stay as they are. `train_and_evaluate`, which reads
data, is not called. What it would build, the optimiser and the state, is built here with the
example's settings. Products are bfloat16 on all devices; on GPUs the example would use float16.
"""

import __future__

import ast
import contextlib
import hashlib
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t.config.fields import ModelConfig

FILES = ("models.py", "train.py")
AXIS = "batch"  # the axis over which the example's train step sums
DROPOUT = 0.1  # the example's rate, everywhere
BATCH = [
    side + part for side in ("inputs", "targets") for part in ("", "_position", "_segmentation")
]


class Example:
    """The modules of the example.

    Raises:
        SystemExit: the folder does not hold the example.
    """

    def __init__(self, checkout: Path):
        folders = (checkout / "examples" / "wmt", checkout)
        complete = [one for one in folders if all((one / name).is_file() for name in FILES)]
        if not complete:
            sys.exit(
                f"--checkout={checkout} holds neither examples/wmt/models.py and train.py nor the "
                "two files themselves; git clone --depth=1 https://github.com/google/flax FOLDER, "
                "then --checkout=FOLDER"
            )
        models, train = (complete[0] / name for name in FILES)
        self.sha256 = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (models, train)}
        self.models: Any = _import_file(models)
        self.train: Any = _import_file(train)

    def compile(
        self,
        model: ModelConfig,
        vocab_size: int,
        devices: Sequence[jax.Device],
        rows: int,
        length: int,
        dropout: str,
    ) -> jax.stages.Compiled:
        """Compiles the train step, data parallel, for `rows` packed rows per device.

        Args:
            model: Our model, whose sizes are used.
            vocab_size: Source and target share it and the embedding.
            devices: The devices to compile for.
            rows: Number of rows per device.
            length: Positions of a row, source and target each.
            dropout: "none", "recipe" (where and as much as `model` says) or "example". With the
                first two the step does what ours does: it has no metrics, which are accuracy and a
                second loss without label smoothing.
        """
        step, create, (whole, split) = self.make(model, vocab_size, devices, length, dropout)
        batch = dict.fromkeys(BATCH, jax.ShapeDtypeStruct((rows * len(devices), length), jnp.int32))
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), len(devices)))
        state = jax.eval_shape(create)
        arguments = _place(state, whole), _place(batch, split), _place(keys, split)
        compiled: jax.stages.Compiled = step.lower(*arguments).compile()
        return compiled

    def make(
        self,
        model: ModelConfig,
        vocab_size: int,
        devices: Sequence[jax.Device],
        length: int,
        dropout: str,
    ) -> tuple[Any, Callable[[], Any], tuple[NamedSharding, NamedSharding]]:
        """Creates the jitted train step; the arguments are those of `compile`.

        Returns:
            The step, a function of state, batch (`BATCH`, [B, L] each) and one key per device. A
            function that creates the state. The shardings of the state and of the others.
        """
        mesh = Mesh(np.array(devices), (AXIS,))
        split, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in ([AXIS], []))
        step, create = self._build(self._configure(model, vocab_size, length, dropout))

        skips = dropout == "recipe" and not model.feed_forward_dropout

        def run(state: Any, batch: Any, keys: jax.Array) -> Any:
            with nn.intercept_methods(_skip_inner_dropout) if skips else contextlib.nullcontext():
                after, metrics = step(state, batch, dropout_rng=keys[0])
            return (after, metrics) if dropout == "example" else after

        specs = (PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(AXIS))
        # Without check_vma it is as in pmap: gradients are summed where the example says so.
        sharded = jax.shard_map(
            run, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
        )
        return jax.jit(sharded, donate_argnums=0), create, (whole, split)

    def _configure(self, model: ModelConfig, vocab_size: int, length: int, dropout: str) -> Any:
        """Returns the example's config: the sizes of `model`, all else as in its train.py."""
        rates = {
            "none": (0.0, 0.0),
            "recipe": (model.dropout, model.attention_dropout),
            "example": (DROPOUT, DROPOUT),
        }[dropout]
        return self.models.TransformerConfig(
            vocab_size=vocab_size,
            output_vocab_size=vocab_size,
            share_embeddings=True,
            logits_via_embedding=True,
            dtype=jnp.bfloat16,
            emb_dim=model.d_model,
            num_heads=model.num_heads,
            num_layers=model.num_layers,
            qkv_dim=model.d_model,
            mlp_dim=model.d_ff,
            max_len=length,
            dropout_rate=rates[0],
            attention_dropout_rate=rates[1],
        )

    def _build(self, config: Any) -> tuple[Callable[..., Any], Callable[[], Any]]:
        """Returns the train step and what creates its state, with the example's own settings."""
        rate = self.train.create_learning_rate_schedule(learning_rate=0.002, warmup_steps=1000)
        model = self.models.Transformer(config.replace(deterministic=True))

        def create() -> Any:
            ids = jnp.ones((1, config.max_len), jnp.int32)
            return self.train.TrainState.create(
                apply_fn=model.apply,
                params=model.init(jax.random.key(0), ids, ids)["params"],
                tx=optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.0),
                dynamic_scale=None,  # only with float16
            )

        def step(state: Any, batch: Any, dropout_rng: jax.Array) -> Any:
            return self.train.train_step(
                state, batch, config, rate, label_smoothing=0.1, dropout_rng=dropout_rng
            )

        return step, create


def _import_file(path: Path) -> types.ModuleType:
    """Imports a file, without those of its imports that are not installed.

    train.py imports TensorFlow and others to read data and to write logs; its train step uses none
    of them. Annotations are not evaluated, since they name such packages.
    """
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module  # train.py imports models.py by this name
    for node in ast.parse(path.read_text("utf-8"), str(path)).body:
        code = compile(
            ast.Module([node], []), str(path), "exec", __future__.annotations.compiler_flag
        )
        optional = isinstance(node, ast.Import | ast.ImportFrom)
        with contextlib.suppress(*[ImportError] * optional):
            exec(code, module.__dict__)
    return module


def _skip_inner_dropout(
    run: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
) -> Any:
    """Leaves out the dropout of a feed-forward's hidden layer, which has no rate of its own."""
    inner = context.module.path[-2:] == ("MlpBlock_0", "Dropout_0")
    return args[0] if inner and context.method_name == "__call__" else run(*args, **kwargs)


def _place(tree: Any, sharding: NamedSharding) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )
