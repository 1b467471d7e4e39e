"""Which of the waiting tasks share the next batch: schedules worked out by hand, bounds, and a slower way to the same
choice.
"""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.server.batch_queue import FULL, LONG, BatchingParameters, BatchQueue, BatchTask
from official_bert.server.batching import Batcher
from official_bert.server.metrics import Metrics
from official_bert.server.request_checks import Limits, row_work

LIMITS = Limits()
RUN_COST = 10  # a batch is full at a work of 160; a row counts as 40 at most


def texts(length, rows=1):
    return {"text": np.array([b"x" * length] * rows, object)}


def waiting(inputs, run_cost=RUN_COST, limits=LIMITS, **parameters):
    """A queue in which these inputs wait."""
    queue = BatchQueue(BatchingParameters(**parameters), limits, run_cost)
    for number, values in enumerate(inputs):
        queue.add(BatchTask(values, len(next(iter(values.values()))), row_work(values, limits), None, float(number)))
    return queue


def schedule(queue):
    """The batches until the queue is empty, each as the lengths of its texts."""
    batches = []
    while taken := queue.take():
        batches.append([len(task.inputs["text"][0]) for task in taken])
    assert queue.rows == queue.work == 0 and not queue.tasks
    return batches


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [
        # Alone 20 + 10 and 21 + 10, together 2 x 21 + 10: 9 are saved. With 22: 17. With 3: 8, with 30: nothing (5 x 30
        # + 10 of 146).
        ([20, 30, 22, 3, 21], [[20, 21, 22], [30], [3]]),
        ([3, 4, 5, 38, 39], [[3, 4, 5], [38, 39]]),
        ([5, 40, 5, 40, 5], [[5, 5, 5], [40, 40]]),
        ([40, 5, 40], [[40, 40], [5]]),
        ([1000, 40, 7000], [[1000, 40, 7000]]),  # each counts as 40
        ([20] * 9, [[20] * 8, [20]]),  # 8 x 20 is full
        ([50] * 5, [[50] * LONG, [50]]),  # long rows too run together
        ([0, 0, 0], [[0, 0, 0]]),
        ([7], [[7]]),
        ([], []),
    ],
)
def test_the_oldest_runs_with_those_of_like_length_as_long_as_that_saves_work(lengths, batches):
    assert schedule(waiting(map(texts, lengths))) == batches


def test_without_a_run_cost_the_oldest_run_together_by_rows_alone():
    assert schedule(waiting(map(texts, [20, 3000, 22, 3, 21]), 0, max_batch_size=2)) == [[20, 3000], [22, 3], [21]]


def test_rows_are_bounded_as_ever():
    assert [len(batch) for batch in schedule(waiting(map(texts, [1] * 9), max_batch_size=4))] == [4, 4, 1]
    queue = waiting([texts(1, rows) for rows in (3, 2, 2)], max_batch_size=4)
    assert [[task.size for task in queue.take()] for _ in range(3)] == [[3], [2, 2], []]
    narrow = Limits(max_batch_elements=30)
    assert [len(batch) for batch in schedule(waiting(map(texts, [10] * 4), limits=narrow))] == [3, 1]
    assert len(waiting(map(texts, [0] * 600), max_batch_size=500).take()) == 500  # more than the window of the choice


def test_one_task_may_be_more_than_a_full_batch():
    queue = waiting([texts(40, 30), texts(40), texts(40)])
    assert [[task.size for task in queue.take()] for _ in range(2)] == [[30], [1, 1]]


def test_rows_that_fill_up_a_batch_count_as_work():
    """With sizes 1 and 8: 3 texts of 30 would run as 8 x 30, alone as 3 x 40; 7 of 10 as 8 x 10, alone as 7 x 20."""
    sizes = {"max_batch_size": 8, "allowed_batch_sizes": (1, 8)}
    assert schedule(waiting(map(texts, [30] * 3), **sizes)) == [[30]] * 3
    assert schedule(waiting(map(texts, [10] * 7), **sizes)) == [[10] * 7]
    assert schedule(waiting(map(texts, [10] * 9), **sizes)) == [[10] * 8, [10]]


