"""`predict_loss`: the loss of a size that was never trained, from a finished ladder."""

import html
import json
from collections.abc import Sequence
from os import PathLike

from t2t.evaluation.plots import draw_laws, embed_figure, write_figure
from t2t.scaling import prediction_report
from t2t.scaling.ladder import read_ladder
from t2t.scaling.prediction import LadderForecast, Target, predict
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.paths import make_path
from t2t.training.run_directory import RunError

FOLDER = "prediction"  # in that of the sweep
NAME = "prediction"  # of its files


class LossPrediction(str):
    """The text of a prediction; a notebook also shows the figure."""

    prediction: LadderForecast

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        found = self.prediction
        figure = draw_laws(found.list_curves(), found.size_name, found.loss_name)
        return f"<pre>{html.escape(self)}</pre>{embed_figure(figure, 'loss against size')}"


def predict_loss(
    ladder: str | PathLike[str],
    *,
    flops: float | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
    seeds: int = 1,
    only: Sequence[str] = (),
    held_out: Sequence[str] = (),
    output: str | PathLike[str] | None = None,
) -> LossPrediction:
    """Predicts the loss of a size by the law of a ladder, like the program `t2t.predict_loss`.

    Args:
        ladder: the folder of a finished sweep whose rows are rungs.
        flops: the training FLOPs of the size. By default those of the largest rung that is held
            out, or else four times those of the largest rung.
        parameters: in place of FLOPs, the number of parameters.
        tokens: with them, the target tokens, if the rungs have several amounts of text.
        seeds: predict the mean of so many runs.
        only: rows or families that are read.
        held_out: rows to which no law is fitted, and which are compared with their prediction.
        output: the folder for the report, the figure and the JSON; by default `FOLDER` in `ladder`.

    Returns:
        The report as text; its `prediction` has the numbers.

    Raises:
        LawError: the ladder shows no law, or not this one.
        EvaluationError: evaluations are damaged, or not comparable.
        RunError: the folder cannot be written.
    """
    place = make_path(str(ladder))
    found = read_ladder(place, only, held_out)
    prediction = predict(found, Target(flops, parameters, tokens), seeds)
    text = LossPrediction(prediction_report.write_text(prediction, markdown=False))
    text.prediction = prediction
    folder = make_path(str(output)) if output else place / FOLDER
    page = prediction_report.write_text(
        prediction, markdown=True, title=f"A prediction from {found.folder.resolve().name}",
        figure=f"{NAME}.svg",
    )  # fmt: skip
    with explain_write_errors(RunError, folder):
        figure = draw_laws(prediction.list_curves(), prediction.size_name, prediction.loss_name)
        write_figure(figure, folder / f"{NAME}.svg")
        write_file(folder / f"{NAME}.md", page)
        content = prediction_report.record(prediction)
        write_file(folder / f"{NAME}.json", json.dumps(content, indent=1) + "\n")
    return text
