import numpy as np
import pytest
import torch

from marina.handlers import batching
from marina.handlers.artifact import LoadedArtifact
from marina.handlers.batching import Batcher, cheapest_cut, without_noise
from marina.handlers.record import PackedLengths, RecordError, TensorSpec
from marina.handlers.validation import AnswerError, OutOfMemory

SPEC = TensorSpec("values", (2,), "float32")
CPU = torch.device("cpu")


class Model:
    """Doubles its input, records the batches that it gets, and raises `error` for batch sizes above a limit."""

    def __init__(self, error=None, above=0):
        self.batches, self.error, self.above = [], None, above
        self.fails_with = error

    def __call__(self, inputs):
        self.batches.append(inputs[0].tolist())
        if self.error is not None and len(inputs[0]) > self.above:
            raise self.error
        return [inputs[0] * 2]

    @property
    def sizes(self):
        return [len(batch) for batch in self.batches]


def warm(model, sizes=(1, 4), seconds=None):
    batcher = Batcher(LoadedArtifact("export", sizes, CPU, model), [SPEC], [SPEC])
    batcher.warm_up()
    batcher.seconds = seconds or {1: 5.0, 4: 8.0}
    model.batches.clear()
    model.error = model.fails_with
    return batcher


def rows(*values):
    return [None if value is None else [np.array([value, value], np.float32)] for value in values]


def answers(results):
    return [row if row is None or isinstance(row, AnswerError) else row[0].tolist() for row in results.rows]


@pytest.mark.parametrize(
    ("count", "seconds", "cut"),
    [
        pytest.param(0, {1: 1}, [], id="none"),
        pytest.param(5, {1: 5, 4: 8}, [4, 1], id="five"),
        pytest.param(3, {1: 5, 4: 8}, [4], id="padding is cheaper"),
        pytest.param(3, {1: 2, 4: 8}, [1, 1, 1], id="single runs are cheaper"),
        pytest.param(2, {1: 5, 4: 10}, [4], id="equal times, fewer runs"),
        pytest.param(7, {2: 3, 8: 9}, [8], id="no size of one"),
        pytest.param(9, {1: 5, 4: 8, 8: 12}, [8, 1], id="three sizes"),
    ],
)
def test_cut_is_the_cheapest_by_measured_time(count, seconds, cut):
    assert cheapest_cut(count, seconds) == cut


def test_rows_are_cut_padded_with_a_good_row_and_answered_in_order():
    model = Model()
    results = warm(model).run(rows(1, 2, 3, 4, 5, 6, 7))
    assert model.batches == [[[1, 1], [2, 2], [3, 3], [4, 4]], [[5, 5], [6, 6], [7, 7], [5, 5]]]
    assert answers(results) == [[2 * value] * 2 for value in (1, 2, 3, 4, 5, 6, 7)]
    assert results.padding == 1


@pytest.mark.parametrize("bad", [0, 1, 4])
def test_a_row_among_bad_ones_runs_as_if_it_were_alone(bad):
    model = Model()
    results = warm(model).run(rows(*[None] * bad, 1, *[None] * bad))
    assert model.batches == [[[1, 1]]]
    assert answers(results) == [*[None] * bad, [2, 2], *[None] * bad]
    assert results.padding == 0


@pytest.mark.parametrize(
    ("seconds", "settled", "alone"),
    [
        pytest.param({1: 0.010, 4: 0.009}, {1: 0.009, 4: 0.009}, [1], id="hardly longer"),
        pytest.param({1: 0.0003, 4: 0.0002}, {1: 0.0002, 4: 0.0002}, [1], id="a moment longer"),
        pytest.param({1: 0.020, 4: 0.009}, {1: 0.020, 4: 0.009}, [4], id="much longer"),
        pytest.param({1: 0.005, 4: 0.009}, {1: 0.005, 4: 0.009}, [1], id="shorter"),
        pytest.param({1: 0.010, 2: 0.0095, 4: 0.009}, {1: 0.009, 2: 0.009, 4: 0.009}, [1], id="three"),
    ],
)
def test_noise_does_not_choose_the_shape_that_a_request_runs_in(seconds, settled, alone):
    assert without_noise(seconds) == settled
    assert cheapest_cut(1, without_noise(seconds)) == alone


@pytest.mark.parametrize(
    ("milliseconds", "runs", "fastest"),
    [
        pytest.param([9, 5, 5.1, 4, 4], 3, 5, id="two agree"),
        pytest.param([9, 5, 7, 6, 4], 5, 4, id="none agree"),
        pytest.param([400, 300, 200, 4, 4], 2, 300, id="too slow for five"),
    ],
)
def test_a_shape_is_timed_until_two_runs_agree(milliseconds, runs, fastest, monkeypatch):
    clock, left = [0.0], list(milliseconds)

    def run():
        clock[0] += left.pop(0) / 1e3

    monkeypatch.setattr(batching, "perf_counter", lambda: clock[0])
    assert batching._fastest(run) == pytest.approx(fastest / 1e3)
    assert len(milliseconds) - len(left) == runs


