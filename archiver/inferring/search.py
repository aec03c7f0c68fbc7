"""Searches for inputs that a network takes: tries guesses, and learns from each run what to try next."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress, islice

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from marina.archiver.inferring.arguments import Argument, GivenInput, forward_arguments, is_state, match_given
from marina.archiver.inferring.guess_notes import describe_guesses
from marina.archiver.inferring.inferred import InferredInputs, Input
from marina.archiver.inferring.layer_inputs import (
    KNOWN,
    configured_inputs,
    has_sequence_layers,
    layer_inputs,
    recurrent_states,
    sounds,
)
from marina.archiver.inferring.picked_rows import find_picked_rows
from marina.archiver.inferring.refusals import unservable_arguments
from marina.archiver.inferring.trial import TrialResult, equal, limit_numbers, try_inputs
from marina.archiver.inferring.varying_lengths import limit_length_arguments, mark_varying_lengths
from marina.archiver.rows import RowsMixed, check_repeatable, check_rows_apart
from marina.config.errors import InputError, SourceError, listed
from marina.handlers.networks import TensorGraph

_MOST_TRIALS, _LONGEST_S = 600, 60.0
# After a guess that works but mixes rows, the search for a better one ends after this many trials or seconds. It also
# ends after this many guesses that the model takes, but answers in a form that cannot be served.
_MORE_TRIALS, _MORE_S = 40, 2.0
# The inputs of the first trials are tracked even if it is known which layer each input reaches.
_TRACKED_TRIALS = 10
# With recurrent layers, more rows than they have levels: the first dimension of their states is the level, which must
# not be mistaken for rows.
_ROWS, _ROWS_WITH_STATES = 2, 5

Guess = tuple[Input, ...]


def find_inputs(network: nn.Module, given: Sequence[GivenInput]) -> InferredInputs:
    """The inputs of `forward` by name. If they cannot be found, the InputError names the option to give them with."""
    search = _InputSearch(network, forward_arguments(network, given), given)
    network.eval()
    for rows in (search.rows, 1):
        guess = search.find_guess(rows)
        if guess is not None:
            return search.describe(guess, rows)
    raise search.failure()


class _InputSearch:
    def __init__(self, network: nn.Module, arguments: list[Argument], given: Sequence[GivenInput]) -> None:
        self._network, self._arguments, self._names = network, arguments, [argument.name for argument in arguments]
        self._has_sequences = has_sequence_layers(network)
        self._choices = [list(self._initial_choices(argument)) for argument in arguments]
        self._settled = [
            argument.is_mask or argument.is_length or self._may_be_state(argument) for argument in arguments
        ]
        self.rows = _ROWS_WITH_STATES if any(recurrent_states(network)) else _ROWS
        self._given = match_given(self._names, given)
        for at, value in self._given.items():
            self._choices[at], self._settled[at] = [value.as_input()], True
            self._names[at] = value.name
        self._widened: set[int] = set()
        self._deadline = time.monotonic() + _LONGEST_S
        self._tried = 0
        # The failure to report: the first one, or better the first one after which every argument was settled.
        self._failed: tuple[Guess, str] | None = None
        self._failed_when_settled = False
        self._unservable_output = ""

    def find_guess(self, rows: int) -> Guess | None:
        """The first guess that works and answers each row independently, or else the first that works."""
        works: Guess | None = None
        further_trials = 0
        while True:
            for guess in self._guesses():
                result = self._try(guess, rows)
                if self._learn(guess, result):
                    break
                if result.outputs is not None:
                    if rows == 1 or self._rows_independent(guess, result):
                        return guess
                    self._refuse_batch_second(guess)
                    if works is None:
                        works, self._deadline = guess, time.monotonic() + _MORE_S
                elif result.answered:
                    self._refuse_batch_second(guess)
                further_trials += works is not None or (result.answered and result.outputs is None)
                if further_trials > _MORE_TRIALS or self._tried >= _MOST_TRIALS or time.monotonic() > self._deadline:
                    return works
            else:
                return works

    def describe(self, guess: Guess, rows: int) -> InferredInputs:
        """The result for a guess that works: limits on its values, varying lengths, and notes for the user."""
        guess = self._drop_unused_columns(self._prefer_floats(guess, rows), rows)
        guess, notes = self._limit_values(guess, rows)
        # Without the search's deadline, which may have passed.
        result = try_inputs(self._network, self._values(guess, rows))
        independent = rows > 1 and self._rows_independent(guess, result)
        if not independent:
            why = self._why_rows_mixed(guess, rows)
            notes.append(f"answers to a batch differ from answers one by one, so `batch_sizes` is [1]{why}")
        fixed = any(given.tensor.varying or given.tensor.mask_of for given in self._given.values())
        inputs = dict(zip(self._names, guess, strict=True))
        # Arguments that say how much of a sequence is used, unless the user has limited them.
        is_length = [argument.is_length and at not in self._given for at, argument in enumerate(self._arguments)]
        if any(is_length):
            inputs, more = limit_length_arguments(self._network, inputs, list(compress(self._names, is_length)))
        else:
            inputs, more = mark_varying_lengths(self._network, inputs, fixed=fixed)
        for at, given in self._given.items():
            if given.tensor.mask_of:
                inputs[given.name] = replace(guess[at], mask_of=given.tensor.mask_of)
            elif given.tensor.varying:
                inputs[given.name] = replace(guess[at], varies=True)
        # A mask of no sequence may have been taken only because one value is spread over all.
        alone = all(tensor.sequence is None for tensor in guess)
        unreached = {
            name
            for at, name in enumerate(self._names)
            if at not in self._widened and (not self._settled[at] or (self._arguments[at].is_mask and alone))
        }
        inferred = {name for at, name in enumerate(self._names) if at not in self._given}
        guessed, free = describe_guesses(self._network, inputs, inferred, unreached)
        said = (*notes, *more, *guessed)
        return InferredInputs(inputs, result.shapes, None if independent else 1, result.names, said, free)

    def failure(self) -> InputError | SourceError:
        """The error to raise if no guess works."""
        if self._failed is None:
            text = f"`--input`: missing for {listed(self._names)}: no layer shows what `forward` takes"
            return InputError(text, hint=self._input_options(self._names))
        guess, error = self._failed
        if refused := unservable_arguments(self._network, self._names):
            return refused
        if self._unservable_output:
            hint = "write a wrapper module that returns tensors, each with one row per input row"
            if "finite" in self._unservable_output:
                hint = "compare the weights with those of the training, or say with `--input` what the model takes"
            return SourceError(f"`--source`: {self._unservable_output}", hint=hint)
        shapes = ", ".join(f"`{name}` {tensor}" for name, tensor in zip(self._names, guess, strict=True))
        tried = dict(zip(self._names, guess, strict=True))
        unknown = [name for at, name in enumerate(self._names) if at not in self._given]
        if not unknown:
            return SourceError(f"`--input`: the model fails on {shapes}: {error}", hint="try another `--input`")
        options = (f"--input {name}:{tried[name].dtype}:{','.join(map(str, tried[name].shape))}" for name in unknown)
        return InputError(
            f"`--input`: missing for {listed(unknown)}: no inputs that `forward` takes were found in {self._tried} "
            f"trials; with {shapes} it fails: {error}",
            hint=f"{' '.join(options)}, with the real sizes",
        )

    def _input_options(self, names: list[str], shape: str = "3,224,224") -> str:
        return " ".join(f"--input {name}:{'int64:128' if 'id' in name else f'float32:{shape}'}" for name in names)

    def _initial_choices(self, argument: Argument) -> Iterator[Input]:
        """Guesses for an argument of which only the name and the annotation are known."""
        if argument.is_mask:
            # -1 stands for the length of the sequence, which `_guesses` fills in.
            yield from (Input((-1,), dtype) for dtype in (argument.dtype, "bool", "float32", "int64") if dtype)
        elif argument.is_length:
            yield Input((), argument.dtype or "int64", least=1, most=1)
        else:
            if self._may_be_state(argument):
                yield from recurrent_states(self._network)
            if argument.is_sound:
                yield from sounds()
            kinds: set[type] = set()
            for layer in self._network.modules():
                # A lazy layer gets its sizes from the first input, so it shows none.
                if isinstance(layer, KNOWN) and type(layer) not in kinds and not isinstance(layer, LazyModuleMixin):
                    kinds.add(type(layer))
                    yield from islice(self._layer_choices(layer, argument), 40)
            if argument.dtype not in (None, "float32"):
                yield from (Input(shape, argument.dtype) for shape in ((), (128,), (8,)))

    def _may_be_state(self, argument: Argument) -> bool:
        """Whether the argument may be the state of a recurrent layer."""
        return is_state(argument.name) and any(recurrent_states(self._network))

    def _layer_choices(self, layer: nn.Module, argument: Argument) -> Iterator[Input]:
        """Guesses for an argument that reaches this layer first."""
        yield from configured_inputs(self._network)
        if argument.is_sound and isinstance(layer, nn.Conv1d) and layer.in_channels == 1:
            yield from sounds()
        doubles = any(weight.dtype == torch.float64 for weight in layer.parameters())
        for choice in layer_inputs(layer, self._network, sequence=self._has_sequences or argument.is_sequence):
            dtype = argument.dtype or ("float64" if doubles and choice.dtype == "float32" else choice.dtype)
            yield replace(choice, dtype=dtype)

    def _guesses(self) -> Iterator[Guess]:
        """All combinations of the arguments' choices, the likeliest first."""
        sizes = [len(choices) for choices in self._choices]
        for total in range(sum(sizes) - len(sizes) + 1 if all(sizes) else 0):
            for places in _summing_to(total, sizes):
                guess = tuple(choices[place] for choices, place in zip(self._choices, places, strict=True))
                length = next((tensor.shape[tensor.sequence] for tensor in guess if tensor.sequence is not None), 1)
                yield tuple(replace(tensor, shape=(length,)) if tensor.shape == (-1,) else tensor for tensor in guess)

    def _try(self, guess: Guess, rows: int) -> TrialResult:
        """Tries a guess, and remembers why it failed."""
        self._tried += 1
        left_s = max(0.1, self._deadline - time.monotonic())
        track = self._tried <= _TRACKED_TRIALS or not all(self._settled)
        result = try_inputs(self._network, self._values(guess, rows), longest_s=min(10, left_s), track=track)
        if result.answered and result.outputs is None:
            self._unservable_output = self._unservable_output or result.error
        settled = all(self._settled)
        if result.outputs is None and (self._failed is None or (settled and not self._failed_when_settled)):
            self._failed_when_settled = settled
            self._failed = (guess, result.error)
        return result

    def _values(self, guess: Guess, rows: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [tensor.values(rows, generator) for tensor in guess]

    def _learn(self, guess: Guess, result: TrialResult) -> bool:
        """Whether the trial revealed something new about an argument; if so, its choices are updated."""
        for arrival in result.arrivals:
            if not self._settled[arrival.argument]:
                self._settled[arrival.argument] = True
                choices = list(self._layer_choices(arrival.layer, self._arguments[arrival.argument]))
                self._choices[arrival.argument] = choices or self._choices[arrival.argument]
                return True
        return result.outputs is None and bool(result.mismatches) and self._widen(guess, *result.mismatches[0])

    def _widen(self, guess: Guess, actual: int, expected: int) -> bool:
        """Widens the one input that enters a layer together with others by what is missing to the layer's width."""
        free = [at for at, settled in enumerate(self._settled) if not settled and guess[at].shape]
        if len(free) > 1:
            names = [self._names[at] for at in free]
            text = f"`--input`: missing for {listed(names)}: together they enter a layer of width {expected}"
            raise InputError(text + ", which does not show how wide each is", hint=self._input_options(names, "N"))
        free = free or [
            at
            for at, tensor in enumerate(guess)
            if len(tensor.shape) == 1
            and tensor.sequence is None
            and at not in self._given
            and tensor.dtype == "float32"
        ]
        if len(free) != 1 or free[0] in self._widened:
            return False
        at = free[0]
        self._widened.add(at)
        width = (guess[at].shape[0] if len(guess[at].shape) == 1 else 1) + expected - actual
        if width < 1:
            return False
        self._choices[at].insert(0, Input((width,), self._arguments[at].dtype or "float32"))
        return True

    def _rows_independent(self, guess: Guess, result: TrialResult) -> bool:
        """Whether the first rows are answered alone as they were in the batch."""
        values = self._values(guess, self.rows)
        alone = [try_inputs(self._network, [value[at : at + 1] for value in values]) for at in range(2)]
        return all(
            single.outputs is not None
            and equal(single.outputs, tuple(value[at : at + 1] for value in result.outputs or ()))
            for at, single in enumerate(alone)
        )

    def _why_rows_mixed(self, guess: Guess, rows: int) -> str:
        """The end of the note: the line of code that mixes the rows. Raises SourceError if the model is random or fails
        on a single row."""
        graph, values = TensorGraph(self._network, torch.float32), self._values(guess, rows)
        check_repeatable("`--source`", graph, values, rows)
        try:
            check_rows_apart("`--source`", graph, values, rows)
        except RowsMixed as err:
            if rows > 1 and try_inputs(self._network, [value[:1] for value in values]).outputs is None:
                raise
            return f": {err.message.removeprefix('`--source`: ')}"
        return f": {self._unservable_output}" if rows == 1 and self._unservable_output else ""

    def _refuse_batch_second(self, guess: Guess) -> None:
        # Twice, because a sequence of two steps looks like two rows.
        results = [try_inputs(self._network, self._values(guess, rows), track=True) for rows in (2, 3)]
        for name, layer in self._network.named_modules():
            if (
                isinstance(layer, (nn.RNNBase, nn.MultiheadAttention))
                and not layer.batch_first
                and all(name in result.batch_second for result in results)
            ):
                text = f"`--source`: its layer `{name}` takes the batch as its second dimension, but requests are rows"
                raise InputError(text, hint=f"{type(layer).__name__}(…, batch_first=True), or transpose in `forward`")

    def _drop_unused_columns(self, guess: Guess, rows: int) -> Guess:
        """Shortens inputs whose columns go to layers one by one, to the last column that is used."""
        result = try_inputs(self._network, self._values(guess, rows), track=True)
        for at, tensor in enumerate(guess):
            arrivals = [arrival for arrival in result.arrivals if arrival.argument == at]
            if len(tensor.shape) == 1 and arrivals and all(len(arrival.shape) == 1 for arrival in arrivals):
                columns = max(arrival.offset for arrival in arrivals) + 1
                narrow = replace(tensor, shape=(columns,), sequence=None)
                smaller = (*guess[:at], narrow, *guess[at + 1 :])
                if at not in self._given and columns < tensor.shape[0] and self._try(smaller, rows).outputs is not None:
                    guess = smaller
        return guess

    def _prefer_floats(self, guess: Guess, rows: int) -> Guess:
        """Lets inputs have fractions, if the model takes whole numbers there only because it takes any."""
        for at, tensor in enumerate(guess):
            argument, is_mask = self._arguments[at], "mask" in self._names[at]
            if tensor.dtype != "int64" or argument.dtype or argument.is_length or is_mask or at in self._given:
                continue
            floats = (*guess[:at], replace(tensor, dtype="float32", least=None, most=None), *guess[at + 1 :])
            if try_inputs(self._network, self._values(floats, rows)).outputs is not None:
                guess = floats
        return guess

    def _limit_values(self, guess: Guess, rows: int) -> tuple[Guess, list[str]]:
        """Limits integers to those that work, beside the largest values of the inputs before; the packager limits
        columns with tables of their own."""
        notes, graph = [], TensorGraph(self._network, torch.float32)
        picked = find_picked_rows(lambda values: graph(*values), self._values(guess, rows))
        for at, tensor in enumerate(guess):
            argument = self._arguments[at]
            if tensor.dtype not in ("int32", "int64") or argument.is_length or argument.is_mask:
                continue
            if len(picked[at].columns(tensor.sequence)) > 1:
                limited = replace(tensor, least=None, most=None)
                notes.append(f"`{self._names[at]}`: each column picks from a table of its own, and allows its rows")
            else:
                values = self._values(guess, rows)
                for place, before in enumerate(guess[:at]):
                    if before.most is not None:
                        values[place] = torch.full_like(values[place], before.most)
                limited = limit_numbers(self._network, values, at, tensor)
                wrong = "below 0" if limited.most is None else f"beyond {limited.most}"
                notes += [f"`{self._names[at]}`: values {wrong} fail"] * (limited != tensor)
            guess = (*guess[:at], limited, *guess[at + 1 :])
        return guess, notes


def _summing_to(total: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All tuples of places, each below its size, that sum to `total`."""
    if len(sizes) == 1:
        if total < sizes[0]:
            yield (total,)
        return
    for first in range(min(total, sizes[0] - 1) + 1):
        yield from ((first, *rest) for rest in _summing_to(total - first, sizes[1:]))
