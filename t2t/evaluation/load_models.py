"""Loads the model of a run, or several models as an ensemble."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t.config.fields import Config, ConfigError
from t2t.config.files import load_config, override
from t2t.data.directions import choose_direction, find_tag, tag_sources
from t2t.data.tokenizer import Vocabulary
from t2t.model.interface import Params
from t2t.ops.build_model import Members
from t2t.training.checkpoint import restore_params
from t2t.training.plugin_sources import check_plugins
from t2t.training.provenance import find_versions, hash_code

# Files, folders and packages on which translations depend, besides the config: the model, its
# products, the search and the tokenizer. A change of others keeps saved scores and translations.
TRANSLATING_CODE = (
    "t2t/decoding", "t2t/model", "t2t/ops", "t2t/data/batch.py", "t2t/data/directions.py",
    "t2t/data/sentences.py", "t2t/data/tokenizer.py", "t2t/evaluation/load_models.py",
    "t2t/evaluation/minimum_bayes_risk.py", "t2t/interop/ctranslate2_export.py",
)  # fmt: skip
TRANSLATING_PACKAGES = ("jax", "flax", "sentencepiece")


@dataclasses.dataclass(frozen=True)
class ModelRequest:
    """The checkpoints of one run or several, as on the command line."""

    workdirs: tuple[Path, ...]
    checkpoint: str = "best"  # last | best | STEP | avg:COUNT | ema, or several joined by commas
    weights: tuple[float, ...] = ()  # of an ensemble; empty: equal
    mean: str = "probabilities"  # of an ensemble: probabilities | log_probs
    direction: str = ""  # such as en-de; may be empty if the run has only one

    @property
    def members(self) -> list[tuple[Path, str]]:
        """Run directory and checkpoint of each model.

        Raises:
            ConfigError: their numbers or the weights do not fit together.
        """
        checkpoints = self.checkpoint.split(",")
        workdirs = list(self.workdirs)
        count = max(len(workdirs), len(checkpoints))
        if len(checkpoints) not in (1, count) or len(workdirs) not in (1, count):
            raise ConfigError(
                f"{len(workdirs)} run directories and {len(checkpoints)} checkpoints; give one of "
                "them, or equally many of both"
            )
        if self.weights and len(self.weights) != count:
            raise ConfigError(f"{len(self.weights)} weights for {count} models; give one for each")
        if count == 1 and (self.weights or self.mean != ModelRequest.mean):
            raise ConfigError("--weights and --mean are for an ensemble; leave them out")
        if not all(weight > 0 and math.isfinite(weight) for weight in self.weights):
            raise ConfigError(f"--weights={','.join(map(str, self.weights))} must be positive")
        shares = checkpoints * (count // len(checkpoints))
        return list(zip(workdirs * (count // len(workdirs)), shares, strict=True))


class ModelDescription(NamedTuple):
    """Everything about the models of a request except their parameters."""

    # Of the first run, with the languages of the direction. In an ensemble, sources are cut at the
    # shortest data.max_length, unless decoding.max_source_length says where.
    config: Config
    vocabulary: Vocabulary  # puts the direction's tag in front of sources
    members: Members


def describe_models(
    request: ModelRequest, decoding: Mapping[str, float | str] | None = None
) -> ModelDescription:
    """Reads configs and the vocabulary; `decoding` overrides fields of config.decoding.

    Raises:
        ConfigError, VocabularyError: something is missing or inconsistent, or the runs have
            different vocabularies.
    """
    folders = [workdir for workdir, _ in request.members]
    configs = [load_config(folder / "config.json") for folder in folders]
    for folder, each in zip(folders, configs, strict=True):
        check_plugins(folder, each.plugins)
    config = override(configs[0], {f"decoding.{k}": v for k, v in (decoding or {}).items()})
    vocabulary = Vocabulary.load(folders[0] / "vocab")
    for folder in dict.fromkeys(folders):
        if Vocabulary.load(folder / "vocab").fingerprint() != vocabulary.fingerprint():
            raise ConfigError(
                f"{folder}/vocab is not the vocabulary of {folders[0]}; an ensemble needs models "
                "that were trained with one vocabulary"
            )
    data = [choose_direction(each.data, request.direction) for each in configs]
    tags = [find_tag(each) for each in data]
    if len(set(tags)) > 1:
        raise ConfigError(
            f"an ensemble needs models of the same data.directions, but their tags are {tags}"
        )
    config = dataclasses.replace(config, data=data[0])
    shortest = min(each.max_length for each in data)
    if shortest < config.data.max_length and not config.decoding.max_source_length:
        search = dataclasses.replace(config.decoding, max_source_length=shortest)
        config = dataclasses.replace(config, decoding=search)
    weights = request.weights or (1.0,) * len(folders)
    shares = tuple(weight / sum(weights) for weight in weights)
    models = tuple(each.model for each in configs)
    tagged = tag_sources(vocabulary, tags[0])
    return ModelDescription(config, tagged, Members(models, shares, request.mean))


def restore_models(request: ModelRequest, members: Members) -> tuple[Params, list[str]]:
    """Restores the parameters of all models, and returns them with the checkpoints' labels.

    Raises:
        RunError: a checkpoint does not exist or cannot be read.
    """
    restored = [restore_params(workdir, which) for workdir, which in request.members]
    return members.join([params for params, _ in restored]), [label for _, label in restored]


def identify_code(
    plugins: Sequence[str], parts: Sequence[str], packages: Sequence[str]
) -> dict[str, Any]:
    """Returns the code that translates and scores, as saved results record it.

    Args:
        plugins: imported modules of the user's.
        parts: files and folders of t2t.
        packages: packages on which results depend.

    Returns:
        {"code", "plugins"}, the SHA-256 of the parts and of the plugins' source, and {"versions"}.
    """
    versions = find_versions(packages)
    return {
        "code": hash_code((), parts),
        "plugins": hash_code(plugins, ()),
        "versions": {name: versions[name] for name in packages},
    }


def hash_params(params: Params) -> str:
    """Returns a SHA-256 of all parameters: their names, shapes and values."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(params):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype}{array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
