"""Who owes what after a trip."""

from fairshare.ledger import read_ledger
from fairshare.split import split

__all__ = ["read_ledger", "split"]
