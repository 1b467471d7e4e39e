"""Dynamic batching: whoever shares a batch, everyone gets what they would have got alone."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.server.metrics import Metrics
from official_bert.server.queue.batching import Batcher, BatchingParameters, join
from official_bert.server.statuses import RequestError


class Model:
    """Doubles numbers and notes the batches; holds them back until `gate` is open."""

    def __init__(self, fails_at=None):
        self.sizes, self.fails_at, self.gate = [], fails_at, threading.Event()
        self.gate.set()

    def __call__(self, inputs, deadline):
        self.gate.wait(10)
        x = inputs["x"]
        self.sizes.append(len(x))
        if self.fails_at is not None and (x == self.fails_at).any():
            raise RequestError("INVALID_ARGUMENT", "that number")
        return {"y": 2 * x, "rows": np.arange(len(x))}


def serve(parameters, requests, model, **options):
    """The answers (or exceptions) to arrays that are all sent at once."""

    async def main():
        batcher = Batcher(BatchingParameters(**parameters), Metrics())
        try:
            waiting = [asyncio.ensure_future(batcher.answer("key", {"x": x}, model)) for x in requests]
            await asyncio.sleep(0.02)
            model.gate.set()
            return await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            batcher.close()

    return asyncio.run(main())


def check(requests, answers):
    for x, answer in zip(requests, answers):
        np.testing.assert_array_equal(answer["y"], 2 * x)


def test_tasks_that_wait_together_run_together():
    model = Model()
    requests = [np.arange(size) + 100 * size for size in (1, 2, 3, 1)]
    check(requests, serve({"max_batch_size": 8, "batch_timeout_micros": 200_000}, requests, model))
    assert model.sizes == [7]


def test_a_full_batch_does_not_wait_for_its_timeout():
    model = Model()
    requests = [np.arange(4)] * 3
    check(
        requests, serve({"max_batch_size": 8, "batch_timeout_micros": 300_000, "num_batch_threads": 1}, requests, model)
    )
    assert model.sizes == [8, 4]


def test_a_busy_server_forms_batches_without_a_timeout():
    model = Model()
    model.gate.clear()
    requests = [np.array([number]) for number in range(9)]
    check(requests, serve({"max_batch_size": 8, "num_batch_threads": 1}, requests, model))
    assert sum(model.sizes) == 9 and len(model.sizes) <= 3


def test_batches_are_filled_up_to_an_allowed_size():
    model = Model()
    requests = [np.arange(3), np.arange(2)]
    answers = serve(
        {"max_batch_size": 8, "allowed_batch_sizes": (1, 4, 8), "batch_timeout_micros": 100_000}, requests, model
    )
    check(requests, answers)
    assert model.sizes == [8] and [len(answer["y"]) for answer in answers] == [3, 2]


def test_a_large_request_is_split_and_put_together_again():
    model = Model()
    requests = [np.arange(21)]
    check(
        requests, serve({"max_batch_size": 21, "max_execution_batch_size": 8, "num_batch_threads": 1}, requests, model)
    )
    assert sorted(model.sizes) == [5, 8, 8]
    model = Model()
    check(
        requests, serve({"max_batch_size": 32, "max_execution_batch_size": 10, "num_batch_threads": 1}, requests, model)
    )
    assert sorted(model.sizes) == [1, 10, 10]


@pytest.mark.parametrize("parameters", [{"enable_large_batch_splitting": False}, {"max_execution_batch_size": 4}])
def test_a_request_above_max_batch_size_is_refused_with_or_without_splitting(parameters):
    (error,) = serve({"max_batch_size": 8, **parameters}, [np.arange(9)], Model())
    assert error.code == "INVALID_ARGUMENT" and "Task size 9 is larger than maximum input batch size 8" in error.message


def test_only_the_guilty_task_of_a_batch_fails():
    requests = [np.array([1]), np.array([13]), np.array([2])]
    answers = serve({"max_batch_size": 8, "batch_timeout_micros": 100_000}, requests, Model(fails_at=13))
    check(requests[::2], answers[::2])
    assert isinstance(answers[1], RequestError) and answers[1].message == "that number"


def test_a_deadline_that_passes_in_the_queue_or_in_the_model_has_its_own_status_and_the_work_is_not_begun():
    model = Model()
    model.gate.clear()

    async def main():
        batcher = Batcher(BatchingParameters(num_batch_threads=1), Metrics())
        soon = asyncio.get_running_loop().time() + 0.3
        first = asyncio.ensure_future(batcher.answer("key", {"x": np.arange(1)}, model, soon))
        while not batcher._free_threads.locked():  # until it runs
            await asyncio.sleep(0)
        second = asyncio.ensure_future(batcher.answer("key", {"x": np.arange(2)}, model, soon))
        answers = await asyncio.gather(first, second, return_exceptions=True)
        model.gate.set()
        check([np.arange(3)], [await batcher.answer("key", {"x": np.arange(3)}, model)])
        batcher.close()
        return [error.code for error in answers]

    assert asyncio.run(main()) == ["DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"]
    assert model.sizes == [1, 3]


def test_a_batch_may_run_as_long_as_its_most_patient_task_allows():
    seen = []

    async def main(deadlines):
        batcher = Batcher(BatchingParameters(batch_timeout_micros=50_000), Metrics())
        now = asyncio.get_running_loop().time()
        given = [None if seconds is None else now + seconds for seconds in deadlines]
        await asyncio.gather(
            *(
                batcher.answer(
                    "key", {"x": np.arange(1)}, lambda inputs, deadline: seen.append(deadline) or inputs, deadline
                )
                for deadline in given
            )
        )
        batcher.close()
        return given

    given = asyncio.run(main([30, 60, 45]))
    asyncio.run(main([30, None]))
    assert seen == [given[1], None]


def test_a_key_may_have_parameters_of_its_own():
    async def main():
        batcher = Batcher(BatchingParameters(), Metrics())
        model = Model()
        own = BatchingParameters(max_batch_size=9, max_execution_batch_size=4)
        check([np.arange(9)], [await batcher.answer("key", {"x": np.arange(9)}, model, None, own)])
        batcher.close()
        assert sorted(model.sizes) == [1, 4, 4]

    asyncio.run(main())


def test_a_full_queue_refuses_with_unavailable():
    model = Model()
    model.gate.clear()
    answers = serve({"max_batch_size": 2, "max_enqueued_batches": 2, "num_batch_threads": 1}, [np.arange(2)] * 6, model)
    refused = [answer for answer in answers if isinstance(answer, RequestError)]
    assert refused and all(error.code == "UNAVAILABLE" for error in refused)
    assert len(refused) < 6
    check([np.arange(2)] * 6, [answer for answer in answers if not isinstance(answer, RequestError)])


def test_a_crash_of_the_model_is_an_internal_error_and_the_next_task_runs():
    def crash(inputs, deadline):
        raise ZeroDivisionError("here")

    async def main():
        batcher = Batcher(BatchingParameters(), Metrics())
        with pytest.raises(RequestError) as caught:
            await batcher.answer("key", {"x": np.arange(2)}, crash)
        assert caught.value.code == "INTERNAL"
        check([np.arange(2)], [await batcher.answer("key", {"x": np.arange(2)}, Model())])
        batcher.close()

    asyncio.run(main())


def test_tasks_of_clients_that_went_away_do_not_run():
    model = Model()

    async def main():
        batcher = Batcher(BatchingParameters(batch_timeout_micros=200_000), Metrics())
        gone = asyncio.ensure_future(batcher.answer("key", {"x": np.arange(5)}, model))
        while not batcher._queues:
            await asyncio.sleep(0)
        gone.cancel()
        check([np.arange(2)], [await batcher.answer("key", {"x": np.arange(2)}, model)])
        batcher.close()
        assert not batcher._queues

    asyncio.run(main())
    assert model.sizes == [2]


def test_other_inner_shapes_get_batches_of_their_own_or_are_padded():
    requests = [np.ones((2, 3), int), np.ones((1, 5), int), np.ones((1, 3), int)]
    model = Model()
    check(requests, serve({"batch_timeout_micros": 50_000}, requests, model))
    assert sorted(model.sizes) == [1, 3]
    model = Model()
    answers = serve({"batch_timeout_micros": 50_000, "pad_variable_length_inputs": True}, requests, model)
    assert model.sizes == [4]
    assert answers[0]["y"].tolist() == [[2, 2, 2, 0, 0]] * 2 and answers[1]["y"].tolist() == [[2] * 5]


@pytest.mark.parametrize("shapes", [[(2, 2, 3), (1, 3, 5), (1, 2, 7)], [(2, 2), (1, 3), (1, 2)]])
def test_choices_are_not_padded_because_each_gets_a_share_of_the_probability(shapes):
    """A model of choices [B,C,S], or of texts [B,C]: each choice is as likely as the others, whatever it says."""

    class Choices(Model):
        def __call__(self, inputs, deadline):
            rows, choices = inputs["x"].shape[:2]
            self.sizes.append(rows)
            return {"y": np.full((rows, choices), 1 / choices)}

    requests = [np.ones(shape, int) if len(shape) == 3 else np.full(shape, b"a", object) for shape in shapes]
    model = Choices()
    answers = serve({"batch_timeout_micros": 50_000, "pad_variable_length_inputs": True}, requests, model)
    for (rows, choices, *_), answer in zip(shapes, answers):
        np.testing.assert_array_equal(answer["y"], np.full((rows, choices), 1 / choices))
    assert sorted(model.sizes) == [1, 3]  # those of two choices share a batch


def test_outputs_that_have_no_rows_are_run_one_by_one():
    answers = serve(
        {"batch_timeout_micros": 50_000},
        [np.arange(2), np.arange(3)],
        type("Sum", (Model,), {"__call__": lambda self, inputs, deadline: {"y": inputs["x"].sum()}})(),
    )
    assert [int(answer["y"]) for answer in answers] == [1, 3]


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    largest=st.sampled_from([1, 3, 4, 8]),
    timeout=st.sampled_from([0, 2000]),
    threads=st.integers(1, 3),
)
def test_whatever_is_sent_everyone_gets_their_own_answer(sizes, largest, timeout, threads):
    requests = [np.arange(size) * 1000 + index for index, size in enumerate(sizes)]
    model = Model()
    check(
        requests,
        serve(
            {
                "max_batch_size": 9,
                "max_execution_batch_size": largest,
                "batch_timeout_micros": timeout,
                "num_batch_threads": threads,
            },
            requests,
            model,
        ),
    )
    assert sum(model.sizes) == sum(sizes) and max(model.sizes) <= largest


def test_join_pads_with_nothing():
    words = join([np.array([[b"a"]], object), np.array([[b"b", b"c"]], object)])
    assert words.tolist() == [[b"a", b""], [b"b", b"c"]]
    assert join([np.ones((1, 1, 2)), np.ones((1, 2, 1))]).tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]


@pytest.mark.parametrize(
    "values",
    [
        {"max_batch_size": 0},
        {"num_batch_threads": 0},
        {"batch_timeout_micros": -1},
        {"max_execution_batch_size": 64},
        {"allowed_batch_sizes": (1, 8)},
        {"allowed_batch_sizes": (8, 1, 32)},
        {"allowed_batch_sizes": (0, 32)},
        {"max_execution_batch_size": 8, "allowed_batch_sizes": (1, 8)},
    ],
)
def test_wrong_parameters_are_refused(values):
    with pytest.raises(ValueError, match="expected"):
        BatchingParameters(**values)


def test_a_task_gets_nothing_that_only_its_neighbours_need():
    """Each row has a text of as many words as its number says; alone, a request is as wide as its longest."""

    def model(inputs, deadline):
        counts = inputs["x"]
        calls.append(len(counts))
        return {
            "words": np.arange(counts.max(initial=0))[None] * (np.arange(counts.max(initial=0)) < counts[:, None]),
            "count": counts,
        }

    def trim(inputs, outputs):
        return {**outputs, "words": outputs["words"][:, : outputs["count"].max(initial=0)]}

    async def main():
        parameters = BatchingParameters(max_batch_size=8, max_execution_batch_size=4, batch_timeout_micros=50_000)
        batcher = Batcher(parameters, Metrics(), run_cost=0)
        try:
            return await asyncio.gather(*(batcher.answer("key", {"x": x}, model, trim=trim) for x in requests))
        finally:
            batcher.close()

    calls, requests = [], [np.array(counts) for counts in ([5], [0], [2, 3], [0, 1, 0, 0, 4, 0])]
    for x, answer in zip(requests, asyncio.run(main())):
        np.testing.assert_array_equal(answer["words"], model({"x": x}, None)["words"])
    assert calls[0] == 4  # the first three together
