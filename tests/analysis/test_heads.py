"""Roles of heads by hand-made weights, and heads of the model, switched off one at a time."""

from unittest.mock import create_autospec

import jax
import numpy as np
import pytest

from t2t.analysis.head_importance import describe_keys, list_heads, switch_off
from t2t.analysis.head_roles import AttendedTokens, Profile, RoleTally, find_rare
from t2t.data.tokenizer import Tokenizer
from t2t.model.parameters import merge
from tests import reference
from tests.model.small_models import SRC, TGT_IN, draw_model, vary

LENGTH = 6
NO_MARKS = np.zeros(LENGTH, bool)


def mark(*places: int) -> np.ndarray:
    marked = NO_MARKS.copy()
    marked[list(places)] = True
    return marked


def judge(stack: str, weights: np.ndarray, keys: AttendedTokens) -> Profile:
    """The profile of a stack's only head."""
    tally = RoleTally(stack)
    tally.add(weights[None, None], keys)
    [[profile]] = tally.profiles()
    return profile


def look_at(offset: int) -> np.ndarray:
    """All weight on the key at an offset from the query."""
    return np.eye(LENGTH)[np.clip(np.arange(LENGTH) + offset, 0, LENGTH - 1)]


@pytest.mark.parametrize(
    ("stack", "offset", "role"),
    [
        ("encoder", -1, "previous token"),
        ("encoder", 1, "next token"),
        ("decoder", 0, "same token"),
        ("cross", 0, "diagonal"),
    ],
)
def test_head_that_looks_at_a_fixed_distance_is_told(stack: str, offset: int, role: str) -> None:
    profile = judge(stack, look_at(offset), AttendedTokens(NO_MARKS))
    assert profile.role == role
    assert profile.score == pytest.approx(1)
    assert profile.entropy == pytest.approx(0)


def test_diagonal_of_cross_attention_runs_from_corner_to_corner() -> None:
    weights = np.zeros((3, LENGTH))
    weights[[0, 1, 2], [0, 3, 5]] = 1
    assert judge("cross", weights, AttendedTokens(NO_MARKS)).role == "diagonal"
    assert judge("cross", weights[::-1], AttendedTokens(NO_MARKS)).role == "mixed (diagonal)"


def test_vowel_sign_alone_is_no_separator() -> None:
    """BPE cuts consonants and signs apart; a danda ends a sentence."""
    tokenizer = create_autospec(Tokenizer, instance=True)
    tokenizer.is_control.side_effect = lambda token: token == 0
    tokenizer.pieces.return_value = ["<s>", "▁क", "ि", "।", "3"]
    found = describe_keys(tokenizer, [*range(5)], None).separators
    assert found.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("stack", ["encoder", "cross"])
def test_head_that_looks_at_marks_or_at_rare_tokens_is_told(stack: str) -> None:
    """The rarest tokens share the role, without separators."""
    rare = find_rare([9, 9, 9, 2, 1, 2], mark(4))
    assert rare.tolist() == mark(3, 5).tolist()
    assert not find_rare([1, 1], np.array([True, True])).any()
    keys = AttendedTokens(mark(4), rare)
    assert judge(stack, np.tile(np.eye(LENGTH)[4], (LENGTH, 1)), keys).role == "separator"
    assert judge(stack, np.tile(np.eye(LENGTH)[5], (LENGTH, 1)), keys).role == "rare token"


def test_queries_without_a_choice_do_not_count() -> None:
    """The decoder's first query sees one key, and only later ones see the separator."""
    weights = np.eye(LENGTH)
    weights[3:] = np.eye(LENGTH)[2]
    profile = judge("decoder", weights, AttendedTokens(mark(2)))
    assert profile.scores["separator"] == pytest.approx(1)
    assert profile.scores["same token"] == pytest.approx(2 / 5)


def test_equal_weights_are_broad_and_two_halves_are_mixed() -> None:
    even = judge("encoder", np.full((LENGTH, LENGTH), 1 / LENGTH), AttendedTokens(mark(5)))
    assert even.role == "broad"
    assert even.score == pytest.approx(1)
    assert even.entropy == pytest.approx(np.log(LENGTH))
    halves = np.zeros((LENGTH, LENGTH))
    halves[:, [0, 3]] = 0.5
    assert judge("encoder", halves, AttendedTokens(mark(5))).role == "mixed (previous token)"
    alone = judge("encoder", np.ones((1, 1)), AttendedTokens(np.array([True])))
    assert (alone.role, alone.score, alone.entropy) == ("mixed", 0.0, 0.0)


def test_sentences_count_by_their_queries() -> None:
    tally = RoleTally("encoder")
    tally.add(look_at(-1)[None, None], AttendedTokens(NO_MARKS))
    tally.add(np.eye(3)[None, None], AttendedTokens(NO_MARKS[:3]))
    [[profile]] = tally.profiles()
    assert profile.scores["previous token"] == pytest.approx(5 / 7)
    assert profile.scores["same token"] == pytest.approx((1 + 3) / (6 + 3))


def test_head_that_is_switched_off_adds_nothing_and_the_others_stay() -> None:
    """With W^O of all heads but one at zero, that one is all that attention adds."""
    config = vary("today's")
    structure, params = draw_model("today's")
    run = jax.jit(lambda params: merge(structure, params)(SRC, TGT_IN))
    whole = run(params)
    parameters = jax.tree.map(lambda x: np.array(x, float), params)
    for head in list_heads(config):
        less = switch_off(params, head)
        name = "cross_attention" if head.stack == "cross" else "self_attention"
        side = "encoder" if head.stack == "encoder" else "decoder"
        attention = parameters[side][head.layer][name]
        kept = attention["output"]["weight"].copy()
        attention["output"]["weight"][head.number] = 0
        wanted = reference.transform(parameters, config, SRC[0].tolist(), TGT_IN[0].tolist())
        attention["output"]["weight"] = kept
        found = run(less)
        np.testing.assert_allclose(found[0], wanted, atol=2e-4)
        assert not np.allclose(found, whole)
