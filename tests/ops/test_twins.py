"""Every fast twin against its formula: the same signature, values and gradients."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from t2t.config.fields import MeshConfig
from t2t.model import attention, experts, layers, linear, loss, position, stack
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.model.layers import FeedForward
from t2t.ops import (
    cached_attention,
    chunked_loss,
    chunked_r_drop,
    fast_layers,
    fast_linear,
    gpu_loss,
    recomputed_attention,
    sorted_experts,
    tpu_attention,
)
from t2t.ops.select_kernels import FAST, TEXTBOOK
from t2t.runtime.mesh import make_mesh, reshard, spec
from tests.model.small_models import POLICY, SMALL

BATCH, QUERIES, KEYS, HEADS, D_K, D_V = 8, 6, 5, 4, 3, 2
WORDS = 12
Function = Callable[..., Any]
Names = tuple[str | None, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """A formula, its twin, and what both are called with."""

    formula: Function
    twin: Function
    arrays: dict[tuple[int, ...], Names]  # shapes, with the logical names of their dimensions
    arguments: tuple[Any, ...] = ()  # behind the arrays, and not differentiated
    platform: str = "cpu"
    chunk: int = 512  # positions of a chunk of the loss
    block: int = recomputed_attention.BLOCK
    heads_at_once: int = 4  # by the kernel for TPUs


def draw_mask(rows: int = BATCH) -> jax.Array:
    """Most queries see some keys; query 1 of each row, and all of row 2, see none."""
    mask = np.random.default_rng(3).random((rows, 1, QUERIES, KEYS)) < 0.6
    mask[:, :, 1] = False
    mask[2] = False
    return jnp.asarray(mask)


def attend(function: Function, rate: float, options: dict[str, Any]) -> Function:
    """`function` of queries, keys, values and perhaps a bias."""

    def run(query: Array, keys: Array, values: Array, bias: Array | None = None) -> Array:
        memory = KeyValue(keys, values)
        key = jax.random.key(5) if rate else None
        found: Array = function(query, memory, draw_mask(), bias, rate, key, **options)
        return found

    return run


def store_first(function: Function) -> Function:
    """`function` of the keys and values in a cache."""
    return lambda query, memory, *others, **options: function(
        query, KVCache.store(memory), *others, **options
    )


def attention_case(
    twin: Function,
    groups: int,
    platform: str = "cpu",
    *,
    bias: Sequence[int] | None = None,
    rate: float = 0.0,
    **options: Any,
) -> Case:
    """`bias` is the shape of one."""
    arrays: dict[tuple[int, ...], Names] = {
        (BATCH, QUERIES, HEADS, D_K): ("batch", None, "heads", None),
        (BATCH, KEYS, groups, D_K): ("batch", None, "heads", None),
        (BATCH, KEYS, groups, D_V): ("batch", None, "heads", None),
    }
    if bias:
        names = ("batch", "heads", None, None)[-len(bias) :]
        arrays[tuple(bias)] = tuple(
            None if size == 1 else name for size, name in zip(bias, names, strict=True)
        )
    formula = attend(attention.dot_product_attention, rate, options)
    return Case(formula, attend(twin, rate, options), arrays, platform=platform)


def feed(function: Function) -> Function:
    """A feed-forward after `function`, as a function of one of its weights and of x."""
    structure, params = nnx.split(FeedForward(SMALL, POLICY, jax.random.key(0)))

    def run(bias: Array, x: Array) -> Array:
        module = nnx.merge(structure, params)
        module.outer.bias = nnx.Param(bias)
        module, x = function(module, x)
        found: Array = module(x.astype(POLICY.dtype))
        return found

    return run


def mix(function: Function, x: Array, inner: Array, outer: Array, dtype: Any = None) -> Array:
    """Experts that are chosen unevenly: of eight, two by no row."""
    factors = jnp.asarray(np.random.default_rng(4).random((BATCH, QUERIES, 2)), jnp.float32)
    first = np.random.default_rng(5).integers(0, 3, (BATCH, QUERIES, 1))
    chosen = jnp.asarray(np.concatenate([first, first + 3], axis=-1))
    choices = [reshard(each, "batch", None, None) for each in (factors, chosen)]
    found: Array = function(x, *choices, inner, outer, dtype=jnp.dtype(dtype or "float32"))
    return found


def in_blocks(case: Case) -> Case:
    """The twin in blocks of two queries."""
    return dataclasses.replace(case, block=2 * KEYS)


def attend_in_blocks(query: Array, memory: KeyValue, mask: Array, *others: Any) -> Array:
    """The formula for blocks of two queries, each with a key of its own for dropout."""
    bias, rate, key = others
    keys = jax.random.split(key, QUERIES // 2)
    parts = [slice(2 * n, 2 * n + 2) for n in range(len(keys))]
    return jnp.concatenate(
        [
            attention.dot_product_attention(
                query[:, part], memory, mask[:, :, part], bias[:, part], rate, own
            )
            for part, own in zip(parts, keys, strict=True)
        ],
        axis=1,
    )


BIAS = HEADS, QUERIES, KEYS
RECOMPUTED = recomputed_attention.recomputed_attention
CACHED = store_first(cached_attention.cached_attention)
LENGTH = 7  # of which chunks of three positions leave one
LOSS_ARRAYS: dict[tuple[int, ...], Names] = {
    (BATCH, LENGTH, 16): ("batch", None, None),
    (WORDS, 16): ("vocabulary", "d_model"),
}
TARGETS = jnp.asarray(np.random.default_rng(1).integers(0, WORDS, (BATCH, LENGTH)))
WEIGHTS = jnp.asarray(np.random.default_rng(2).random((BATCH, LENGTH)) < 0.7, jnp.float32)
ROW = BATCH, QUERIES, 16
ROWS: dict[tuple[int, ...], Names] = {ROW: ("batch", None, None)}
BFLOAT16, KEY = jnp.dtype("bfloat16"), jax.random.key(7)


EXPERTS = Case(
    functools.partial(mix, experts.apply_experts),
    functools.partial(mix, sorted_experts.apply_experts),
    {
        (BATCH, QUERIES, 16): ("batch", None, None),
        (8, 16, 10): ("experts", "d_model", None),
        (8, 10, 16): ("experts", None, "d_model"),
    },
)


def smoothed_loss(module: Any, **options: Any) -> Case:
    return Case(
        lambda *x: jnp.stack(loss.smoothed_cross_entropy(*x)),
        lambda *x: jnp.stack(module.smoothed_cross_entropy(*x)),
        LOSS_ARRAYS,
        (TARGETS, WEIGHTS, 0.1),
        **options,
    )


def r_drop(module: Any) -> Function:
    return lambda pair, *x: jnp.stack(module.r_drop_cross_entropy(pair[:, 0], pair[:, 1], *x))


def multiply_parts(module: Any, *arguments: Any) -> Float[Array, "..."]:
    *operands, dtype = arguments
    return jnp.concatenate(module.multiply_parts(*operands, dtype=dtype), axis=-1)


CASES = {
    "attention": attention_case(RECOMPUTED, HEADS),
    "attention, shared heads, unscaled": attention_case(RECOMPUTED, 2, scaled=False),
    **{
        f"{name} with bias {shape}": attention_case(twin, groups, bias=shape)
        for name, twin, groups in (
            ("attention", RECOMPUTED, 2),
            ("cached attention", CACHED, HEADS),
        )
        for shape in (
            (BATCH, HEADS, QUERIES, KEYS),
            (1, HEADS, QUERIES, KEYS),
            (BATCH, 1, 1, KEYS),
            (1, 1, KEYS),
        )
    },
    "attention with dropout": attention_case(RECOMPUTED, 2, rate=0.5),
    "attention with bias and dropout": attention_case(RECOMPUTED, HEADS, bias=BIAS, rate=0.5),
    "attention in five blocks of twelve queries, shared heads": dataclasses.replace(
        attention_case(RECOMPUTED, 2),
        block=7,  # of the 6 x 5 weights of a head
    ),
    "attention in blocks with biases of rows": in_blocks(
        attention_case(RECOMPUTED, HEADS, bias=(BATCH, HEADS, QUERIES, KEYS))
    ),
    "attention in blocks with bias and dropout": dataclasses.replace(
        in_blocks(attention_case(RECOMPUTED, HEADS, bias=BIAS, rate=0.5)),
        formula=attend(attend_in_blocks, 0.5, {}),
    ),
    "attention on accelerators": attention_case(RECOMPUTED, 2, "tpu", bias=BIAS),
    **{
        f"attention on TPUs, {count} heads at once": dataclasses.replace(
            attention_case(tpu_attention.tpu_attention, HEADS), heads_at_once=count
        )
        for count in (1, 2, 4)
    },
    "attention on TPUs, shared heads": attention_case(tpu_attention.tpu_attention, 2),
    "attention on TPUs, unscaled": attention_case(tpu_attention.tpu_attention, HEADS, scaled=False),
    "cached attention": attention_case(CACHED, 2),
    "cached attention with bias, shared heads": attention_case(CACHED, 2, bias=BIAS),
    "multiply": Case(
        lambda x, w, dtype: linear.multiply("BTD,DF->BTF", x, w, dtype=dtype),
        lambda x, w, dtype: fast_linear.multiply("BTD,DF->BTF", x, w, dtype=dtype),
        {(BATCH, QUERIES, 16): ("batch", None, None), (16, 8): ("d_model", "d_ff")},
        (BFLOAT16,),
    ),
    **{
        f"product with a bias, {twin.__name__}": Case(
            lambda x, w, b, dtype: linear.affine("BTD,DF->BTF", x, w, b, dtype=dtype),
            lambda x, w, b, dtype, twin=twin: twin("BTD,DF->BTF", x, w, b, dtype=dtype),
            {
                (BATCH, QUERIES, 16): ("batch", None, None),
                (16, 8): ("d_model", "d_ff"),
                (8,): ("d_ff",),
            },
            (BFLOAT16,),
        )
        for twin in (fast_linear.affine, fast_linear.affine_on_gpu)
    },
    **{
        # Of the wider weights the product is split.
        f"multiply_parts, {width} columns": Case(
            functools.partial(multiply_parts, linear),
            functools.partial(multiply_parts, fast_linear),
            {ROW: ("batch", None, None), (16, HEADS, width): ("d_model", "heads", None)},
            ((width // 3, 2 * width // 3), BFLOAT16),
        )
        for width in (9, 18)
    },
    "experts": EXPERTS,
    "experts in bfloat16": dataclasses.replace(EXPERTS, arguments=(BFLOAT16,)),
    **{
        f"norm, centred={centred}": Case(
            functools.partial(layers.standardize, centred=centred, epsilon=epsilon),
            functools.partial(fast_layers.standardize, centred=centred, epsilon=epsilon),
            ROWS,
        )
        for centred, epsilon in ((True, 1e-2), (False, 1e-6))
    },
    "relu": Case(jax.nn.relu, fast_layers.relu, ROWS),
    "rotary embeddings": Case(
        position.rotate,
        fast_layers.rotate,
        {(BATCH, QUERIES, HEADS, 2 * D_K): ("batch", None, "heads", None)},
        (jnp.arange(QUERIES),),
    ),
    "dropout": Case(layers.dropout, fast_layers.dropout, ROWS, (0.3, KEY)),
    "order of gradients": Case(
        feed(stack.keep_order),
        feed(fast_layers.weights_first),
        {(16,): (None,), (BATCH, QUERIES, 16): ("batch", None, None)},
    ),
    "smoothed loss": smoothed_loss(chunked_loss),
    "smoothed loss in chunks": smoothed_loss(chunked_loss, chunk=20),
    "smoothed loss on TPUs": smoothed_loss(chunked_loss, platform="tpu"),
    "smoothed loss on GPUs": smoothed_loss(gpu_loss),
    "R-Drop's loss": Case(
        r_drop(loss),
        r_drop(chunked_r_drop),
        {
            (BATCH, 2, LENGTH, 16): ("batch", None, None, None),
            (WORDS, 16): ("vocabulary", "d_model"),
        },
        (TARGETS, WEIGHTS, 0.1, 5.0),
        chunk=80,
    ),
    **{
        f"loss of sentences, {platform}": Case(
            loss.sentence_losses,
            chunked_loss.sentence_losses,
            LOSS_ARRAYS,
            (TARGETS, WEIGHTS),
            platform=platform,
        )
        for platform in ("cpu", "gpu")
    },
}


LONG = 256


def attend_long(function: Function) -> Function:
    mask = jnp.ones((1, 1, 1, LONG), bool)
    return lambda query, keys, values: function(query, KeyValue(keys, values), mask)


def long_loss(case: Case, passes: Sequence[int] = ()) -> Case:
    """The case with rows of many chunks, of one position each."""
    *_, table = case.arrays.items()
    rows: dict[tuple[int, ...], Names] = {(BATCH, *passes, LONG, 16): ("batch",)}
    random = np.random.default_rng(1)
    targets = jnp.asarray(random.integers(0, WORDS, (BATCH, LONG)))
    arguments = targets, jnp.ones((BATCH, LONG)), *case.arguments[2:]
    return dataclasses.replace(case, arrays=rows | dict([table]), arguments=arguments, chunk=1)


MANY = {
    "attention in 256 blocks": Case(
        attend_long(attention.dot_product_attention),
        attend_long(RECOMPUTED),
        {
            (2, LONG, 4, 8): ("batch",),
            (2, LONG, 2, 8): ("batch",),
            (2, LONG, 2, 6): ("batch",),
        },
        block=LONG,
    ),
    "smoothed loss in 256 chunks": long_loss(CASES["smoothed loss"]),
    "smoothed loss on TPUs in 256 chunks": long_loss(CASES["smoothed loss on TPUs"]),
    "smoothed loss on GPUs, 2,048 positions": long_loss(CASES["smoothed loss on GPUs"]),
    "R-Drop's loss in 256 chunks": long_loss(CASES["R-Drop's loss"], [2]),
}


def draw(case: Case, dtype: str) -> list[jax.Array]:
    """Activations in `dtype`; parameters are float32."""
    random = np.random.default_rng(0)
    return [
        jnp.asarray(random.standard_normal(shape), dtype if names[0] == "batch" else "float32")
        for shape, names in case.arrays.items()
    ]


def place_rows(argument: Any) -> Any:
    """Targets and weights as a batch lies on the mesh in use."""
    rows = spec("batch", None)
    is_batch = isinstance(argument, jax.Array) and argument.ndim == 2
    return jax.sharding.reshard(argument, rows) if rows is not None and is_batch else argument


def differentiate(function: Function, case: Case, arrays: Sequence[jax.Array]) -> Any:
    """Value, and gradients for a cotangent that differs everywhere; to be compiled or not."""
    others = [place_rows(x) for x in case.arguments]
    value, pull_back = jax.vjp(lambda *x: function(*x, *others), *arrays)
    cotangent = jnp.asarray(
        np.cos(1 + np.arange(value.size, dtype=np.float32)).reshape(value.shape)
    )
    where = None if spec() is None else jax.typeof(value).sharding
    placed = cotangent if where is None else jax.sharding.reshard(cotangent, where)
    return value, pull_back(placed.astype(value.dtype))


def differentiate_twin(case: Case, arrays: list[jax.Array]) -> Any:
    """As its users run it: compiled as a whole."""
    return jax.device_get(jax.jit(lambda *x: differentiate(case.twin, case, x))(*arrays))


@functools.cache
def differentiate_formula(name: str, dtype: str) -> Any:
    """One operation at a time, so that formulas share compiled ones."""
    case = CASES[name]
    return jax.device_get(differentiate(case.formula, case, draw(case, dtype)))


@pytest.fixture
def case(name: str, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The case of this name, on its platform."""
    own = (CASES | MANY)[name]
    for module in (recomputed_attention, chunked_loss):
        monkeypatch.setattr(module, "platform", lambda: own.platform)
    monkeypatch.setitem(chunked_loss._CHUNK_TOKENS, own.platform, own.chunk)
    monkeypatch.setattr(recomputed_attention, "BLOCK", own.block)
    most = own.heads_at_once * QUERIES * KEYS
    monkeypatch.setattr(tpu_attention, "MAX_WEIGHTS_PER_BLOCK", most)
    return own


