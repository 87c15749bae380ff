"""t2t.inspect_heads: the page that it writes, and the page in a browser."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t2t.analysis.head_importance import (
    Head,
    Sample,
    compute_pair_weights,
    list_heads,
    measure_importance,
    read_sample,
    switch_off,
)
from t2t.analysis.head_page import show_attention
from t2t.analysis.head_request import HeadRequest
from t2t.config.fields import Config, ConfigError, ModelConfig
from t2t.config.files import load_config, save_config
from t2t.data.corpus import Pair
from t2t.data.loader import make_batch
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translator import Translator
from t2t.model.parameters import Params, merge
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError
from tests.tiny_run import PAIRS, make_run

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)
HOSTILE = '<img src=x onerror=alert(1)> </script> "A girl" & {{ climbs }}'
# A script added to the page. It triggers drawing as for printing, since a headless browser does not
# always report what comes into view, sorts by the first column, and reads the pixels back.
PROBE = """
function read(canvas) {
  const { queries, keys, cell, left, top } = placeOf(canvas), scale = devicePixelRatio;
  const context = canvas.getContext("2d");
  const readCell = (row, column) => [...context.getImageData(
    (left + (column + .5) * cell) * scale, (top + (row + .5) * cell) * scale, 1, 1).data];
  const colours = queries.flatMap((_, row) => keys.map((_, column) => readCell(row, column)));
  return { drawn: canvas.dataset.drawn, weights: [...weightsOf(canvas)], queries, keys, colours };
}
addEventListener("load", () => setTimeout(() => {
  dispatchEvent(new Event("beforeprint"));
  document.querySelector("thead th button").click();
  const result = document.createElement("pre");
  result.id = "probe";
  result.textContent = JSON.stringify({
    found: canvases.map(read),
    rows: [...document.querySelectorAll("tbody a")].map(link => link.textContent),
    heat: getComputedStyle(document.documentElement).getPropertyValue("--heat"),
    images: document.images.length,
  });
  document.body.append(result);
}, 500));
"""
pytestmark = pytest.mark.usefixtures("shared_programs")

HEADS = 6  # of a run with one layer per side and two heads


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose validation split is its test split."""
    workdir = tmp_path_factory.mktemp("runs") / "run"
    text = {"validation_src": f"{workdir}/toy.en", "validation_tgt": f"{workdir}/toy.de"}
    return make_run(workdir, data=text)


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    """The page of a sentence that contains HTML and template syntax."""
    return show_attention(HeadRequest(run, sentence=HOSTILE, importance=3)).read_text("utf-8")


def open_run(run: Path) -> tuple[Config, Translator, Params, Sample]:
    config = load_config(run / "config.json")
    translator = Translator(config, Vocabulary.load(run / "vocab"))
    sample = read_sample(config, translator.vocabulary, 4, 100)
    assert sample is not None
    return config, translator, restore_params(run, "best")[0], sample


def test_page_shows_every_head_with_its_figures(page: str) -> None:
    anchors = re.findall(r'<figure id="([^"]+)">', page)
    assert anchors == [
        f"{stack}-1-{n}" for stack in ("encoder", "decoder", "cross") for n in (1, 2)
    ]
    assert sorted(re.findall(r'<a href="#([^"]+)">', page)) == sorted(anchors)
    interval = r"\[([+-][\d.]+), ([+-][\d.]+)\]"
    found = re.findall(rf"importance ([+-][\d.]+) {interval}<", page)
    assert all(float(low) <= float(high) for _, low, high in found)
    importances = [float(value) for value, *_ in found]
    assert len(importances) == len(re.findall(r"entropy [\d.]+,", page)) == HEADS
    in_table = [float(x) for x, *_ in re.findall(rf"<td>([+-][\d.]+) {interval}</td></tr>", page)]
    assert in_table == sorted(importances, reverse=True)
    drawn = "3 of 5 sentences of the validation split, drawn with seed 0"
    assert f"means over {drawn}, under teacher forcing" in page
    assert f"when this head alone is switched off, on {drawn}. In brackets: 95%" in page


def test_page_is_alone_and_takes_text_as_text(page: str) -> None:
    assert not re.findall(r"https?://|src=\"|@import|<link", page)
    assert "<img" not in page
    assert page.count("</script>") == 1
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "{{" not in page.replace("{{ climbs }}", "")


