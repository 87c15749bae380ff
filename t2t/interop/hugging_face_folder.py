"""Reads and writes a model's folder as `transformers` saves it: JSON, and tensors one at a time.

Nothing in the folder is executed. `*.safetensors` holds no code. `pytorch_model.bin` holds
pickles, of which only the instructions that describe tensors are followed; any other is refused.
"""

import dataclasses
import functools
import importlib.util
import json
import math
import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t2t.storage.paths import describe_error, first_line, make_local_path

_HUB_PREFIX = "hf:"
# Files of the Hub that are needed: not the same weights for other frameworks.
_SMALL_FILES = ("*.json", "*.spm", "*.model")
_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")
_PICKLED_WEIGHTS = ("pytorch_model.bin.index.json", "pytorch_model.bin")
_MAX_HEADER = 100 * 2**20  # bytes, the limit of the format
# The first pickle of a file that torch wrote before 1.6.
_OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_POINTER = b"version https://git-lfs.github.com/spec/"  # the first bytes of a pointer of Git LFS
_SAVE = (
    "download the original's model.safetensors, or load the model with transformers and use "
    "save_pretrained"
)
# Files with weights that are not read, in the order of the search, with their kind and a remedy.
_OTHER_WEIGHTS = (
    (
        "adapter_config.json adapter_model.*",
        "an adapter (PEFT) of another model",
        "load both with peft, and use merge_and_unload() and save_pretrained",
    ),
    (
        "model-?????-of-?????.safetensors pytorch_model-?????-of-?????.bin",
        "a shard without an index",
        "download the whole folder with its *.index.json",
    ),
    (
        "model.*.safetensors model.*-of-*.safetensors model.safetensors.index.*.json "
        "pytorch_model.*.bin pytorch_model.bin.index.*.json",
        "a variant of the weights",
        "load it with transformers, from_pretrained(FOLDER, variant=...), and use save_pretrained",
    ),
    ("*.gguf", "weights in GGUF's format, mostly quantised", _SAVE),
    ("*.h5", "weights of TensorFlow", _SAVE),
    ("*.msgpack", "weights of Flax", _SAVE),
    ("*.onnx onnx/*.onnx", "weights of ONNX", _SAVE),
    ("openvino_*.xml openvino/*.xml", "weights of OpenVINO", _SAVE),
    ("model.bin", "a model of CTranslate2", _SAVE),
    ("*.ot", "weights of Rust", _SAVE),
    ("*.npz", "weights of Marian's own format", _SAVE),
    ("*.safetensors *.bin *.pt *.pth *.ckpt", "weights under another name", _SAVE),
)
# Ends of the names of tensors that quantised models have beside, or in place of, weights.
_OF_QUANTIZED = (
    ".qweight", ".qzeros", ".scales", ".g_idx", ".SCB", ".absmax", ".quant_map", ".weight_format",
    ".weight_scale", ".weight_scale_inv", ".weight_packed", ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
)  # fmt: skip
# Types of numbers: their names in safetensors and in torch.save, and NumPy's type.
_TYPES = (
    ("F64", "DoubleStorage", np.dtype(np.float64)),
    ("F32", "FloatStorage", np.dtype(np.float32)),
    ("F16", "HalfStorage", np.dtype(np.float16)),
    ("BF16", "BFloat16Storage", np.dtype(jnp.bfloat16)),
    ("I64", "LongStorage", np.dtype(np.int64)),
    ("I32", "IntStorage", np.dtype(np.int32)),
    ("I16", "ShortStorage", np.dtype(np.int16)),
    ("I8", "CharStorage", np.dtype(np.int8)),
    ("U8", "ByteStorage", np.dtype(np.uint8)),
    ("BOOL", "BoolStorage", np.dtype(np.bool_)),
)
_DTYPES = {name: dtype for name, _, dtype in _TYPES}


class SourceError(ValueError):
    """A model that cannot be imported; the message names the file or field, and a remedy."""


