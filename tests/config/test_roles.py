"""What each field decides, as its role says."""

from t2t.config.field_types import Role
from t2t.config.fields import FIELD_TYPES, Config, fields_with, flatten

FIELDS = flatten(Config())


def test_each_field_has_a_role() -> None:
    assert [name for name, kind in FIELD_TYPES.items() if kind.role is None] == []


def test_each_field_of_the_data_says_what_of_the_text_it_decides() -> None:
    roles = Role.TEXT, Role.LANGUAGES, Role.FILES, Role.STORE, Role.HELD_OUT, Role.BATCHES
    assert [name for name in FIELDS if name.startswith("data.")] == fields_with(*roles)