@pytest.mark.equality
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_twin_has_the_values_and_gradients_of_its_formula(
    name: str, dtype: str, case: Case
) -> None:
    found, wanted = differentiate_twin(case, draw(case, dtype)), differentiate_formula(name, dtype)
    compare(found, wanted, find_tolerance(case, dtype))


@pytest.mark.slow
@pytest.mark.equality
@pytest.mark.parametrize("name", CASES)
def test_twin_and_formula_are_the_same_on_a_mesh(name: str, case: Case) -> None:
    """In float32: that shardings are right does not depend on the dtype."""
    devices = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(devices):
        places = [
            NamedSharding(devices, spec(*names) or PartitionSpec())
            for names in case.arrays.values()
        ]
        arrays = draw(case, "float32")
        placed = [jax.device_put(*each) for each in zip(arrays, places, strict=True)]

        @jax.jit
        def run(*arrays: jax.Array) -> Any:
            return [differentiate(each, case, arrays) for each in (case.twin, case.formula)]

        both = jax.device_get(run(*placed))
    for found in both:
        compare(found, differentiate_formula(name, "float32"), find_tolerance(case, "float32"))


def find_tolerance(case: Case, dtype: str) -> float:
    return 2e-5 if dtype == "float32" and BFLOAT16 not in case.arguments else 2e-2


