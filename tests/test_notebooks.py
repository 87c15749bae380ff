"""docs/notebooks: stored without outputs, and executed with short trainings."""

import ast
import json
import os
import re
from pathlib import Path

import pytest

from tests.programs import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs_and_its_links_lead_somewhere(path: Path) -> None:
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (path.parent / link).exists(), link


@pytest.mark.extras
def test_first_hour_runs(tmp_path: Path) -> None:
    """Each training takes 20 steps; full length takes minutes (the notebook says how many)."""
    nbclient = pytest.importorskip("nbclient", reason="needs the extra `notebook`")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra `notebook`")
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / "first_hour.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}
    )
    environment = os.environ | {
        "T2T_NOTEBOOK_STEPS": "20",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    client.execute(env=environment)
    shown = [
        "".join(output["data"]["text/html"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    run, attention, score, comparison = shown
    assert "curves by step" in run
    assert "AttentionMap(layer=3, head=4" in attention
    assert "<table>" in score
    assert re.search(r"is (better|worse|not distinguishable)|No verdict", comparison)
    [tuned] = [
        output["data"]["text/plain"] for output in notebook.cells[-2]["outputs"] if "data" in output
    ]
    assert len(ast.literal_eval(tuned)) == 5
