"""What is refused in new runs only."""

import pytest

from t2t.config.fields import Config, ConfigError, ModelConfig, TrainingConfig
from t2t.config.new_run_rules import check_new_run
from t2t.config.rules import validate
from t2t.training.schedule import make_schedule


def test_factor_of_noam_is_no_peak_of_another_schedule() -> None:
    config = Config(training=TrainingConfig(schedule="cosine"))
    with pytest.raises(ConfigError, match=r"learning_rate=1 .*rise to 0.0007;.* to 0.0007$"):
        check_new_run(config)
    assert validate(config) is config  # so that such a run can still be opened


@pytest.mark.parametrize(
    "training",
    [
        TrainingConfig(),
        TrainingConfig(learning_rate=20.0),
        TrainingConfig(schedule="constant", learning_rate=0.1),
        TrainingConfig(schedule="a plugin's"),
        TrainingConfig(schedule="constant", optimizer="a plugin's"),
    ],
)
def test_factors_of_noam_and_rates_of_plugins_may_be_high(training: TrainingConfig) -> None:
    check_new_run(Config(training=training))


def test_peak_of_noam_is_that_of_the_schedule() -> None:
    training = TrainingConfig(warmup_steps=40, learning_rate=0.5)
    peak = training.noam_peak(ModelConfig().d_model)
    schedule = make_schedule(training, ModelConfig().d_model)
    assert peak == pytest.approx(max(float(schedule(count)) for count in range(60)))
