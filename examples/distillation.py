"""Word-level distillation (Kim and Rush 2016): a student learns the distributions of a teacher.

The teacher is another run, of any size or family, with the same vocabulary.

python -m t2t.train ... --config.plugins=examples.distillation --config.training.loss=distillation
    --config.plugin.distillation.teacher=TEACHER --config.tokenizer.path=TEACHER/vocab
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from t2t.config import Config, ConfigError, InputPath, PluginOptions, PositiveFloat, Rule, option
from t2t.config.variants import register
from t2t.data.batch import DeviceBatch
from t2t.model.interface import Model
from t2t.model.loss import compute_log_probs, cross_entropies

Share = Annotated[float, Rule("lie in [0, 1]", lambda value: 0 <= value <= 1)]


@register("plugin", "distillation")
@dataclasses.dataclass
class Options(PluginOptions):
    """Fields of the config: --config.plugin.distillation.FIELD=VALUE."""

    teacher: InputPath = option("", "the teacher's run, as RUN or RUN:CHECKPOINT")
    temperature: PositiveFloat = option(1.0, "divides the logits of teacher and student")
    mix: Share = option(0.5, "weight of the teacher in the loss; that of the text is 1 - mix")


@register("training.loss", "distillation")
class Distillation:
    """Cross-entropy with the text and, times T^2 (Hinton et al. 2015), with the teacher."""

    def __init__(self, config: Config):
        options: Options = config.plugin["distillation"]
        if not options.teacher:
            raise ConfigError("plugin.distillation.teacher is empty; name a run")
        self.mix, self.temperature = options.mix, options.temperature
        self.smoothing = config.training.label_smoothing
        self.teachers = (options.teacher,)  # whose models are arguments of the loss

    def __call__(
        self, model: Model, batch: DeviceBatch, key: jax.Array, teacher: Model
    ) -> tuple[Any, ...]:
        """Returns sums and figures; the teacher gets no key, so no dropout."""
        hidden, table, targets, weights, auxiliary = model.predict(batch, key)
        log_probs, mix, scale = compute_log_probs(hidden, table), self.mix, self.temperature
        of_teacher = compute_log_probs(*teacher.predict(batch)[:2])
        wanted, found = (jax.nn.log_softmax(x / scale) for x in (of_teacher, log_probs))
        taught = -(scale**2) * jnp.sum(jnp.exp(wanted) * found, axis=-1)
        untaught = cross_entropies(log_probs, targets, self.smoothing)
        losses = (1 - mix) * untaught + mix * taught
        parts = {"cross_entropy": untaught, "distillation": taught}
        figures = {name: jnp.sum(part * weights) for name, part in parts.items()}
        return jnp.sum(losses * weights), jnp.sum(weights), auxiliary, figures
