"""The search for inputs that a network takes: guesses are tried, and each run says more about the next."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import nn

from archiver.inferring.arguments import Argument, GivenInput, forward_arguments, is_state
from archiver.inferring.guess_notes import describe_guesses
from archiver.inferring.inferred import InferredInputs, Input
from archiver.inferring.layer_inputs import KNOWN, has_sequence_layers, layer_inputs, recurrent_states, sounds
from archiver.inferring.refusals import unservable_arguments
from archiver.inferring.trial import TrialResult, equal, run
from archiver.inferring.varying_lengths import limit_length_arguments, mark_varying_lengths
from archiver.rows import RowsMixed, check_repeatable, check_rows_apart
from config.errors import InputError, SourceError, listed
from handlers.networks import TensorGraph

_MOST_TRIALS, _LONGEST_S = 600, 60.0
# Beyond a guess that works but mixes rows, so many more are looked at.
_MORE, _MORE_S = 40, 2.0
# Trials that are followed also where it is known which layer each input reaches.
_FOLLOWED = 10
# More than a recurrent layer is deep: its states have their layers first, and may be taken for rows.
_ROWS, _ROWS_OF_STATES = 2, 5

Guess = tuple[Input, ...]


def find_inputs(network: nn.Module, given: Sequence[GivenInput]) -> InferredInputs:
    """The inputs of `forward` by name; InputError names the flag to say it with where they cannot be found."""
    search = _Search(network, forward_arguments(network, given), given)
    network.eval()
    for rows in (search.rows, 1):
        guess = search.best(rows)
        if guess is not None:
            return search.finished(guess, rows)
    raise search.nothing_works()


class _Search:
    def __init__(self, network: nn.Module, arguments: list[Argument], given: Sequence[GivenInput]) -> None:
        self._network, self._arguments, self._names = network, arguments, [argument.name for argument in arguments]
        self._sequences = has_sequence_layers(network)
        self._choices = [list(self._generic(argument)) for argument in arguments]
        self._settled = [argument.is_mask or argument.is_length or self._keeps(argument) for argument in arguments]
        self.rows = _ROWS_OF_STATES if any(map(self._keeps, arguments)) else _ROWS
        self._by_name = _matched(self._names, given)
        for at, value in self._by_name.items():
            self._choices[at], self._settled[at] = [_as_input(value)], True
            self._names[at] = value.name
        self._widened: set[int] = set()
        self._until = time.monotonic() + _LONGEST_S
        self._tried = 0
        self._first: tuple[Guess, str] | None = None
        self._all_known = False
        self._answered = ""

    def best(self, rows: int) -> Guess | None:
        """The first guess that works and answers each row by itself; failing that, the first that works."""
        works: Guess | None = None
        after = 0
        while True:
            for guess in self._guesses():
                ran = self._run(guess, rows)
                if self._learns(guess, ran):
                    break
                if ran.outputs is not None:
                    if rows == 1 or self._apart(guess, ran):
                        return guess
                    self._refuse_batch_second(guess)
                    if works is None:
                        works, self._until = guess, time.monotonic() + _MORE_S
                after += works is not None
                if after > _MORE or self._tried >= _MOST_TRIALS or time.monotonic() > self._until:
                    return works
            else:
                return works

    def finished(self, guess: Guess, rows: int) -> InferredInputs:
        """With the columns and limits that were found, the lengths that vary, and what a user should know."""
        guess, notes = self._within_limits(guess, rows)
        guess = self._only_used_columns(guess, rows)
        # However long the search took: it is over.
        ran = run(self._network, self._values(guess, rows))
        apart = rows > 1 and self._apart(guess, ran)
        if not apart:
            why = self._why_not_apart(guess, rows)
            notes.append(f"answers to a batch differ from answers one by one, so `batch_sizes` is [1]{why}")
        settled = {at for at, value in self._by_name.items() if value.tensor.varying or value.tensor.mask_of}
        named = dict(zip(self._names, guess, strict=True))
        if counts := [self._names[at] for at, argument in enumerate(self._arguments) if self._counts(at, argument)]:
            inputs, more = limit_length_arguments(self._network, named, counts)
        else:
            inputs, more = mark_varying_lengths(self._network, named, fixed=bool(settled))
        for at, value in self._by_name.items():
            if value.tensor.mask_of:
                inputs[value.name] = replace(guess[at], mask_of=value.tensor.mask_of)
            elif value.tensor.varying:
                inputs[value.name] = replace(guess[at], varies=True)
        unsaid = {name for at, name in enumerate(self._names) if not self._settled[at] and at not in self._widened}
        mine = {name for at, name in enumerate(self._names) if at not in self._by_name}
        more += describe_guesses(self._network, inputs, mine, unsaid)
        return InferredInputs(inputs, ran.shapes, None if apart else 1, ran.names, tuple(notes + more))

    def _counts(self, at: int, argument: Argument) -> bool:
        """Whether it says how much of a sequence is there, and nobody has said how much that may be."""
        return argument.is_length and at not in self._by_name

    def nothing_works(self) -> InputError | SourceError:
        if self._first is None:
            text = f"`--input`: missing for {listed(self._names)}: no layer shows what `forward` takes"
            return InputError(text, hint=self._asked(self._names))
        guess, error = self._first
        if refused := unservable_arguments(self._network, self._names):
            return refused
        if self._answered:
            hint = "a module around it that returns tensors, each with a row for each row of its inputs"
            return SourceError(f"`--source`: {self._answered}", hint=hint)
        shapes = ", ".join(f"`{name}` {tensor}" for name, tensor in zip(self._names, guess, strict=True))
        tried = dict(zip(self._names, guess, strict=True))
        unknown = [name for at, name in enumerate(self._names) if at not in self._by_name]
        if not unknown:
            return SourceError(f"`--input`: the model fails on {shapes}: {error}", hint="another `--input`")
        return InputError(
            f"`--input`: missing for {listed(unknown)}: what `forward` takes was not found in {self._tried} trials; "
            f"of {shapes} it says: {error}",
            hint=" ".join(
                f"--input {name}:{tried[name].dtype}:{','.join(map(str, tried[name].shape))}" for name in unknown
            )
            + ", with their own sizes",
        )

    def _asked(self, names: list[str], shape: str = "3,224,224") -> str:
        return " ".join(f"--input {name}:{'int64:128' if 'id' in name else f'float32:{shape}'}" for name in names)

    def _generic(self, argument: Argument) -> Iterator[Input]:
        """What an argument may be of which nothing is known but its name."""
        if argument.is_mask:
            # Of the length that the others have.
            yield from (Input((-1,), dtype) for dtype in (argument.dtype, "bool", "float32", "int64") if dtype)
        elif argument.is_length:
            yield Input((), argument.dtype or "int64", least=1, most=1)
        else:
            if self._keeps(argument):
                yield from recurrent_states(self._network)
            if argument.is_sound:
                yield from sounds()
            kinds: set[type] = set()
            for layer in self._network.modules():
                if isinstance(layer, KNOWN) and type(layer) not in kinds:
                    kinds.add(type(layer))
                    yield from islice(self._of_layer(layer, argument), 40)
            if argument.dtype not in (None, "float32"):
                yield from (Input(shape, argument.dtype) for shape in ((), (128,), (8,)))

    def _keeps(self, argument: Argument) -> bool:
        """Whether it may be a state of a recurrent layer."""
        return is_state(argument.name) and any(recurrent_states(self._network))

    def _of_layer(self, layer: nn.Module, argument: Argument) -> Iterator[Input]:
        doubles = any(weight.dtype == torch.float64 for weight in layer.parameters())
        for wanted in layer_inputs(layer, self._network, sequence=self._sequences or argument.is_sequence):
            dtype = argument.dtype or ("float64" if doubles and wanted.dtype == "float32" else wanted.dtype)
            yield replace(wanted, dtype=dtype)

    def _guesses(self) -> Iterator[Guess]:
        """All combinations, those of the likeliest first."""
        sizes = [len(choices) for choices in self._choices]
        for total in range(sum(sizes) - len(sizes) + 1 if all(sizes) else 0):
            for places in _summing_to(total, sizes):
                guess = tuple(choices[place] for choices, place in zip(self._choices, places, strict=True))
                length = next((tensor.shape[tensor.sequence] for tensor in guess if tensor.sequence is not None), 1)
                yield tuple(replace(tensor, shape=(length,)) if tensor.shape == (-1,) else tensor for tensor in guess)

    def _run(self, guess: Guess, rows: int) -> TrialResult:
        self._tried += 1
        left_s = max(0.1, self._until - time.monotonic())
        follow = self._tried <= _FOLLOWED or not all(self._settled)
        ran = run(self._network, self._values(guess, rows), longest_s=min(10, left_s), follow=follow)
        if ran.answered and ran.outputs is None:
            self._answered = self._answered or ran.error
        if ran.outputs is None and (self._first is None or not self._all_known):
            self._all_known = all(self._settled)
            self._first = (guess, ran.error)
        return ran

    def _values(self, guess: Guess, rows: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [tensor.values(rows, generator) for tensor in guess]

    def _learns(self, guess: Guess, ran: TrialResult) -> bool:
        """Whether the run says more about an argument than was known."""
        for touch in ran.touches:
            if not self._settled[touch.argument]:
                self._settled[touch.argument] = True
                wanted = list(self._of_layer(touch.layer, self._arguments[touch.argument]))
                self._choices[touch.argument] = wanted or self._choices[touch.argument]
                return True
        return ran.outputs is None and bool(ran.widths) and self._widens(guess, *ran.widths[0])

    def _widens(self, guess: Guess, came: int, wanted: int) -> bool:
        """An input that goes into a layer together with others is as wide as what is missing there."""
        free = [at for at, settled in enumerate(self._settled) if not settled and guess[at].shape]
        if len(free) > 1:
            names = [self._names[at] for at in free]
            text = f"`--input`: missing for {listed(names)}: together they go into a layer of {wanted}"
            raise InputError(text + ", which does not say how wide each is", hint=self._asked(names, "N"))
        free = free or [
            at
            for at, tensor in enumerate(guess)
            if len(tensor.shape) == 1
            and tensor.sequence is None
            and at not in self._by_name
            and tensor.dtype == "float32"
        ]
        if len(free) != 1 or free[0] in self._widened:
            return False
        at = free[0]
        self._widened.add(at)
        width = (guess[at].shape[0] if len(guess[at].shape) == 1 else 1) + wanted - came
        if width < 1:
            return False
        self._choices[at].insert(0, Input((width,), self._arguments[at].dtype or "float32"))
        return True

    def _apart(self, guess: Guess, ran: TrialResult) -> bool:
        """Whether each row is answered as it is alone."""
        values = self._values(guess, self.rows)
        alone = [run(self._network, [value[at : at + 1] for value in values]) for at in range(2)]
        return all(
            single.outputs is not None
            and equal(single.outputs, tuple(value[at : at + 1] for value in ran.outputs or ()))
            for at, single in enumerate(alone)
        )

    def _why_not_apart(self, guess: Guess, rows: int) -> str:
        """The line that mixes rows; SourceError for what is random, or fails on one row."""
        graph, values = TensorGraph(self._network, torch.float32), self._values(guess, rows)
        check_repeatable("`--source`", graph, values, rows)
        try:
            check_rows_apart("`--source`", graph, values, rows)
        except RowsMixed as err:
            if rows > 1 and run(self._network, [value[:1] for value in values]).outputs is None:
                raise
            return f": {err.message.removeprefix('`--source`: ')}"
        return ""

    def _refuse_batch_second(self, guess: Guess) -> None:
        ran = run(self._network, self._values(guess, 2), follow=True)
        for name, layer in self._network.named_modules():
            if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and not layer.batch_first and name in ran.second:
                text = f"`--source`: its layer `{name}` takes the batch as its second dimension, but requests are rows"
                raise InputError(text, hint=f"{type(layer).__name__}(…, batch_first=True), or transpose in `forward`")

    def _only_used_columns(self, guess: Guess, rows: int) -> Guess:
        """Where each column of an input goes a way of its own, the last that is used ends it."""
        ran = run(self._network, self._values(guess, rows), follow=True)
        for at, tensor in enumerate(guess):
            touches = [touch for touch in ran.touches if touch.argument == at]
            if len(tensor.shape) == 1 and touches and all(len(touch.shape) == 1 for touch in touches):
                columns = max(touch.offset for touch in touches) + 1
                narrow = replace(tensor, shape=(columns,), sequence=None)
                smaller = (*guess[:at], narrow, *guess[at + 1 :])
                if (
                    at not in self._by_name
                    and columns < tensor.shape[0]
                    and self._run(smaller, rows).outputs is not None
                ):
                    guess = smaller
        return guess

    def _within_limits(self, guess: Guess, rows: int) -> tuple[Guess, list[str]]:
        """Whole numbers up to the largest that works."""
        notes = []
        for at, tensor in enumerate(guess):
            if tensor.dtype not in ("int32", "int64") or tensor.most is None or self._arguments[at].is_length:
                continue
            largest = self._largest_of(at, guess, rows, tensor.most)
            if largest < tensor.most:
                guess = (*guess[:at], replace(tensor, most=largest), *guess[at + 1 :])
                notes.append(f"`{self._names[at]}`: values beyond {largest} fail")
        return guess, notes

    def _largest_of(self, at: int, guess: Guess, rows: int, high: int) -> int:
        low, middle = 0, high
        while low < high:
            values = self._values(guess, rows)
            values[at] = torch.full_like(values[at], middle)
            works = run(self._network, values).outputs is not None
            low, high = (middle, high) if works else (low, middle - 1)
            middle = (low + high + 1) // 2
        return low


def _summing_to(total: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if len(sizes) == 1:
        if total < sizes[0]:
            yield (total,)
        return
    for first in range(min(total, sizes[0] - 1) + 1):
        yield from ((first, *rest) for rest in _summing_to(total - first, sizes[1:]))


def _matched(names: list[str], given: Sequence[GivenInput]) -> dict[int, GivenInput]:
    """Which argument each `--input` is for: by its name, or by its place where all are given."""
    if all(value.name in names for value in given):
        return {names.index(value.name): value for value in given}
    if len(given) == len(names):
        return dict(enumerate(given))
    strange = next(value.name for value in given if value.name not in names)
    raise InputError(f"`--input`: got `{strange}`, allowed: {listed(names)}, the arguments of `forward`")


def _as_input(given: GivenInput) -> Input:
    tensor = given.tensor
    if tensor.mask_of is not None:
        named = "dtype" in tensor.model_fields_set
        return Input((-1,), tensor.dtype if named else "bool")
    varying = next((at for at, side in enumerate(tensor.shape) if not isinstance(side, int)), None)
    return Input(tensor.largest_shape, tensor.dtype, varying)
