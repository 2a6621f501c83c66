"""Laws of the scheduler, with a simulated clock."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsnet.serve import scheduler
from dsnet.serve.scheduler import Job, Scheduler, Setting
from support.serving import ladder, poisson, simulated

DEADLINE = 0.1
LADDER = ladder()
CAPACITY = 1 / LADDER[-1].first  # requests per second that run at the best setting


def request(now: float, settings: tuple[Setting, ...] = LADDER, deadline: float = DEADLINE) -> Job:
    return Job(1, now + deadline, settings)


def loaded(load: float, seconds: float = 8, **options: object) -> list[tuple[float, Job]]:
    return poisson(lambda _: load * CAPACITY, seconds, partial(request, **options))  # type: ignore[arg-type]


def test_at_low_load_everyone_gets_what_they_asked_for() -> None:
    asks = [LADDER, LADDER[:4], LADDER[5:6], LADDER[3:]]
    arrivals = [(0.05 * number, request(0.05 * number, asks[number % 4])) for number in range(200)]
    found = simulated(arrivals, Scheduler())
    assert len(found.answered) == 200
    assert all(setting == job.settings[-1] for job, _, setting in found.answered)


@pytest.mark.parametrize(("load", "place"), [(0.5, 0.99), (1.5, 0.35), (2.0, 0.2)])
def test_under_load_the_budget_falls_and_all_are_answered_in_time(load: float, place: float) -> None:
    found = simulated(loaded(load), Scheduler())
    assert found.in_time >= 0.995
    assert found.place() >= place


def test_without_narrower_settings_the_same_load_is_not_met() -> None:
    """What the law above is worth: a network of one width refuses half of the requests."""
    found = simulated(loaded(2.0, settings=LADDER[-1:]), Scheduler())
    assert found.in_time < 0.6
    assert found.refused


def test_after_a_burst_everyone_is_back_at_the_best_within_two_seconds() -> None:
    def rate(now: float) -> float:
        return (3 if 2 < now < 4 else 0.5) * CAPACITY

    found = simulated(poisson(rate, 8, request), Scheduler())
    assert found.in_time >= 0.99
    assert found.place(2.5, 4) < 0.2
    assert found.place(6, 8) == 1.0
    middle = [found.place(4 + 0.25 * k, 4.25 + 0.25 * k) for k in range(4)]
    assert middle == sorted(middle)  # it rises step by step


def test_pinned_requests_and_least_budgets_are_kept_under_load() -> None:
    kinds = [LADDER, LADDER, LADDER, LADDER[-1:], LADDER[4:]]
    rng = random.Random(0)
    arrivals = poisson(lambda _: 1.6 * CAPACITY, 6, lambda now: request(now, rng.choice(kinds)))
    found = simulated(arrivals, Scheduler())
    assert found.in_time > 0.97
    assert all(setting in job.settings for job, _, setting in found.answered)
    pinned = [setting for job, _, setting in found.answered if len(job.settings) == 1]
    assert len(pinned) > 50
    assert set(pinned) == {LADDER[-1]}
    assert found.place() < 0.6  # although the others had to give way


def test_the_budget_falls_with_the_queue_and_never_rises_with_it() -> None:
    generous = []
    for waiting in range(1, 40):
        queue = Scheduler()
        for _ in range(waiting):
            if not queue.submit(request(0.0), 0.0):
                break
        generous.append(queue.generosity(0.0))
    assert generous == sorted(generous, reverse=True)
    assert generous[0] == 1.0
    assert generous[-1] == 0.0
    assert len(set(generous)) >= len(LADDER)  # smoothly


def fastest(queue: Scheduler, now: float, more: Job) -> list[tuple[Job, float]]:
    """When all that waits, and one more, would end on one worker, each at its cheapest, by their deadlines."""
    end, ends = max([now, *(batch.until for batch in queue.running)]), []
    for job in sorted([*queue.queue, more], key=lambda one: one.deadline):
        end += job.extra + job.settings[0].seconds(job.images)
        ends.append((job, end))
    return ends


JOBS = st.lists(
    st.tuples(
        st.floats(0, 0.02),  # after the one before it
        st.integers(1, 4),
        st.floats(0.001, 0.15),  # deadline
        st.integers(0, 7),
        st.integers(0, 7),
        st.floats(0, 0.005),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(JOBS)
def test_no_request_is_refused_that_could_be_answered_and_none_that_is_taken_is_late(
    rows: list[tuple[float, ...]],
) -> None:
    """With exact times and one worker. Every request is answered in time, or refused the moment it comes."""
    now, arrivals = 0.0, list[tuple[float, Job]]()
    for gap, images, deadline, low, high, extra in rows:
        now += gap
        arrivals.append((now, Job(int(images), now + deadline, LADDER[int(low) : max(int(low), int(high)) + 1], extra)))

    def check(queue: Scheduler, job: Job, now: float, taken: bool) -> None:
        if not taken:
            assert any(end > one.deadline - 1e-7 for one, end in fastest(queue, now, job))

    found = simulated(arrivals, Scheduler(), check=check)
    assert len(found.answered) + len(found.refused) == len(arrivals)
    assert not found.late
    assert all(at <= job.deadline + 1e-7 for job, at, _ in found.answered)


def test_two_workers_do_twice_the_work() -> None:
    found = simulated(poisson(lambda _: 4 * CAPACITY, 4, request), Scheduler(2))
    assert found.in_time >= 0.995


def test_batches_are_of_one_setting_and_gain_what_they_gain() -> None:
    """A third of the time for each further image: the best setting copes with twice the load of single images."""
    both = ladder(most=16, gain=0.3)
    other = tuple(Setting(("other", one.key), one.place, one.first, one.more, one.most) for one in both)
    rng = random.Random(0)
    arrivals = poisson(lambda _: 2 * CAPACITY, 6, lambda now: request(now, rng.choice([both, other])))
    found = simulated(arrivals, Scheduler())
    assert found.in_time >= 0.995
    assert found.place() > 0.6
    sizes = [len(batch) for batch in found.batches]
    assert 2 < max(sizes) <= 16
    assert all(len({job.settings for job in batch}) == 1 for batch in found.batches)


@pytest.mark.parametrize("factor", [0.7, 3.0])
def test_it_learns_the_speed_of_the_machine(factor: float) -> None:
    """Times that were measured on a quiet machine do not hold on a busy one."""
    learning = Scheduler()
    found = simulated(loaded(1.6 / factor, seconds=10), learning, slower=lambda *_: factor)
    assert learning.learned[0] == pytest.approx(factor, rel=0.1)
    late = [at for job, at, _ in found.answered if at > job.deadline + 1e-9] + [at for _, at in found.late]
    assert sum(at > 1 for at in late) <= 0.01 * len(found.answered)


def test_a_server_that_was_slow_takes_requests_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For three seconds every batch takes so long that no deadline could be met any more. What never forgot that would
    refuse everything, and so would never learn better."""

    def refused() -> list[float]:
        arrivals = poisson(lambda _: 0.4 * CAPACITY, 10, partial(request, deadline=0.02))
        found = simulated(arrivals, Scheduler(), slower=lambda _, at: 40.0 if 2 < at < 5 else 1.0)
        return [at for _, at in [*found.refused, *found.late]]

    assert [at for at in refused() if 2 < at < 3]
    assert not [at for at in refused() if at > 8]
    monkeypatch.setattr(scheduler, "FADE", 1e9)
    assert len([at for at in refused() if at > 8]) > 50


def test_what_nobody_waits_for_is_dropped() -> None:
    queue, jobs = Scheduler(), [request(0.0) for _ in range(3)]
    assert all(queue.submit(job, 0.0) for job in jobs)
    batch = queue.next(0.0)
    assert batch is not None
    assert batch.jobs == jobs[:1]
    assert queue.cancel(jobs[1])
    assert not queue.cancel(jobs[0])  # it runs
    queue.finished(batch, 0.01)
    following = queue.next(0.01)
    assert following is not None
    assert following.jobs == jobs[2:]
    assert queue.next(0.01) is None


def test_a_request_that_has_become_late_is_given_up() -> None:
    queue, first, second = Scheduler(), request(0.0), request(0.0, deadline=0.05)
    assert queue.submit(first, 0.0)
    batch = queue.next(0.0)
    assert batch is not None
    assert queue.submit(second, 0.0)
    queue.finished(batch, 0.049)  # much later than expected
    assert queue.late(0.049) == [second]
    assert not queue.queue
