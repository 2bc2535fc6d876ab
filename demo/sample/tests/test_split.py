from pathlib import Path

import pytest
from fairshare import read_ledger, split

TRIP = Path(__file__).resolve().parents[1] / "trips" / "lisbon.csv"


def test_an_even_amount_is_split_evenly():
    assert split(900, 3) == [300, 300, 300]


def test_nobody_pays_for_nothing():
    with pytest.raises(ValueError, match="somebody"):
        split(900, 0)


def test_shares_differ_by_a_cent_at_most():
    shares = split(1000, 3)
    assert max(shares) - min(shares) <= 1


def test_shares_add_up_to_the_bill():
    assert sum(split(1000, 3)) == 1000


def test_every_bill_of_a_trip_is_paid_in_full():
    unpaid = {
        expense.what: expense.cents - sum(split(expense.cents, expense.people))
        for expense in read_ledger(TRIP)
        if sum(split(expense.cents, expense.people)) != expense.cents
    }
    assert unpaid == {}
