"""The small random model of the tests of decoding, for those of likelihood."""

from tests.decoding.conftest import params as params
from tests.decoding.conftest import vocabulary as vocabulary
