"""What each field decides, as its role says."""

from t2t.config.field_types import Role
from t2t.config.fields import FIELD_TYPES, Config, fields_with, flatten
from t2t.evaluation.systems import _MAY_DIFFER, _MODEL, _SEARCH
from t2t.sweeps.sweep_directory import LOCATION_FIELDS
from t2t.training.resume import (
    _BATCH_FIELDS,
    _BLEU_FIELDS,
    _CHANGEABLE,
    _LANGUAGES,
    _SCHEDULE_FIELDS,
)

FIELDS = flatten(Config())


def match(beginnings: tuple[str, ...], end: str = "") -> set[str]:
    return {name for name in FIELDS if f"{name}{end}".startswith(beginnings)}


def having(*roles: Role) -> set[str]:
    return {*fields_with(*roles)}


def test_roles_say_what_the_lists_by_hand_say() -> None:
    bound = {
        name
        for name in FIELDS.keys() - match((*_CHANGEABLE, *_BATCH_FIELDS), ":")
        if name.startswith("data.")
    } | match(("tokenizer.",))
    assert bound == having(Role.VOCABULARY, Role.COPIED, Role.TEXT, Role.LANGUAGES)
    assert match(_CHANGEABLE, ":") == having(
        Role.DEVICES, Role.CHECKPOINTS, Role.SEARCH, Role.SEARCH_BATCHES, Role.FILES, Role.STORE,
        Role.COPIED, Role.LOGGING, Role.VALIDATION,
    )  # fmt: skip
    assert match(_SCHEDULE_FIELDS, ":") == having(Role.SCHEDULE)
    assert match(_BLEU_FIELDS, ":") == having(Role.SEARCH)
    assert match(_LANGUAGES, ":") == having(Role.LANGUAGES)
    assert match(LOCATION_FIELDS) == having(Role.DEVICES, Role.STORE)
    assert {*_SEARCH} & FIELDS.keys() == having(Role.SEARCH)
    assert {*_MODEL} & FIELDS.keys() == having(Role.MODEL)
    # No score depends on these, as on log_every.
    more = {"training.max_nonfinite_steps", "training.source_use_pairs"}
    assert match(_MAY_DIFFER) | more == having(
        Role.SEED, Role.DEVICES, Role.STORE, Role.CHECKPOINTS, Role.LOGGING
    )


def test_each_field_has_a_role() -> None:
    assert [name for name, kind in FIELD_TYPES.items() if kind.role is None] == []


def test_each_field_of_the_data_says_what_of_the_text_it_decides() -> None:
    roles = Role.TEXT, Role.LANGUAGES, Role.FILES, Role.STORE, Role.HELD_OUT, Role.BATCHES
    assert [name for name in FIELDS if name.startswith("data.")] == fields_with(*roles)
