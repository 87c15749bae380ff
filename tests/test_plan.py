"""t2t.plan: its flags, output file and errors; with compilers where they are installed."""

import json
import os
from pathlib import Path

import pytest

from t2t.config.fields import Config, ConfigError, DataConfig, ModelConfig, TokenizerConfig
from t2t.plan import report_plan
from tests import programs

# Adam: the closed form of FLOPs does not count Muon's products, many for so small a model.
TINY = """
    --config.model.num_layers=1 --config.model.d_model=128 --config.model.d_ff=256
    --config.model.num_heads=4 --config.model.dropout=0 --config.tokenizer.vocab_size=512
    --config.data.max_length=16 --config.data.batch_tokens=1024 --mean_length=8
    --config.training.optimizer=adam
""".split()


@pytest.mark.slow
def test_plan_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(
        model=ModelConfig(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0.0),
        data=DataConfig(max_length=8, batch_tokens=64, num_shapes=1),
        tokenizer=TokenizerConfig(vocab_size=64),
    )
    output = tmp_path / "plans" / "tiny.json"
    monkeypatch.setattr("sys.argv", ["t2t/plan.py", "--topology=cpu:2"])
    assert report_plan(config, "cpu:2", output, mean_length=4, search=True)
    printed = capsys.readouterr().out
    result = json.loads(output.read_text())
    assert result["search"][0]["mesh"] == result["mesh"]
    assert result["command"] == "python -m t2t.plan --topology=cpu:2"
    assert "cpu:2: 2 devices, mesh " in printed
    assert "hours for 100,000 steps" in printed


def test_output_that_cannot_be_written_is_found_out_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it is a folder; .*--output sets the path"):
        report_plan(Config(), "cpu:1", tmp_path)


@pytest.mark.slow
def test_tpu_compiler_plans_without_a_tpu(tmp_path: Path) -> None:
    pytest.importorskip("libtpu")
    output = tmp_path / "plan.json"
    flags = "--topology=v5e:2x2", "--slices=2", "--config.mesh.fsdp=2", f"--output={output}"
    command = "-m", "t2t.plan", "--config=configs/quickstart.py", *flags, *TINY
    result = programs.run_python(*command, environment=os.environ | {"XLA_FLAGS": ""})
    assert result.returncode == 0, result.stderr
    plan = json.loads(output.read_text())
    assert plan["topology"] == "2 x v5e:2x2"
    assert plan["mesh"] == {"data": 4, "fsdp": 2, "tensor": 1}
    assert plan["estimated_cycles"] > 0
    assert plan["compiled_flops"] == pytest.approx(plan["flops"], rel=0.1)
    assert "the compiler states no cycles of collectives" in plan["remarks"][0]
    assert plan["seconds"]["slices"] > plan["seconds"]["network"] > 0
    assert {"all-gather (fsdp, network)", "all-reduce (data, slices)"} <= {*plan["collectives"]}
    assert "at 1.50 GHz" in result.stdout
