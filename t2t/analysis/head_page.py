"""One HTML page with all heads of a model: no file beside it, nothing from the network."""

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from t2t.analysis.head_roles import Profile
from t2t.runtime.html_templates import render_page

_TEMPLATE = Path(__file__).with_suffix(".html")
_OPEN_UP_TO = 48  # heads; of more, only each stack's last layer is unfolded


@dataclasses.dataclass(frozen=True)
class HeadView:
    """One head."""

    stack: str
    layer: int  # counted from 1
    number: int  # counted from 1
    weights: Float[np.ndarray, "T S"]
    profile: Profile
    importance: float | None  # how much worse the model is without it; None: not measured
    interval: tuple[float, float] | None  # of the importance, 95%

    @property
    def importance_text(self) -> str:
        """The importance with its interval; nothing where it was not measured."""
        if self.importance is None or self.interval is None:
            return ""
        low, high = self.interval
        return f"{self.importance:+.4f} [{low:+.4f}, {high:+.4f}]"

    @property
    def anchor(self) -> str:
        """Its name in links."""
        return f"{self.stack}-{self.layer}-{self.number}"

    @property
    def pixels(self) -> str:
        """The weights in 1/255, row by row, in base64."""
        return base64.b64encode(np.rint(self.weights * 255).astype(np.uint8).tobytes()).decode()


@dataclasses.dataclass(frozen=True)
class StackView:
    """The attention of all encoder layers, or of all decoder layers to one side."""

    name: str  # encoder | decoder | cross
    title: str
    queries: Sequence[str]  # pieces, from top to bottom
    keys: Sequence[str]  # pieces, from left to right
    layers: Sequence[Sequence[HeadView]]


@dataclasses.dataclass(frozen=True)
class HeadPage:
    """What the page shows."""

    run: str
    checkpoint: str
    sentence: str
    translation: str
    stacks: Sequence[StackView]
    sample: str  # on what profiles and importance were measured
    measure: str | None  # what importance is a difference of, with its unit; None: not measured
    rules: str  # how roles are found

    @property
    def heads(self) -> list[HeadView]:
        """Of all stacks, the most important first; without importance those that look at least."""
        found = [head for stack in self.stacks for layer in stack.layers for head in layer]
        return sorted(
            found, key=lambda head: (-_finite(head.importance or 0.0), head.profile.entropy)
        )

    @property
    def unfolded(self) -> bool:
        """Whether all layers are unfolded at first."""
        return len(self.heads) <= _OPEN_UP_TO


def render_heads(page: HeadPage) -> str:
    """The page's HTML."""
    tokens = {stack.name: {"queries": stack.queries, "keys": stack.keys} for stack in page.stacks}
    return render_page(_TEMPLATE, page=page, tokens=tokens)


def _finite(value: float) -> float:
    return value if np.isfinite(value) else np.inf