def test_only_text_and_ids_are_work():
    assert row_work({"text": np.array([b"abc", b"a"], object), "context": np.array([b"", b"ab"], object)}, LIMITS) == 5
    assert row_work({"choices": np.array([[b"abc", b"a"]], object)}, LIMITS) == 6
    ids = np.zeros((2, 7), np.int32)
    assert row_work({"input_ids": ids, "input_mask": ids.astype(np.int64)}, LIMITS) == 14
    others = {
        "image": np.zeros((2, 64, 64, 3), np.uint8),
        "features": np.zeros((2, 900)),
        "picture": np.array([b"x" * 9000] * 2, object),
        "label": np.zeros(2, np.int32),
    }
    assert row_work(others, LIMITS) == 0
    assert len(waiting([others] * 4, max_batch_size=8).take()) == 4
    assert (
        row_work(
            {"text": np.zeros((0,), object), "ids": np.zeros((0, 3), np.int32), "none": np.zeros((3, 0), np.int64)},
            LIMITS,
        )
        == 3
    )


lengths_of_tasks = st.lists(st.integers(0, 60), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(lengths=lengths_of_tasks, before=st.integers(0, 39), newcomers=st.lists(st.integers(0, 60), max_size=3))
def test_whoever_comes_later_a_task_runs_after_one_batch_at_most_for_each_that_it_found_waiting(
    lengths, before, newcomers
):
    """After every batch others come, of the worst lengths: those of the batch, and some."""
    queue = waiting(map(texts, lengths))
    before = min(before, len(lengths) - 1)
    watched = list(queue.tasks)[before]
    for _ in range(before + 1):
        taken = queue.take()
        if watched in taken:
            return
        for length in [*(len(task.inputs["text"][0]) for task in taken), *newcomers]:
            queue.add(BatchTask(texts(length), 1, length, None, 99.0))
    pytest.fail("it waits for more batches than there were tasks before it")


@settings(max_examples=100, deadline=None)
@given(
    lengths=lengths_of_tasks, sizes=st.sampled_from([(), (1, 8), (2, 4, 8)]), run_cost=st.sampled_from([1, 10, 1000])
)
def test_the_choice_is_that_of_the_most_saved_work(lengths, sizes, run_cost):
    """All beginnings of the list by distance to the oldest are tried, in NumPy."""
    queue = waiting(map(texts, lengths), run_cost, max_batch_size=8, allowed_batch_sizes=sizes)
    counted = np.minimum(lengths, run_cost * FULL // LONG)
    near = counted[np.argsort(np.abs(counted - counted[0]), kind="stable")][:8]
    rows = np.array([next((size for size in sizes if size >= count), count) for count in range(1, 9)])[: len(near)]
    work = rows * np.maximum.accumulate(near)
    saved = np.cumsum(rows[0] * near + run_cost) - work - run_cost
    saved[1:][np.maximum.accumulate(work[1:]) > run_cost * FULL] = -1
    best = max(0, saved[0] if saved[0] > 0 else 0, saved.max())
    expected = 1 + int(np.flatnonzero(saved == best)[-1]) if (saved == best).any() else 1
    taken = queue.take()
    assert sorted(task.length for task in taken) == sorted(near[:expected].tolist())
    assert queue.work == counted.sum() - near[:expected].sum()


@settings(max_examples=20, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 80)), min_size=1, max_size=12),
    run_cost=st.sampled_from([0, 1, 10, 10**9]),
    timeout=st.sampled_from([0, 2000]),
    threads=st.integers(1, 3),
    sizes=st.sampled_from([(), (1, 4, 9)]),
)
def test_every_request_gets_its_own_answer_whatever_shares_its_batch(requests, run_cost, timeout, threads, sizes):
    ran = []

    def model(inputs, deadline):
        ran.append(len(inputs["text"]))
        return {
            "length": np.array(list(map(len, inputs["text"]))),
            "last": np.array([text[-3:] for text in inputs["text"]], object),
        }

    async def main():
        batcher = Batcher(
            BatchingParameters(
                max_batch_size=9,
                max_execution_batch_size=4,
                batch_timeout_micros=timeout,
                num_batch_threads=threads,
                allowed_batch_sizes=sizes,
            ),
            Metrics(),
            run_cost=run_cost,
        )
        inputs = [
            np.array([b"x" * (length + row) + b"%03d" % number for row in range(rows)], object)
            for number, (rows, length) in enumerate(requests)
        ]
        answers = await asyncio.gather(*(batcher.answer("key", {"text": text}, model) for text in inputs))
        batcher.close()
        for text, answer in zip(inputs, answers):
            assert answer["length"].tolist() == list(map(len, text)) and answer["last"].tolist() == [
                one[-3:] for one in text
            ]
        assert not batcher._queues

    asyncio.run(main())
    assert max(ran) <= 4 and sum(ran) >= sum(rows for rows, _ in requests)


