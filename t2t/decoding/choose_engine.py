"""Chooses the engine that translates: JAX or CTranslate2."""

import importlib.util

import jax

from t2t.config.fields import Config, ConfigError
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translator import Translator
from t2t.ops.build_model import Members


def make_translator(
    backend: str,
    compute_type: str | None,
    config: Config,
    vocabulary: Vocabulary,
    members: Members | None = None,
) -> Translator:
    """Creates the translator for `backend`: jax or ctranslate2.

    `members` form an ensemble; without them the model is that of the config.

    Raises:
        ConfigError: the backend is unknown or not installed, or does not support the model or
            `compute_type`.
    """
    match backend:
        case "jax":
            if compute_type:
                raise ConfigError(
                    f"--compute_type={compute_type} is for --backend=ctranslate2; "
                    "with JAX, set model.dtype instead"
                )
            return Translator(config, vocabulary, members)
        case "ctranslate2":
            require_ctranslate2()
            if members and len(members.configs) > 1:
                raise ConfigError("an ensemble needs --backend=jax; give one run and checkpoint")
            if jax.process_count() > 1:
                raise ConfigError("--backend=ctranslate2 works in one process; start only one")
            from t2t.decoding.ctranslate2_engine import CTranslate2Translator

            return CTranslate2Translator(config, vocabulary, compute_type or "float32")
        case _:
            raise ConfigError(f"--backend={backend!r} is unknown; use jax or ctranslate2")


def require_ctranslate2() -> None:
    """Raises `ConfigError` if the optional package ctranslate2 is not installed."""
    if importlib.util.find_spec("ctranslate2") is None:
        raise ConfigError("this needs CTranslate2: pip install 'ctranslate2>=4.6.3,<5'")
