"""Models of other runs that a loss of training reads, such as a teacher's; nothing trains them.

A loss names the runs (`losses.py`). Their parameters are read at each start of training, and placed
on the mesh as each model declares. Checkpoints do not hold them.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jax.sharding import Mesh

from t2t.config.fields import Config, ConfigError
from t2t.config.rules import validate
from t2t.data.tokenizer import Vocabulary, open_given
from t2t.model.parameters import check_params
from t2t.ops.build_model import abstract_model
from t2t.runtime.mesh import check_divisibility, put_like
from t2t.training.fine_tuning import SourceRun, check_undivided, read_source
from t2t.training.losses import Teacher, make_loss, name_field


def open_teachers(config: Config, workdir: Path, mesh: Mesh) -> list[SourceRun]:
    """Reads the runs that the loss names; nothing is placed on a device yet.

    Raises:
        ConfigError: the loss is not as it should be, a vocabulary is not that of `workdir`, or a
            model does not fit the run's data or the mesh.
        RunError: a name is no run's, or the run has no such checkpoint.
    """
    sources = []
    for name in make_loss(config).teachers:
        field = name_field(config)
        source = read_source(name, workdir, field)
        check_undivided(source, field)
        if Vocabulary.is_saved(workdir / "vocab"):
            own = Vocabulary.load(workdir / "vocab").fingerprint()
        else:
            own = config.tokenizer.path and open_given(config.tokenizer.path).fingerprint()
        if own != source.vocabulary.fingerprint():
            raise ConfigError(
                f"{field}={source.run}: the vocabularies of this run and of the teacher must be "
                f"the same; set tokenizer.path={source.run / 'vocab'} in a new run"
            )
        try:
            validate(Config(model=source.model, data=config.data, tokenizer=config.tokenizer))
            check_divisibility(dataclasses.replace(config, model=source.model), mesh)
        except ConfigError as error:
            raise ConfigError(f"{field}={source.run}: {error}") from None
        sources.append(source)
    return sources


def place_teachers(sources: Sequence[SourceRun], vocabulary: Vocabulary) -> tuple[Teacher, ...]:
    """Returns the teachers with their parameters on the current mesh; the sources lose theirs.

    Raises:
        ConfigError: parameters do not fit the config of their run.
    """
    teachers = []
    for source in sources:
        structure, declared = abstract_model(source.model, *vocabulary.sizes)
        check_params(declared, source.params)
        teachers.append(Teacher(structure, put_like(source.params, declared)))
        source.params.clear()  # training holds the sources, and this memory of the host
    return tuple(teachers)