def compare(found: Any, wanted: Any, near: float) -> None:
    for pair in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert pair[0].dtype == pair[1].dtype
        one, other = (np.asarray(each, np.float32) for each in pair)
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=near, atol=near * np.abs(other).max())


@pytest.mark.parametrize("name", MANY)
def test_errors_of_bfloat16_do_not_add_up_over_blocks(name: str, case: Case) -> None:
    """They are 0.5% for a single block or chunk."""
    arrays = [each.astype(BFLOAT16) for each in draw(case, "bfloat16")]
    wide = [each.astype(jnp.float32) for each in arrays]
    names = MANY[name].arrays.values()
    given = [x if own[0] == "batch" else y for own, x, y in zip(names, arrays, wide, strict=True)]
    wanted = jax.device_get(jax.jit(functools.partial(differentiate, case.formula, case))(wide))
    for pair in zip(
        jax.tree.leaves(differentiate_twin(case, given)), jax.tree.leaves(wanted), strict=True
    ):
        one, other = (np.asarray(each, np.float32) for each in pair)
        assert np.linalg.norm(one - other) < 0.008 * np.linalg.norm(other)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
@pytest.mark.parametrize("name", ["smoothed loss", "smoothed loss on GPUs", "loss of sentences"])
def test_likelihoods_of_large_logits_are_at_most_1(
    name: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the targets have a logit of 64; bfloat16 rounds such logits by up to 0.25."""
    monkeypatch.setattr(chunked_loss, "platform", lambda: platform)
    random, count = np.random.default_rng(0), 64
    rows = random.standard_normal((1000, 32)) / 32**0.5
    table: Float[Array, "V D"] = jnp.asarray(rows, BFLOAT16).astype(jnp.float32)
    targets = jnp.asarray(random.integers(0, len(rows), (count, 1)))
    hidden = 64 * table[targets] / jnp.square(table[targets]).sum(axis=-1, keepdims=True)
    hidden, targets = hidden.astype(BFLOAT16), targets.at[count // 2 :].set(7)
    weights: Float[Array, "B T"] = jnp.ones((count, 1))
    if name == "loss of sentences":
        losses = chunked_loss.sentence_losses(hidden, table, targets, weights)
        near = 1e-5
    else:
        module = gpu_loss if "GPUs" in name else chunked_loss
        each = [x[:, None] for x in (hidden, targets, weights)]
        rounds = platform != "cpu" or module is gpu_loss
        near = 0.02 if rounds else 1e-5
        losses, _ = jax.lax.map(
            lambda own: module.smoothed_cross_entropy(own[0], table, *own[1:], 0.0), tuple(each)
        )
    wanted = loss.sentence_losses(hidden.astype(jnp.float32), table, targets, weights)
    assert losses.min() >= 0
    np.testing.assert_allclose(losses, wanted, rtol=near, atol=near)


def test_logits_out_of_reach_count_nothing_at_positions_without_weight() -> None:
    table = jnp.eye(16)
    far: Float[Array, "B T D"] = jnp.zeros((1, 3, 16)).at[0, 1:, 0].set(jnp.array([200.0, -200.0]))
    weights: Float[Array, "B T"] = jnp.array([[1.0, 0.0, 0.0]])

    def differentiate(module: Any, weights: Float[Array, "B T"]) -> tuple[Any, Any]:
        def compute(hidden: Float[Array, "B T D"], table: Float[Array, "V D"]) -> Any:
            targets = jnp.ones((1, 3), jnp.int32)
            return module.smoothed_cross_entropy(hidden, table, targets, weights, 0.1)[0]

        found: tuple[Any, Any] = jax.value_and_grad(compute, (0, 1))(far, table)
        return found

    found, wanted = differentiate(gpu_loss, weights), differentiate(loss, weights)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), found, wanted)
    assert not np.isfinite(differentiate(gpu_loss, jnp.ones_like(weights))[0])  # it skips the step


def test_blocks_of_queries_are_counted_for_each_head() -> None:
    """Eight heads on one key/value head take no loop where eight on eight take none."""
    query: Float[Array, "B T H K"] = jnp.ones((1, 512, 8, 2))
    memory, mask = KeyValue(query[:, :, :1], query[:, :, :1]), jnp.ones((1, 1, 1, 512), bool)
    assert "scan" not in str(jax.make_jaxpr(RECOMPUTED)(query, memory, mask))


@pytest.mark.parametrize("field", TEXTBOOK)
def test_twin_has_the_signature_of_its_formula(field: str) -> None:
    formula, twin = TEXTBOOK[field], FAST[field]
    if field not in ("relu", "order_gradients"):  # of JAX, and a lambda
        assert list(inspect.signature(twin).parameters) == list(
            inspect.signature(formula).parameters
        )


def test_weights_are_not_kept_for_the_backward_pass() -> None:
    query: Float[Array, "B T H K"] = jnp.ones((1, 64, 1, 4))
    mask = jnp.ones((1, 1, 1, 64), bool)
    _, pull_back = jax.vjp(lambda q: RECOMPUTED(q, KeyValue(q, q), mask), query)
    assert max(leaf.size for leaf in jax.tree.leaves(pull_back)) < 64 * 64


def test_nothing_of_dropouts_mask_is_kept_for_the_backward_pass() -> None:
    _, pull_back = jax.vjp(lambda x: fast_layers.dropout(x, 0.5, KEY), jnp.ones((64, 64)))
    assert sum(leaf.size for leaf in jax.tree.leaves(pull_back)) <= 4