class Tensor(NamedTuple):
    """A tensor of a file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def explain_quantized(found: str) -> SourceError:
    """Returns the error of a quantised model; `found` says where it is seen."""
    return SourceError(
        f"{found}: quantised models (of bitsandbytes, GPTQ, AWQ, in FP8, ...) are not imported; "
        "use the original"
    )


@dataclasses.dataclass(frozen=True)
class Tensors:
    """The tensors of a folder by name; `read` reads one of them."""

    by_name: Mapping[str, Tensor]

    def with_name(self, name: str, others: Iterable[str]) -> "Tensors":
        """Adds a tensor that is only there under one of its other names."""
        there = [other for other in others if other in self.by_name]
        if name in self.by_name or not there:
            return self
        return Tensors({**self.by_name, name: self.by_name[there[0]]})

    def same(self, name: str, other: str) -> bool:
        """Returns whether two tensors are equal."""
        if self.by_name[name] is self.by_name[other]:
            return True
        return np.array_equal(self.read(name), self.read(other))

    def check_copies(self, names: Iterable[str], name: str) -> None:
        """Checks that tensors, some of which may be missing, are copies of another one.

        Raises:
            SourceError: one has other values, so it is another model.
        """
        for other in filter(self.by_name.__contains__, names):
            if not self.same(other, name):
                raise SourceError(f"{other} differs from {name}, of which it should be a copy")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: tensor.shape for name, tensor in self.by_name.items()}

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """Reads a tensor, converted to float32.

        Raises:
            SourceError: it holds no floating-point numbers, or the file cannot be read.
        """
        tensor = self.by_name[name]
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise explain_quantized(f"tensor {name} is of type {tensor.dtype}")
        return np.asarray(tensor.read()).astype(np.float32)


def find_folder(source: str, flag: str = "source", *, weights: bool = True) -> Path:
    """Returns the folder of a source: a path, or "hf:OWNER/NAME[@REVISION]", which is downloaded.

    What is in the Hub's cache on this machine is not downloaded again.

    Args:
        source: what the user named.
        flag: by which, for messages.
        weights: whether they are downloaded, too.

    Raises:
        SourceError: there is no such folder, or the Hub cannot give it.
        PathError: the path is in a bucket.
    """
    if source.startswith(_HUB_PREFIX):
        return _download(source, flag, weights=weights)
    folder = make_local_path(source, "copy the folder to this machine, and name the copy")
    if not folder.is_dir():
        raise SourceError(
            f"--{flag}={source} is no folder; name one that transformers saved, or "
            "hf:OWNER/NAME for a model of the Hub"
        )
    return folder


def _download(source: str, flag: str, *, weights: bool) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise SourceError(
            f"--{flag}={source} needs huggingface_hub: pip install -e '.[hf]', or download the "
            "folder yourself and name it"
        )
    name, _, revision = source.removeprefix(_HUB_PREFIX).partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise SourceError(f"--{flag}={source}: write hf:OWNER/NAME, or hf:OWNER/NAME@REVISION")
    import huggingface_hub

    def fetch(*patterns: str) -> Path:
        patterns = (*_SMALL_FILES, *patterns)
        try:
            return Path(
                huggingface_hub.snapshot_download(
                    name, revision=revision or None, allow_patterns=[*patterns]
                )
            )
        except Exception as error:  # of many types: of HTTP, of the cache, of the Hub's answers
            raise SourceError(
                f"--{flag}={source} cannot be downloaded: {first_line(error)}; check the name, "
                "the revision and the network, or name a folder"
            ) from None

    if not weights:
        return fetch()
    folder = fetch("*.safetensors")
    is_complete = any((folder / file).exists() for file in _WEIGHTS)
    return folder if is_complete else fetch("pytorch_model*.bin")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Reads an object from a JSON file of the folder.

    Raises:
        SourceError: the file is missing, or holds no object.
    """
    path = folder / name
    try:
        check_pointer(path)
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SourceError(
            f"{path} is missing; a folder that transformers saved has it: save the model again"
        ) from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {describe_error(error)}") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}; download or save it again") from None
    if not isinstance(values, dict):
        raise SourceError(f"{path} holds no JSON object; download or save it again")
    return values