def test_importance_can_be_left_out(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    request = HeadRequest(run, sentence=HOSTILE, importance=0, output=str(output))
    assert show_attention(request) == output
    text = output.read_text("utf-8")
    assert "Importance was not measured" in text
    assert "this sentence alone" in text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_sample_is_drawn_by_its_seed_from_the_whole_split(run: Path) -> None:
    config = load_config(run / "config.json")
    vocabulary = Vocabulary.load(run / "vocab")

    def draw(count: int, seed: int) -> tuple[Pair, ...]:
        sample = read_sample(config, vocabulary, count, 100, seed)
        assert sample
        assert (sample.drawn_from, sample.seed) == (len(PAIRS), seed)
        return tuple(sample.pairs)

    assert draw(2, 1) == draw(2, 1)
    drawn = {draw(2, seed) for seed in range(30)}
    assert {pair for pairs in drawn for pair in pairs} == {*PAIRS}
    assert all(len({*pairs}) == 2 for pairs in drawn)
    assert draw(9, 1) == (*PAIRS,)


@pytest.mark.slow
def test_importance_is_the_increase_of_the_loss(run: Path) -> None:
    """Computes the reference from log-probabilities of single sentences."""
    config, translator, params, sample = open_run(run)
    found = measure_importance(config, translator, params, sample, "loss")
    assert list(found.changes) == list(list_heads(config.model))

    @jax.jit
    def compute(params: Params, src: jax.Array, tgt_in: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(merge(translator.structure, params)(src, tgt_in)[0])

    def mean_loss(params: Params) -> float:
        nats, tokens = 0.0, 0
        for src, tgt in sample.pairs:
            [s], [t] = (
                translator.vocabulary.src.encode([src]),
                translator.vocabulary.tgt.encode([tgt]),
            )
            batch = make_batch(np.array([s], np.int32), np.array([t], np.int32))
            log_probs = np.asarray(compute(params, batch.src, batch.tgt_in), float)
            nats -= log_probs[np.arange(len(t)), t].sum()
            tokens += len(t)
        return nats / tokens

    whole, head = mean_loss(params), Head("cross", 0, 1)
    assert found.baseline == pytest.approx(whole, rel=1e-5)
    gain = mean_loss(switch_off(params, head)) - whole
    assert found.changes[head].value == pytest.approx(gain, abs=1e-4)
    low, high = found.changes[head].interval
    assert low <= found.changes[head].value <= high


def test_weights_do_not_depend_on_what_they_are_batched_with(run: Path) -> None:
    _, translator, params, sample = open_run(run)
    together = list(compute_pair_weights(translator, params, sample.pairs))
    for pair, weights in zip(sample.pairs[:2], together[:2], strict=True):
        [alone] = compute_pair_weights(translator, params, [pair])
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
            np.testing.assert_allclose(one.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"sentence": " "}, ConfigError, "the sentence has 0 sub-words; give one of 1 to 255"),
        ({"sentence": "dogs " * 300}, ConfigError, r"sub-words; give one of 1 to 255"),
        ({"checkpoint": "150"}, RunError, "no checkpoint of step 150"),
        ({"output": "."}, ConfigError, "is a folder; name a file"),
    ],
)
def test_what_cannot_be_shown_is_named(
    run: Path, request_: dict[str, Any], error: type[Exception], message: str
) -> None:
    request = dataclasses.replace(HeadRequest(run, sentence="Dogs climb."), **request_)
    with pytest.raises(error, match=message):
        show_attention(request)


def test_sample_says_that_long_pairs_are_left_out(run: Path) -> None:
    config, vocabulary = load_config(run / "config.json"), Vocabulary.load(run / "vocab")
    sample = str(read_sample(config, vocabulary, 2, 10))
    assert sample.startswith(
        "2 of 3 sentences of the validation split (2 longer ones are left out)"
    )


def test_recurrent_model_and_missing_split_are_refused(run: Path, tmp_path: Path) -> None:
    config = load_config(run / "config.json")
    (tmp_path / "vocab").symlink_to(run / "vocab")
    config.data.validation_src = config.data.validation_tgt = ""
    save_config(config, tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"needs a validation split.*use --importance=0"):
        show_attention(HeadRequest(tmp_path, sentence="Dogs climb."))
    config.model = ModelConfig(kind="rnn", d_model=32)
    save_config(config, tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"model\.kind='rnn': the page shows"):
        show_attention(HeadRequest(tmp_path, sentence="Dogs climb."))


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
def test_browser_draws_every_map_as_the_model_weighs(run: Path, tmp_path: Path) -> None:
    """The colour of each pixel read back is a mix of background and heat colour by its weight.

    In dark mode, where the background is not the canvas's own.
    """
    path = show_attention(
        HeadRequest(run, sentence=HOSTILE, importance=2, output=str(tmp_path / "page.html"))
    )
    page = path.read_text("utf-8")
    path.write_text(page.replace("</body>", f"<script>{PROBE}</script></body>"), "utf-8")
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1600,3000",
        f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=5000",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--disable-quic",
        "--blink-settings=preferredColorScheme=0",
        "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    match = re.search(r'<pre id="probe">(.*?)</pre>', shown, re.DOTALL)
    assert match
    result = json.loads(match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert result["images"] == 0
    assert len(result["found"]) == len(result["rows"]) == HEADS
    assert result["rows"] == sorted(result["rows"], reverse=True)
    heat = np.array([int(x) for x in result["heat"].split(",")])
    ground = np.array([20, 23, 27])
    for head in result["found"]:
        assert head["drawn"] == f"{len(head['queries'])}x{len(head['keys'])}"
        share = np.array(head["weights"])[:, None] / 255
        wanted = share * heat + (1 - share) * ground
        np.testing.assert_allclose(np.array(head["colours"])[:, :3], wanted, atol=2)
