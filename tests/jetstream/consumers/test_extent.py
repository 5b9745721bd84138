"""When a reading gives up: where the end of the stream moves away as fast as it reads, and not before."""

from kvctl.jetstream.consumers import server_consumer
from kvctl.jetstream.consumers.server_consumer import FAR_MESSAGES, MAX_ROUNDS, MAX_SETBACKS, CatchUpLimit


def ends(start: int, distances: list[int]) -> list[int]:
    """Where the end is found each time, when it is that much further than before."""
    found = [start]
    for distance in distances:
        found.append(found[-1] + distance)
    return found[1:]


def test_a_reading_that_comes_nearer_is_let_go_on():
    running = CatchUpLimit(100)
    assert not any(running.hopeless(end) for end in ends(100, [1 << number for number in range(40, 0, -1)]))


def test_one_that_falls_further_behind_is_given_up():
    running = CatchUpLimit(100)
    answers = [running.hopeless(end) for end in ends(100, [FAR_MESSAGES] * (MAX_SETBACKS + 1))]
    assert answers == [False] * MAX_SETBACKS + [True]


def test_small_distances_are_those_between_question_and_answer():
    running = CatchUpLimit(100)
    assert not any(running.hopeless(end) for end in ends(100, [FAR_MESSAGES - 1] * (MAX_ROUNDS - 1)))
    assert running.hopeless(running.end + 1)


def test_a_small_distance_that_takes_long_counts_as_well(monkeypatch):
    monkeypatch.setattr(server_consumer, "FAR_S", 0.0)
    running = CatchUpLimit(100)
    assert [running.hopeless(end) for end in ends(100, [5] * (MAX_SETBACKS + 1))][-1]
