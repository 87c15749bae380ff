"""What a recipe in `configs/` is made of; the fields are in `fields.py`, with a comment each."""

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
