import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from t2t.interop.hugging_face_folder import (
    SourceError,
    find_folder,
    open_tensors,
    read_json,
    write_safetensors,
)
from tests.interop.model_folders import call, write_pickle, write_shards

RANDOM = np.random.default_rng(0)
TENSORS: dict[str, np.ndarray] = {
    "a.weight": RANDOM.normal(size=(3, 4)).astype(np.float32),
    "a.bias": RANDOM.normal(size=4).astype(np.float16),
    "b": RANDOM.normal(size=(2, 1, 2)).astype(jnp.bfloat16),
    "transposed": RANDOM.normal(size=(4, 3)).astype(np.float32).T,
}


def write_files(folder: Path, kind: str) -> None:
    """Writes `TENSORS` as `kind` says."""
    first = {"a.weight": TENSORS["a.weight"]}
    rest = {name: tensor for name, tensor in TENSORS.items() if name not in first}
    match kind:
        case "one file":
            write_safetensors(folder / "model.safetensors", TENSORS)
            write_pickle(folder / "pytorch_model.bin", {"other": TENSORS["b"]})  # not preferred
        case "shards":
            write_shards(folder, {"1.safetensors": first, "2.safetensors": rest})
        case _:
            write_pickle(folder / "pytorch_model.bin", TENSORS, old="old" in kind)


@pytest.mark.parametrize("kind", ["one file", "shards", "pickle", "old pickle", "hub"])
def test_tensors_are_read_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = make_hub(tmp_path, monkeypatch) if kind == "hub" else tmp_path
    write_files(folder, kind)
    tensors = open_tensors(find_folder("hf:owner/name") if kind == "hub" else folder)
    assert tensors.shapes == {name: tensor.shape for name, tensor in TENSORS.items()}
    for name, tensor in TENSORS.items():
        read = tensors.read(name)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, tensor.astype(np.float32))


def make_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model in an empty cache of the hub, which is out of reach."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hf")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    repository = folder / "models--owner--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40, "utf-8")
    return snapshot


def test_model_that_the_hub_does_not_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hub(tmp_path, monkeypatch)
    with pytest.raises(SourceError, match=r"^--source=hf:owner/name@v2 cannot be downloaded"):
        find_folder("hf:owner/name@v2")
    with pytest.raises(SourceError, match="write hf:OWNER/NAME"):
        find_folder("hf:name")


both_formats = pytest.mark.parametrize("old", [False, True])


@both_formats
@pytest.mark.parametrize(
    "code", [call("os", "system", "touch executed"), call("builtins", "eval", "1/0")]
)
def test_pickled_code_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: bytes, old: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pickle(tmp_path / "pytorch_model.bin", TENSORS, code, old=old)
    with pytest.raises(SourceError, match=r"runs code.*(os\.system|eval).*was not run"):
        open_tensors(tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: b"\xff" * 8 + content[8:],  # the length of the header
        lambda content: content.replace(b'"dtype"', b'"dtypo"'),
        lambda content: content.replace(b"[3, 4]", b"[3, 9]"),
        lambda content: (9**6).to_bytes(8, "little") + b"[" * 9**6,
    ],
    ids=["cut", "length", "header", "shape", "depth"],
)
def test_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, TENSORS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match=r"model\.safetensors is damaged: .*download it again"):
        open_tensors(tmp_path)


@both_formats
def test_cut_pickle_is_refused(tmp_path: Path, old: bool) -> None:
    path = write_pickle(tmp_path / "pytorch_model.bin", TENSORS, old=old)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"is (cut|damaged).*download it again"):
        open_tensors(tmp_path)


