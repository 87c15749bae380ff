"""Jobs that a queue runs."""

import dataclasses
import logging
import os
import re
from pathlib import Path

import pytest

from t2t.config.fields import ConfigError
from t2t.workshop.records import plan_steps
from t2t.workshop.steps import Step, Workshop
from t2t.workshop.submit import submit
from tests.programs import write_program
from tests.workshop.short_programs import TRAIN


def test_each_step_may_be_a_job_that_waits_for_those_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "jobs"
    write_program(tmp_path / "sbatch", f'#!/bin/sh\necho "$@" >>{log}\nwc -l <{log}\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    train = Step("a", "train", TRAIN)
    steps = [
        train,
        Step("b", "export", {"workdir": train}),
        Step("c", "choose_trial", {"trials": f"1={train}"}),  # which may do without one
    ]
    works = plan_steps(Workshop(steps, tmp_path / "work"))

    def send(command: str) -> None:
        arguments = {name: ["t2t.pipeline", "--recipe=x", f"--only={name}"] for name in works}
        submit(works, {name: [name] for name in works}, command, arguments)

    send("sbatch --gpus=1 launch/slurm.sh")
    assert log.read_text().splitlines() == [
        "--parsable --job-name=a --gpus=1 launch/slurm.sh t2t.pipeline --recipe=x --only=a",
        "--parsable --job-name=b --dependency=afterok:1 --kill-on-invalid-dep=yes --gpus=1 "
        "launch/slurm.sh t2t.pipeline --recipe=x --only=b",
        "--parsable --job-name=c --dependency=afterany:1 --kill-on-invalid-dep=yes --gpus=1 "
        "launch/slurm.sh t2t.pipeline --recipe=x --only=c",
    ]
    done = {name: dataclasses.replace(work, action="none") for name, work in works.items()}
    caplog.set_level(logging.INFO)
    submit(done, {name: [name] for name in works}, "sbatch", {})
    assert caplog.messages == ["all steps are finished; --report writes the report"]
    for command, message in (
        ('sbatch "', "is no command; write one such as"),
        ("no_sbatch", "failed (No such file or directory)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            send(command)
    for printed in ("", "Submitted batch job", "7 8"):
        (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{printed}'\n")
        with pytest.raises(ConfigError, match=re.escape(f"printed {printed!r} and no job id")):
            send("sbatch")
    (tmp_path / "sbatch").write_text("#!/bin/sh\n[ $2 = --job-name=a ] && echo '7;cluster'\n")
    with pytest.raises(ConfigError, match=r"failed \(see above\); cancel .* submitted: 7 \(a\)"):
        send("sbatch")