def test_warm_up_runs_every_shape_at_least_twice():
    model = Model()
    batcher = Batcher(LoadedArtifact("export", (1, 4), CPU, model), [SPEC], [SPEC])
    batcher.warm_up()
    assert model.sizes.count(1) >= 2
    assert model.sizes.count(4) >= 2
    assert set(batcher.seconds) == {1, 4}


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory"), id="cuda"),
        pytest.param(MemoryError(), id="python"),
        pytest.param(
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), id="cpu"
        ),
    ],
)
def test_out_of_memory_splits_the_chunk_and_tries_once_more(error):
    model = Model(error, above=1)
    results = warm(model).run(rows(1, 2, None, 4))
    assert model.sizes == [4, 1, 1, 1]
    assert answers(results) == [[2, 2], [4, 4], None, [8, 8]]


def test_out_of_memory_again_fails_its_rows_only():
    model = Model(MemoryError(), above=1)
    results = warm(model, (1, 2, 4), {1: 1, 2: 9, 4: 3.5}).run(rows(1, 2, 3, 4, 5))
    assert model.sizes == [4, 2, 2, 1]
    assert [type(answer) for answer in answers(results)] == [OutOfMemory] * 4 + [list]


def test_out_of_memory_of_one_row_is_tried_once_more():
    model = Model(MemoryError())
    results = warm(model).run(rows(1))
    assert model.sizes == [1, 1]
    assert [type(answer) for answer in answers(results)] == [OutOfMemory]


def test_the_rows_of_a_chunk_at_which_the_model_failed_run_one_by_one():
    model = Model(ValueError("broken"), above=1)
    results = warm(model).run(rows(1, 2, 3, 4, 5))
    assert model.sizes == [4, 1, 1, 1, 1, 1]
    assert answers(results) == [[2 * value] * 2 for value in (1, 2, 3, 4, 5)]


def test_a_chunk_that_cannot_run_again_in_time_fails_alone(monkeypatch):
    model = Model(ValueError("broken"), above=1)
    batcher = warm(model, seconds={1: 5.0, 4: 8.0})
    monkeypatch.setattr(batching, "perf_counter", lambda: 100.0)
    results = batcher.run(rows(1, 2, 3, 4, 5), retry_until=119.0)
    assert model.sizes == [4, 1]
    assert [type(answer) for answer in answers(results)] == [AnswerError] * 4 + [list]


def test_lost_gpu_ends_the_worker():
    model = Model(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(SystemExit):
        warm(model).run(rows(1))


def test_output_that_is_the_input_is_not_overwritten_by_the_next_chunk():
    batcher = Batcher(LoadedArtifact("export", (1,), CPU, lambda inputs: inputs), [SPEC], [SPEC])
    batcher.warm_up()
    assert answers(batcher.run(rows(1, 2, 3))) == [[1, 1], [2, 2], [3, 3]]


def test_a_parameter_of_the_model_may_be_its_output():
    weight = torch.nn.Parameter(torch.tensor([[5.0, 6.0]]))
    batcher = Batcher(LoadedArtifact("export", (1,), CPU, lambda _: [weight]), [SPEC], [SPEC])
    batcher.warm_up()
    assert answers(batcher.run(rows(1))) == [[5, 6]]


def test_bfloat16_goes_in_and_out_as_float32():
    spec = TensorSpec("values", (2,), "bfloat16")
    batcher = Batcher(LoadedArtifact("export", (2,), CPU, lambda inputs: [inputs[0] + inputs[0]]), [spec], [spec])
    batcher.warm_up()
    assert answers(batcher.run(rows(1.5, -2))) == [[3, 3], [-4, -4]]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda inputs: [inputs[0].double()], id="another type"),
        pytest.param(lambda inputs: [inputs[0][:1]], id="another batch"),
        pytest.param(lambda inputs: inputs * 2, id="another number"),
    ],
)
def test_outputs_that_are_not_the_declared_ones_stop_the_worker(model):
    with pytest.raises(RecordError, match=r"`outputs`: the record declares .* package again"):
        Batcher(LoadedArtifact("export", (4,), CPU, model), [SPEC], [SPEC]).warm_up()


def test_no_row_of_the_warm_up_is_all_padding():
    # Some models of texts look for the last token that is none.
    model = Model()
    words = TensorSpec("words", (2,), "int64", min=0, max=9, varies=0, pad=1)
    Batcher(LoadedArtifact("export", (1,), CPU, model), [words], [words], PackedLengths((2,))).warm_up()
    assert model.batches[0] == [[0, 0]]