def write_safetensors_header(folder: Path, dtype: str) -> Path:
    """Writes a file with one number of one byte."""
    header = json.dumps({"a": {"dtype": dtype, "shape": [1], "data_offsets": [0, 1]}}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    return path


def test_quantised_weights_are_refused_by_name(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a.SCB": np.zeros((2, 2), np.int8)})
    with pytest.raises(SourceError, match=r"tensor a\.SCB of type int8: quantised .*original"):
        open_tensors(tmp_path)
    path = write_safetensors_header(tmp_path, "F8_E4M3")
    with pytest.raises(SourceError, match=r"numbers of type F8_E4M3: quantised .* FP8"):
        open_tensors(tmp_path)
    path.unlink()
    code = call("torch._utils", "_rebuild_qtensor", "")
    write_pickle(tmp_path / "pytorch_model.bin", TENSORS, code)
    with pytest.raises(SourceError, match=r"_rebuild_qtensor\): quantised .*original"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_pointer_of_git_lfs_is_named_as_such(tmp_path: Path, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"
    (tmp_path / name).write_text(pointer, "utf-8")
    with pytest.raises(SourceError, match=rf"{name} is a pointer of Git LFS, .*git lfs pull"):
        read_json(tmp_path, name) if name == "config.json" else open_tensors(tmp_path)


def test_missing_files_and_files_of_other_formats_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no weights: .*model\.safetensors"):
        open_tensors(tmp_path)
    with pytest.raises(SourceError, match=r"config\.json is missing"):
        read_json(tmp_path, "config.json")
    (tmp_path / "config.json").write_text("[" * 9**6, "utf-8")
    with pytest.raises(SourceError, match=r"config\.json is not JSON: maximum recursion depth"):
        read_json(tmp_path, "config.json")
    (tmp_path / "q4.gguf").touch()
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}.")
    with pytest.raises(SourceError, match=r"no file of torch\.save; .*save_pretrained"):
        open_tensors(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(SourceError, match=r"q4\.gguf is not read: .*GGUF.*save_pretrained"):
        open_tensors(tmp_path)
    write_shards(tmp_path, {"1.safetensors": {"b": TENSORS["b"]}, "2.safetensors": {}})
    (tmp_path / "1.safetensors").unlink()
    with pytest.raises(SourceError, match=r"lacks 1\.safetensors.*download it"):
        open_tensors(tmp_path)
    with pytest.raises(SourceError, match=r"is no folder; .*hf:OWNER/NAME"):
        find_folder(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adapter_model.safetensors", r"an adapter \(PEFT\) .* merge_and_unload"),
        ("model-00001-of-00002.safetensors", r"a shard without an index; .*\.index\.json"),
        ("model.fp16.safetensors", r"a variant of the weights; .*variant="),
        ("model.safetensors.index.fp16.json", "a variant of the weights"),
        ("pytorch_model.fp16.bin", "a variant of the weights"),
        ("onnx/encoder_model.onnx", "weights of ONNX"),
        ("model.bin", "a model of CTranslate2"),
        ("tf_model.h5", "weights of TensorFlow"),
        ("best.safetensors", "weights under another name"),
    ],
)
def test_weights_that_are_not_read_are_named_with_a_remedy(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(SourceError, match=rf"{name} is not read: it is, or holds, {message}"):
        open_tensors(tmp_path)


def test_adapter_beside_a_model_is_refused(tmp_path: Path) -> None:
    """`transformers` would add it to the model."""
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    (tmp_path / "adapter_config.json").write_text("{}", "utf-8")
    with pytest.raises(SourceError, match=r"adapter_config\.json is not read"):
        open_tensors(tmp_path)


def test_index_that_does_not_fit_the_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, {"1.safetensors": {"b": TENSORS["b"]}})
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text("utf-8"))
    index["weight_map"]["c"] = "1.safetensors"
    path.write_text(json.dumps(index), "utf-8")
    with pytest.raises(SourceError, match=r"names c, but no file has it"):
        open_tensors(tmp_path)
    index["weight_map"]["c"] = "../1.safetensors"
    path.write_text(json.dumps(index), "utf-8")
    with pytest.raises(SourceError, match=r"not a file of the folder"):
        open_tensors(tmp_path)
