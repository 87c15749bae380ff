"""The dataclasses that a recipe in `configs/` fills in; `fields.py` describes every field."""

from t2t.config.fields import (
    CheckpointConfig,
    Config,
    ConfigError,
    DataConfig,
    DecodingConfig,
    MeshConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)

__all__ = [
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DecodingConfig",
    "MeshConfig",
    "ModelConfig",
    "TokenizerConfig",
    "TrainingConfig",
]
