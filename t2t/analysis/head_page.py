"""A self-contained HTML page with the attention maps of all heads of a model."""

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from t2t.analysis.head_roles import Profile
from t2t.runtime.html_templates import render_page

_TEMPLATE = Path(__file__).with_suffix(".html")
_MAX_UNFOLDED = 48  # heads; with more, only the last layer of each stack is unfolded


@dataclasses.dataclass(frozen=True)
class HeadView:
    """One head: its weights for the sentence shown, its profile and its importance."""

    stack: str
    layer: int  # counted from 1
    number: int  # counted from 1
    weights: Float[np.ndarray, "T S"]
    profile: Profile
    importance: float | None  # how much worse the model is without it; None: not measured
    interval: tuple[float, float] | None  # of the importance, 95%

    @property
    def importance_text(self) -> str:
        """The importance with its interval; empty if it was not measured."""
        if self.importance is None or self.interval is None:
            return ""
        low, high = self.interval
        return f"{self.importance:+.4f} [{low:+.4f}, {high:+.4f}]"

    @property
    def anchor(self) -> str:
        """The target of links to this head."""
        return f"{self.stack}-{self.layer}-{self.number}"

    @property
    def pixels(self) -> str:
        """The weights as bytes in units of 1/255, row by row, encoded in base64."""
        return base64.b64encode(np.rint(self.weights * 255).astype(np.uint8).tobytes()).decode()


@dataclasses.dataclass(frozen=True)
class StackView:
    """The heads of one kind of attention in all layers, and the labels of their maps."""

    name: str  # encoder | decoder | cross
    title: str
    queries: Sequence[str]  # pieces, from top to bottom
    keys: Sequence[str]  # pieces, from left to right
    layers: Sequence[Sequence[HeadView]]


@dataclasses.dataclass(frozen=True)
class HeadPage:
    """The content of the page."""

    run: str
    checkpoint: str
    sentence: str
    translation: str
    stacks: Sequence[StackView]
    sample: str  # the sentences measured; completes the sentence "Entropy, role and score ..."
    measure: str | None  # the definition of importance; None: not measured
    rules: str  # the definition of the roles

    @property
    def heads(self) -> list[HeadView]:
        """The heads of all stacks, sorted by decreasing importance, then by increasing entropy."""
        found = [head for stack in self.stacks for layer in stack.layers for head in layer]
        return sorted(
            found, key=lambda head: (-_finite(head.importance or 0.0), head.profile.entropy)
        )

    @property
    def unfolded(self) -> bool:
        """Returns whether all layers are unfolded when the page is opened."""
        return len(self.heads) <= _MAX_UNFOLDED


def render_heads(page: HeadPage) -> str:
    """Returns the HTML of the page."""
    tokens = {stack.name: {"queries": stack.queries, "keys": stack.keys} for stack in page.stacks}
    return render_page(_TEMPLATE, page=page, tokens=tokens)


def _finite(value: float) -> float:
    return value if np.isfinite(value) else np.inf
