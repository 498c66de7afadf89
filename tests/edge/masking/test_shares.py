"""Shares of a secret: by hand, any enough of them, too few, and wrong ones."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.contracts.errors import MessageRejected
from edge.masking.shares import PRIME, SHARE_BYTES, recover, split

SECRET = bytes(range(32))


def number(value: int) -> bytes:
    return value.to_bytes(SHARE_BYTES, "big")


def test_line_through_two_points_by_hand() -> None:
    """f(x) = 5 + 3 x: f(1) = 8, f(3) = 14, and f(0) is the secret."""
    assert recover({1: number(8), 3: number(14)}, 2) == (5).to_bytes(32, "big")


def test_division_is_the_fields() -> None:
    """f(x) = 7 - x at 2 and 10: 5 and 7 - 10 = PRIME - 3."""
    assert recover({2: number(5), 10: number(PRIME - 3)}, 2) == (7).to_bytes(32, "big")


def test_any_threshold_of_the_shares_give_the_secret() -> None:
    shares = dict(enumerate(split(SECRET, 3, 5), start=1))
    for chosen in itertools.combinations(shares, 3):
        assert recover({x: shares[x] for x in chosen}, 3) == SECRET
    assert recover(shares, 3) == SECRET


def test_too_few_shares_are_refused_and_tell_nothing() -> None:
    shares = dict(enumerate(split(SECRET, 3, 5), start=1))
    with pytest.raises(MessageRejected, match="2 shares of a secret, 3 needed"):
        recover({1: shares[1], 2: shares[2]}, 3)
    # Two points and any third value make a polynomial: every secret is as likely.
    with pytest.raises(MessageRejected, match="do not belong to one secret"):
        recover({1: shares[1], 2: shares[2]}, 2)


def test_changed_share_gives_no_secret_or_another_one() -> None:
    """f(1) + d moves the secret by 2 d: out of range for most, another value for a small d; never the secret."""
    shares = dict(enumerate(split(SECRET, 2, 3), start=1))
    for place, is_in_range in ((2, False), (-1, True)):
        changed = bytearray(shares[1])
        changed[place] ^= 1
        if is_in_range:
            assert recover({1: bytes(changed), 2: shares[2]}, 2) != SECRET
        else:
            with pytest.raises(MessageRejected, match="do not belong to one secret"):
                recover({1: bytes(changed), 2: shares[2]}, 2)


def test_shares_of_equal_secrets_differ() -> None:
    assert split(SECRET, 2, 3) != split(SECRET, 2, 3)


@given(secret=st.binary(min_size=32, max_size=32), count=st.integers(1, 9), data=st.data())
@settings(max_examples=30, deadline=None)
def test_every_secret_comes_back(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = dict(enumerate(split(secret, threshold, count), start=1))
    chosen = data.draw(st.permutations(sorted(shares)))[:threshold]
    assert recover({x: shares[x] for x in chosen}, threshold) == secret
