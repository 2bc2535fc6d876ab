"""An amount split among people."""


def split(total_cents: int, people: int) -> list[int]:
    """What each person pays, in cents."""
    if people < 1:
        raise ValueError("an amount needs somebody to pay it")
    share = total_cents // people
    return [share] * people