def check_pointer(path: Path) -> None:
    """Raises `SourceError` if a file is a pointer of Git LFS; OSError if it cannot be read."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise SourceError(
                f"{path} is a pointer of Git LFS, not the file itself; run git lfs pull in its "
                "folder, or use --source=hf:OWNER/NAME"
            )


def open_tensors(folder: Path) -> Tensors:
    """Opens the weights of a folder, in one file or in shards; reads only names and shapes.

    `*.safetensors` is preferred to `pytorch_model.bin`.

    Raises:
        SourceError: there are no weights, a file is missing, cut or damaged, or holds code.
    """
    if (folder / "adapter_config.json").exists():  # transformers would load it beside a model
        raise _find_other_weights(folder)
    for name in (*_WEIGHTS, *_PICKLED_WEIGHTS):
        if not (folder / name).exists():
            continue
        index = _read_index(folder, name) if name.endswith(".index.json") else {}
        by_name: dict[str, Tensor] = {}
        for path in [folder / file for file in sorted({*index.values()}) or [name]]:
            check_pointer(path)
            read = _open_safetensors if path.suffix == ".safetensors" else _open_pickle
            found = read(path)
            if repeated := sorted(by_name.keys() & found.keys()):
                raise SourceError(f"{path}: tensor {repeated[0]} is in another file, too")
            by_name |= found
        if missing := sorted(index.keys() - by_name.keys()):
            raise SourceError(
                f"{folder / name} names {missing[0]}, but no file has it; download the files again"
            )
        for own, tensor in by_name.items():
            is_integer = tensor.dtype in (np.dtype(np.int8), np.dtype(np.uint8))
            if own.endswith(_OF_QUANTIZED) or (is_integer and own.endswith("weight")):
                raise explain_quantized(f"{path} has the tensor {own} of type {tensor.dtype}")
        return Tensors(by_name)
    raise _find_other_weights(folder)


def _find_other_weights(folder: Path) -> SourceError:
    """Returns the error of a folder without weights that are read, which names those it has."""
    for patterns, kind, remedy in _OTHER_WEIGHTS:
        for pattern in patterns.split():
            for path in sorted(folder.glob(pattern)):
                return SourceError(f"{path} is not read: it is, or holds, {kind}; {remedy}")
    return SourceError(
        f"{folder} holds no weights: neither {' nor '.join((*_WEIGHTS, *_PICKLED_WEIGHTS))}; "
        "save the model with save_pretrained"
    )


def _read_index(folder: Path, index: str) -> dict[str, str]:
    """Reads the names of the tensors in shards, and the file of each, which exists."""
    names = read_json(folder, index).get("weight_map")
    is_map = isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
    if not is_map or not names:
        raise SourceError(f"{folder / index} has no weight_map; download or save it again")
    files = sorted({*names.values()})
    for name in files:
        if Path(name).name != name:
            raise SourceError(f"{folder / index} names {name!r}, which is not a file of the folder")
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise SourceError(f"{folder} lacks {', '.join(missing)}, which {index} names; download it")
    return names


def _damaged(path: Path, reason: str) -> SourceError:
    return SourceError(f"{path} is damaged: {reason}; download it again")


def _open_safetensors(path: Path) -> dict[str, Tensor]:
    """Reads the header: its length in 8 bytes, then JSON {name: {dtype, shape, data_offsets}}."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MAX_HEADER, size - 8):
            raise _damaged(path, f"its header does not fit its {size} bytes")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            found = {name: _read_entry(path, 8 + length, entry) for name, entry in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _damaged(path, f"its header cannot be read ({error!r})") from None
    ends = [entry["data_offsets"][1] for entry in header.values()]
    if 8 + length + max(ends, default=0) != size:
        raise _damaged(path, f"it has {size} bytes instead of {8 + length + max(ends, default=0)}")
    return found


def _read_entry(path: Path, start: int, entry: Mapping[str, Any]) -> Tensor:
    if entry["dtype"] not in _DTYPES:
        raise explain_quantized(f"{path} holds numbers of type {entry['dtype']}")
    dtype, shape = _DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
    begin, end = entry["data_offsets"]
    if begin < 0 or min(shape, default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry} does not fit its shape")

    def read() -> np.ndarray:
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", start + begin, shape)

    return Tensor(shape, dtype, read)


def write_json(path: Path, values: Any) -> None:
    """Writes values as JSON.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", "utf-8")


def format_safetensors(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yields the content of a file of tensors as `transformers` reads it, tensor by tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    names = {dtype: name for name, _, dtype in _TYPES}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    yield len(text).to_bytes(8, "little") + text
    yield from (tensor.tobytes() for tensor in tensors.values())


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes tensors as `transformers` reads them, one after the other.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("wb") as file:
        file.writelines(format_safetensors(tensors))


class _Storage(NamedTuple):
    """Numbers in a file of `torch.save`, as its pickle names them."""

    key: str
    dtype: np.dtype
    size: int  # numbers


class _Numbers(NamedTuple):
    """The bytes of a storage."""

    size: int  # bytes
    read: Callable[[np.dtype], np.ndarray]  # all of them


class _PickledTensor(NamedTuple):
    """A tensor as a pickle describes it, unchecked."""

    storage: Any
    offset: Any  # numbers
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]  # numbers


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: Any, strides: Any, *ignored: Any
) -> _PickledTensor:
    """Takes the place of `torch._utils._rebuild_tensor_v2`."""
    del ignored  # requires_grad, hooks
    return _PickledTensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: _PickledTensor, *ignored: Any) -> _PickledTensor:
    """Takes the place of `torch._utils._rebuild_parameter`."""
    del ignored
    return tensor


class _TensorUnpickler(pickle.Unpickler):
    """Follows only instructions that describe tensors: imports nothing, calls none but ours."""

    _KNOWN: Mapping[tuple[str, str], Any] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    } | {("torch", name): dtype for _, name, dtype in _TYPES}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise SourceError(f"it asks for {module}.{name}")
        return self._KNOWN[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, size, *view = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or any(view):
            raise ValueError(f"{pid!r} is no storage")
        return _Storage(str(key), dtype, int(size))


def _open_pickle(path: Path) -> dict[str, Tensor]:
    """Reads the names of a file of `torch.save`, of any version since 0.1.10."""
    remedy = "convert it with transformers: model.save_pretrained(FOLDER) writes safetensors"
    state, storages = _unpickle(path, remedy)
    if not isinstance(state, dict):
        raise SourceError(f"{path} holds no tensors by name in little-endian order; {remedy}")
    found = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, _PickledTensor):
            raise SourceError(f"{path}: {name!r} is no tensor; {remedy}")
        storage, numbers = tensor.storage, (tensor.offset, *tensor.shape, *tensor.strides)
        is_whole = all(type(number) is int and number >= 0 for number in numbers)
        is_pair = len(tensor.shape) == len(tensor.strides)
        if not (is_whole and is_pair and isinstance(storage, _Storage)):
            raise _damaged(path, f"{name} has no shape")
        there = storages.get(storage.key)
        if there is None or there.size < storage.size * storage.dtype.itemsize:
            raise _damaged(path, f"the numbers of {name} are missing")
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
        if tensor.offset + last >= max(storage.size, 1):
            raise _damaged(path, f"{name} reaches beyond its numbers")
        read = functools.partial(_read_pickled, path, there, tensor)
        found[name] = Tensor(tensor.shape, storage.dtype, read)
    return found


def _unpickle(path: Path, remedy: str) -> tuple[Any, dict[str, _Numbers]]:
    """Returns what a file of `torch.save` holds, or None for big-endian numbers; and storages."""
    with path.open("rb") as file:
        is_old = file.read(len(_OLD_MAGIC)) == _OLD_MAGIC
    if not is_old and not zipfile.is_zipfile(path):
        raise SourceError(
            f"{path} is cut, or no file of torch.save; download it again, or {remedy}"
        )
    try:
        return (_read_old if is_old else _read_archive)(path)
    except SourceError as error:
        if re.search(r"quant|qtensor|torch\.Q", str(error)):
            raise explain_quantized(f"{path} has quantised tensors ({error})") from None
        raise SourceError(
            f"{path} is a pickle that runs code when it is loaded: {error}. It was not run; "
            f"do not load it elsewhere unless you trust its author, else {remedy}"
        ) from None
    except Exception as error:  # a damaged pickle raises nearly any exception
        raise _damaged(path, f"its pickle cannot be read ({error!r})") from None


def _read_archive(path: Path) -> tuple[Any, dict[str, _Numbers]]:
    """Reads the format since torch 1.6: a zip archive of a pickle and its storages."""
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        [main] = [name for name in entries if name.endswith("/data.pkl")]
        root = main.removesuffix("data.pkl")
        order = archive.read(root + "byteorder") if root + "byteorder" in entries else b"little"
        with archive.open(main) as file:
            state = _TensorUnpickler(file, encoding="utf-8").load()

    def read(entry: str, dtype: np.dtype) -> np.ndarray:
        with zipfile.ZipFile(path) as archive:
            return np.frombuffer(archive.read(entry), dtype)

    folder = f"{root}data/"
    storages = {
        name.removeprefix(folder): _Numbers(info.file_size, functools.partial(read, name))
        for name, info in entries.items()
        if name.startswith(folder)
    }
    return state if order == b"little" else None, storages


def _read_old(path: Path) -> tuple[Any, dict[str, _Numbers]]:
    """Reads the format before torch 1.6: five pickles, then each storage after its size.

    The pickles are a magic number, a version, facts about the machine, the state, and the keys of
    the storages in order.
    """
    named: dict[str, _Storage] = {}

    class Unpickler(_TensorUnpickler):
        def persistent_load(self, pid: Any) -> _Storage:
            storage = super().persistent_load(pid)
            return named.setdefault(storage.key, storage)

    def read(start: int, size: int, dtype: np.dtype) -> np.ndarray:
        return np.memmap(path, dtype, "r", start, (size,))

    with path.open("rb") as file:
        _, _, machine, state, keys = (Unpickler(file, encoding="utf-8").load() for _ in range(5))
        storages, end = {}, path.stat().st_size
        for key in keys:
            storage = named[key]
            [size] = struct.unpack("<q", file.read(8))
            start, length = file.tell(), size * storage.dtype.itemsize
            if not 0 <= storage.size <= size or start + length > end:
                raise EOFError(f"it has {end} bytes instead of {start + length} or more")
            storages[key] = _Numbers(length, functools.partial(read, start, size))
            file.seek(length, 1)
    return state if machine["little_endian"] else None, storages


def _read_pickled(path: Path, there: _Numbers, tensor: _PickledTensor) -> np.ndarray:
    storage = tensor.storage
    if not math.prod(tensor.shape):
        return np.zeros(tensor.shape, storage.dtype)
    try:
        numbers = there.read(storage.dtype)
    except (OSError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from None
    strides = [stride * storage.dtype.itemsize for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(
        numbers[tensor.offset :], tensor.shape, strides, writeable=False
    )
    return view.copy()