@pytest.mark.parametrize("run_cost", [0, 1, 10, 10**9])
def test_ids_of_other_lengths_are_padded_if_they_share_a_batch(run_cost):
    shapes = []

    def model(inputs, deadline):
        shapes.append(inputs["ids"].shape)
        return {"sum": inputs["ids"].sum(axis=1)}

    async def main():
        batcher = Batcher(
            BatchingParameters(pad_variable_length_inputs=True, batch_timeout_micros=20_000),
            Metrics(),
            run_cost=run_cost,
        )
        answers = await asyncio.gather(
            *(batcher.answer("key", {"ids": np.full((2, length), 1, np.int64)}, model) for length in (3, 30, 4, 0, 29))
        )
        batcher.close()
        assert [answer["sum"].tolist() for answer in answers] == [[length] * 2 for length in (3, 30, 4, 0, 29)]

    asyncio.run(main())
    # At 10, 2 x 4 of padding for an empty task are less than a run; at 1, rows of 4 and more count as long, and 16 ids
    # are a full batch.
    expected = {1: [(2, 0), (2, 3), (2, 29), (4, 30)], 10: [(4, 30), (6, 4)]}
    assert sorted(shapes) == expected.get(run_cost, [(10, 30)])


def test_enough_work_does_not_wait_for_the_timeout_and_its_neighbours_leave_the_queue_in_order():
    batches, gate = [], threading.Event()
    gate.set()

    def model(inputs, deadline):
        gate.wait(10)
        batches.append([len(text) for text in inputs["text"]])
        return {"y": np.arange(len(inputs["text"]))}

    async def until(condition):
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    async def main():
        batcher = Batcher(
            BatchingParameters(batch_timeout_micros=20_000_000, num_batch_threads=1), Metrics(), run_cost=RUN_COST
        )
        await asyncio.wait_for(
            asyncio.gather(*(batcher.answer("key", texts(length), model) for length in [40] * 4)), 10
        )
        gate.clear()
        first = [asyncio.ensure_future(batcher.answer("key", texts(length), model)) for length in [40] * 4]
        await until(batcher._free_threads.locked)
        gone, *others = [
            asyncio.ensure_future(batcher.answer("key", texts(length), model)) for length in (5, 40, 6, 39, 40, 41)
        ]
        await until(lambda: sum(queue.rows for queue in batcher._queues.values()) == 6)
        (queue,) = batcher._queues.values()
        gone.cancel()
        await until(lambda: queue.rows == 5)
        assert queue.rows == 5 and queue.work == 40 + 6 + 39 + 40 + 40
        gate.set()
        await asyncio.gather(*first, *others[:1], *others[2:])
        others[1].cancel()  # 6 waits for its timeout
        batcher.close()

    asyncio.run(main())
    assert batches == [[40] * 4, [40] * 4, [40, 40, 41, 39]]
