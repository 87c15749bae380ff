"""The dataclasses that a recipe in `configs/` fills in; `fields.py` describes every field.

The other names are for the options of plugins.
"""

from t2t.config.field_types import InputPath as InputPath
from t2t.config.field_types import InputPaths as InputPaths
from t2t.config.field_types import NonNegativeFloat as NonNegativeFloat
from t2t.config.field_types import NonNegativeInt as NonNegativeInt
from t2t.config.field_types import PositiveFloat as PositiveFloat
from t2t.config.field_types import PositiveInt as PositiveInt
from t2t.config.field_types import Probability as Probability
from t2t.config.field_types import Rule as Rule
from t2t.config.fields import CheckpointConfig as CheckpointConfig
from t2t.config.fields import Config as Config
from t2t.config.fields import ConfigError as ConfigError
from t2t.config.fields import DataConfig as DataConfig
from t2t.config.fields import DecodingConfig as DecodingConfig
from t2t.config.fields import MeshConfig as MeshConfig
from t2t.config.fields import ModelConfig as ModelConfig
from t2t.config.fields import PluginOptions as PluginOptions
from t2t.config.fields import TokenizerConfig as TokenizerConfig
from t2t.config.fields import TrainingConfig as TrainingConfig
from t2t.config.fields import option as option
