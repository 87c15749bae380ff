"""Files of models as `transformers` and `torch` write them, made without these packages."""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from t2t.interop.hugging_face_folder import write_safetensors

_STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage"}


def write_shards(folder: Path, shards: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    for file, tensors in shards.items():
        write_safetensors(folder / file, tensors)
    names = {name: file for file, tensors in shards.items() for name in tensors}
    index = {"metadata": {}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def write_pickle(
    path: Path, tensors: Mapping[str, np.ndarray], code: bytes = b"", *, old: bool = False
) -> Path:
    """Writes what `torch.save` writes, or with `old` what it wrote before torch 1.6.

    `code` is put in front of the pickle's instructions.
    """
    program = [pickle.PROTO, b"\2", code, pickle.EMPTY_DICT]
    for name, tensor in tensors.items():
        storage = [_text("storage"), _import("torch", _STORAGES[str(tensor.dtype)]), _text(name)]
        storage += [_text("cpu"), _number(tensor.size), *([pickle.NONE] if old else [])]
        strides = [stride // tensor.itemsize for stride in tensor.strides]
        arguments = [_tuple(*storage), pickle.BINPERSID, _number(0)]
        arguments += [_tuple(*map(_number, tensor.shape)), _tuple(*map(_number, strides))]
        arguments += [pickle.NEWFALSE, pickle.EMPTY_DICT]
        rebuild = _import("torch._utils", "_rebuild_tensor_v2")
        program += [_text(name), rebuild, _tuple(*arguments), pickle.REDUCE, pickle.SETITEM]
    state = b"".join([*program, pickle.STOP])
    numbers = {name: tensor.tobytes("A") for name, tensor in tensors.items()}  # as they lie
    if old:
        facts = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}
        parts = [pickle.dumps(fact, 2) for fact in facts]
        parts += [state, pickle.dumps([*tensors], 2)]
        for name, tensor in tensors.items():
            parts += [tensor.size.to_bytes(8, "little"), numbers[name]]
        path.write_bytes(b"".join(parts))
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", state)
        for name, content in numbers.items():
            archive.writestr(f"model/data/{name}", content)
    return path


def call(module: str, name: str, argument: str) -> bytes:
    """Instructions of a pickle that call a function, and drop its result."""
    call = [_import(module, name), _tuple(_text(argument)), pickle.REDUCE, pickle.POP]
    return b"".join(call)


def _import(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    return pickle.BINUNICODE + len(text.encode()).to_bytes(4, "little") + text.encode()


def _number(number: int) -> bytes:
    return pickle.BININT + number.to_bytes(4, "little", signed=True)


def _tuple(*parts: bytes) -> bytes:
    return pickle.MARK + b"".join(parts) + pickle.TUPLE


def write_random_tensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    tensors = {
        name: (0.3 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    write_safetensors(path, tensors)
    return tensors
