"""Draws the pictures of docs/: `python -m docs.pictures.draw` writes an SVG file for each.

A test fails while a file differs from what this program would write.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH = 860  # of every picture, in pixels

BLUE, GREEN, YELLOW, RED, GREY = "#dbe9f9", "#dcf1dd", "#fdf1cc", "#f8d9d6", "#ececec"
INK = "#24292f"


class Picture:
    """SVG elements, collected in the order in which they are painted."""

    def __init__(self, height: int, title: str):
        """An empty white page; `title` is read aloud by screen readers."""
        self._elements = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
            f'font-size="14" fill="{INK}" role="img">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker>'
            "</defs>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="white"/>',
        ]

    def box(
        self, x: int, y: int, width: int, height: int, lines: Sequence[str], colour: str = BLUE
    ) -> None:
        """A rounded box with centred lines; the first is bold where there are several."""
        self._elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{colour}" '
            f'stroke="{INK}" stroke-width="0.8"/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            bold = number == 0 and len(lines) > 1
            self.text(x + width // 2, round(top + 18 * number), line, "middle", bold=bold)

    def text(
        self, x: int, y: int, line: str, anchor: str = "start", *, bold: bool = False, size: int = 0
    ) -> None:
        """A line of text whose start, middle or end is at x."""
        style = ' font-weight="bold"' if bold else ""
        style += f' font-size="{size}"' if size else ""
        self._elements.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}"{style}>{escape(line)}</text>'
        )

    def arrow(self, points: Sequence[tuple[int, int]], *, dashed: bool = False) -> None:
        """A line through the points, with its head at the last."""
        path = " ".join(f"{x},{y}" for x, y in points)
        style = ' stroke-dasharray="5 4"' if dashed else ""
        self._elements.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.4"{style} '
            'marker-end="url(#head)"/>'
        )

    def rect(self, x: int, y: int, width: int, height: int, colour: str) -> None:
        """A plain rectangle."""
        self._elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" '
            f'stroke="{INK}" stroke-width="0.6"/>'
        )

    def dot(self, x: int, y: int) -> None:
        """A small filled circle."""
        self._elements.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{INK}"/>')

    def svg(self) -> str:
        """The text of the file."""
        return "\n".join([*self._elements, "</svg>", ""])


def draw_rooms() -> Picture:
    """The folders of t2t, each importing only from those below it."""
    picture = Picture(520, "The folders of t2t in layers")
    rows = [
        [("train, evaluate, translate, compare, sweep, ...", "the programs", YELLOW)],
        [("api", "the work of programs; t2t.load", BLUE)],
        [("sweeps", "many runs, one report", BLUE), ("planning", "cost before paying", BLUE),
         ("analysis", "what heads do", BLUE)],
        [("evaluation", "scores, intervals, verdicts, the checkpoint watcher", BLUE)],
        [("training", "step, loop, checkpoints, run directory", GREEN),
         ("decoding", "beam search in stages, translator", GREEN)],
        [("interop", "CTranslate2 out", GREEN), ("ops", "fast twins of formulas", GREEN),
         ("model", "the paper's formulas", GREEN)],
        [("data", "corpora, tokenizer, cache, batches", GREEN),
         ("phrasebook", "the built-in corpus", GREY)],
        [("runtime", "mesh, hosts, programs", GREY), ("config", "typed fields and rules", GREY),
         ("storage", "files written whole", GREY)],
    ]  # fmt: skip
    for number, row in enumerate(rows):
        width = (WIDTH - 40 - 10 * (len(row) - 1)) // len(row)
        for column, (name, what, colour) in enumerate(row):
            picture.box(
                20 + column * (width + 10), 16 + 60 * number, width, 50, (name, what), colour
            )
    picture.text(
        20,
        508,
        "A folder imports only from rows below, or to its right; exceptions are in pyproject.toml.",
    )
    return picture


def draw_batch() -> Picture:
    """From text to parameters, and from parameters to a verdict."""
    picture = Picture(420, "The path of a batch through training, and of a checkpoint to a verdict")
    steps = [
        ("corpus", "raw sentence pairs"), ("tokenizer", "SentencePiece ids"),
        ("token cache", "tokenised once"), ("BatchPlan", "step -> pairs, shape"),
    ]  # fmt: skip
    picture.text(20, 28, "Training", bold=True)
    for number, (name, what) in enumerate(steps):
        picture.box(20 + 210 * number, 40, 180, 54, (name, what), BLUE)
        if number:
            picture.arrow([(20 + 210 * number - 30, 67), (18 + 210 * number, 67)])
    picture.arrow([(740, 94), (740, 126)])
    steps = [
        ("Loader", "this host's rows, padded"), ("put_batch", "rows onto the mesh"),
        ("train step", "loss, gradient, Adam"), ("run directory", "checkpoints, metrics"),
    ]  # fmt: skip
    for number, (name, what) in enumerate(steps):
        left = 650 - 210 * number
        picture.box(left, 128, 180, 54, (name, what), GREEN)
        if number:
            picture.arrow([(left + 210, 155), (left + 182, 155)])
    picture.text(20, 232, "Evaluation", bold=True)
    picture.arrow([(110, 182), (110, 244)])
    steps = [
        ("checkpoint", "last, best, avg:5"), ("Translator", "batches by length"),
        ("staged search", "beam search"), ("scores", "value, definition, 95%"),
    ]  # fmt: skip
    for number, (name, what) in enumerate(steps):
        picture.box(20 + 210 * number, 246, 180, 54, (name, what), YELLOW)
        if number:
            picture.arrow([(20 + 210 * number - 30, 273), (18 + 210 * number, 273)])
    picture.arrow([(740, 300), (740, 332)])
    picture.box(440, 334, 390, 54, ("compare, sweep", "better, worse or not distinguishable"), RED)
    picture.box(20, 334, 390, 54, ("references", "raw text, every sentence of the test set"), GREY)
    picture.arrow([(410, 361), (438, 361)])
    return picture


def draw_resume() -> Picture:
    """A batch as a function of the step, and a run that is killed."""
    picture = Picture(330, "Resume by one integer")
    picture.box(20, 20, 180, 54, ("corpus, seed, config", "the same on every host"), BLUE)
    picture.box(20, 92, 180, 54, ("step", "one integer"), YELLOW)
    picture.box(270, 56, 200, 54, ("BatchPlan.batch(step)", "NumPy, no state"), GREEN)
    picture.arrow([(200, 47), (268, 75)])
    picture.arrow([(200, 119), (268, 92)])
    for number in range(3):
        picture.box(
            550, 14 + 50 * number, 290, 42, [f"host {number}: its rows of batch `step`"], GREY
        )
        picture.arrow([(470, 83), (548, 35 + 50 * number)])
    for row, (label, first, last) in enumerate((("run 1", 0, 13), ("run 2", 10, 20))):
        y = 190 + 56 * row
        picture.text(20, y + 22, label, bold=True)
        for step in range(first, last):
            kept = step < 10 or row == 1
            picture.rect(80 + 38 * step, y, 34, 32, GREEN if kept else RED)
            picture.text(97 + 38 * step, y + 21, str(step), "middle", size=12)
    picture.text(582, 212, "killed; steps 10 to 12 are lost", size=13)
    picture.arrow([(460, 224), (460, 244)], dashed=True)
    picture.text(
        20,
        318,
        "The newest checkpoint is of step 10. Run 2 asks for batches 10, 11, ...: the same pairs.",
    )
    return picture


def draw_slots() -> Picture:
    """The cache of beam search: keys stay where they were written."""
    picture = Picture(330, "Beam search without moving the cache")
    tokens = [
        ["The", "An", "This"],
        ["cat", "dog", "old"],
        ["sat", "ran", "man"],
        ["down", "off", "smiled"],
    ]
    parents = [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 2]]
    mine = {(0, 1), (1, 2), (2, 2), (3, 2)}
    for step, row in enumerate(tokens):
        picture.text(160 + 130 * step, 34, f"step {step}", "middle", bold=True)
        for slot, token in enumerate(row):
            colour = YELLOW if (step, slot) in mine else GREY
            picture.box(110 + 130 * step, 50 + 60 * slot, 100, 40, [token], colour)
            if step:
                start = 70 + 60 * parents[step][slot]
                picture.arrow([(80 + 130 * step, start), (108 + 130 * step, 70 + 60 * slot)])
    for slot in range(3):
        picture.text(20, 75 + 60 * slot, f"slot {slot}")
    picture.text(640, 70, "Cache: 4 steps x 3 slots.")
    picture.text(640, 92, "Nothing is ever reordered.")
    picture.text(640, 132, "Hypothesis in slot 2:")
    picture.text(640, 154, "An old man smiled", bold=True)
    picture.text(640, 176, "It attends to the cells")
    picture.text(640, 198, "marked yellow.")
    picture.text(
        20,
        262,
        "Attention of one step has the beam as its query axis and the whole cache as its key axis;",
    )
    picture.text(
        20,
        284,
        "a mask keeps for each hypothesis only the slots of its own past. Moving the cache instead",
    )
    picture.text(20, 306, "would copy all keys and values of all layers at every step.")
    return picture


def draw_stages() -> Picture:
    """Capacity and batch size of a search, stage by stage."""
    picture = Picture(310, "Beam search in stages")
    stages = [(0, 2, 64), (2, 4, 64), (4, 6, 16), (6, 10, 16)]
    labels = ["capacity S", "capacity 2S", "16 sentences left", "capacity 4S"]
    for (first, last, rows), label in zip(stages, labels, strict=True):
        height = 160 if rows == 64 else 44
        picture.rect(
            90 + 72 * first,
            210 - height,
            72 * (last - first),
            height,
            GREEN if rows == 64 else YELLOW,
        )
        picture.text(90 + 36 * (first + last), 200, label, "middle", size=13)
    for first, _, _ in stages[1:]:
        picture.arrow([(90 + 72 * first, 34), (90 + 72 * first, 216)], dashed=True)
    picture.text(234, 28, "dashed: the host looks which sentences still grow")
    picture.text(20, 58, "64 rows")
    picture.text(20, 172, "16 rows")
    picture.arrow([(90, 232), (830, 232)])
    picture.text(90, 252, "steps")
    picture.text(
        20,
        282,
        "The area is the cost. Each stage is one compiled loop on the device. The result is that",
    )
    picture.text(
        20,
        300,
        "of one long search: a stage ends when the capacity is full or few sentences are left.",
    )
    return picture


def draw_verdict() -> Picture:
    """Draws the two variances that the significance test of two systems adds up."""
    picture = Picture(330, "One test for chance in sentences and in seeds")
    for row, (name, centre, dots) in enumerate(
        (("system A", 300, (252, 310, 338)), ("system B", 460, (420, 466, 494)))
    ):
        y = 60 + 66 * row
        picture.text(20, y + 5, f"{name}, 3 seeds")
        picture.arrow([(160, y), (600, y)])
        for x in dots:
            picture.dot(x, y)
        picture.rect(centre - 1, y - 16, 2, 32, INK)
    picture.text(606, 65, "BLEU")
    picture.text(606, 131, "BLEU")
    picture.text(300, 34, "dots: runs; bars: means", "middle", size=12)
    picture.box(20, 172, 250, 54, ("scatter of the seeds", "variance, degrees of freedom"), BLUE)
    picture.box(
        20, 240, 250, 54, ("choice of sentences", "paired bootstrap, all runs at once"), GREEN
    )
    picture.box(340, 206, 180, 54, ("one standard error", "root of the sum"), GREY)
    picture.arrow([(270, 199), (338, 226)])
    picture.arrow([(270, 267), (338, 240)])
    picture.box(
        590, 206, 250, 54, ("Student's distribution", "interval, two-sided p, Holm"), YELLOW
    )
    picture.arrow([(520, 233), (588, 233)])
    picture.text(
        430,
        312,
        "The verdict says better, worse or not distinguishable, and which chance it covers",
        "middle",
        bold=True,
    )
    return picture


def draw_twins() -> Picture:
    """A formula, its twin, and where one of the two is chosen."""
    picture = Picture(290, "Textbook formulas and fast twins")
    picture.box(
        20,
        30,
        270,
        72,
        ("t2t/model/attention.py", "equation 1 in ten lines", "JAX differentiates it"),
        GREEN,
    )
    picture.box(
        570,
        30,
        270,
        72,
        (
            "t2t/ops/tpu_attention.py, ...",
            "same name, signature, values",
            "kernel or own backward pass",
        ),
        BLUE,
    )
    picture.box(
        330,
        30,
        200,
        72,
        ("tests/ops/test_twins.py", "values and gradients agree,", "also on a mesh, in bfloat16"),
        RED,
    )
    picture.arrow([(330, 66), (292, 66)])
    picture.arrow([(530, 66), (568, 66)])
    picture.box(
        280, 150, 300, 54, ("t2t/ops/select_kernels.py", "model.kernels = auto or textbook"), YELLOW
    )
    picture.arrow([(155, 102), (278, 168)])
    picture.arrow([(705, 102), (582, 168)])
    picture.box(280, 226, 300, 46, ["the model, built with one Policy"], GREY)
    picture.arrow([(430, 204), (430, 224)])
    picture.text(600, 190, "A twin that does not support", size=13)
    picture.text(600, 208, "the operands leaves them to", size=13)
    picture.text(600, 226, "another twin or to the formula.", size=13)
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "rooms": draw_rooms,
    "batch": draw_batch,
    "resume": draw_resume,
    "slots": draw_slots,
    "stages": draw_stages,
    "verdict": draw_verdict,
    "twins": draw_twins,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), "utf-8")
