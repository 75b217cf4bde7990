"""What flows through a foreign ONNX graph, as a chain of steps and a selection of the elements behind them.

    observation ─ step ─ step ─ … ─ step ─ elements[selection] ─ reshape to the file's shape

The elements of a chain are numbered as the project orders them, images (height, width, channels). Everything that a
graph does to their places (Transpose, Slice, Gather, Split, Reshape, the order of several inputs) is one selection,
which lies behind the steps. Functions of single elements go in front of it; a Dense takes it into its rows, or the
Dense before gives up the columns that nobody reads. So no selection is left in a chain, unless there is no Dense that
could take it: then it becomes a Dense of zeros and ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Convolution,
    Dense,
    Doubles,
    ForeignError,
    LayerNorm,
    Recurrent,
    Step,
)
from quarl.policy.spec import Activation

Places = NDArray[np.int64]

# A graph of a few bytes can ask for a Dense of terabytes.
LARGEST_KERNEL = 1 << 26


class Statistic(Enum):
    """The statistic that a tensor is of the row that its elements are."""

    MEAN = "mean"
    CENTRED = "the row less its mean"
    SQUARED = "the centred row's squares"
    VARIANCE = "variance"
    DEVIATION = "standard deviation"
    LOG_SUM = "logarithm of the sum of exponentials"


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that depends on the observation.

    Attributes:
        steps: of the chain, whose result has ``width`` elements.
        width: elements behind the last step.
        selection: which of them the tensor holds, in the file's order.
        shape: in the file, with a batch of 1.
        image: (height, width, channels) behind the last step, where that is an image.
        tensor: the file's name of the tensor whose numbers the chain gives; another one behind a Softmax or an ArgMax.
        observed: elements of the raw observation.
        order_only: a Softmax or the like was left out: only which element is the largest still holds.
        is_index: the tensor is the place of the largest element.
        statistic: the tensor is not these elements but a statistic of them, which no chain holds by itself.
        epsilon: what was added to a variance.
    """

    steps: tuple[Step, ...]
    width: int
    selection: Places
    shape: tuple[int, ...]
    image: tuple[int, int, int] | None
    tensor: str
    observed: int
    order_only: bool = False
    is_index: bool = False
    statistic: Statistic | None = None
    epsilon: float = 0.0

    @property
    def size(self) -> int:
        """Elements that the tensor holds."""
        return len(self.selection)

    def numbers(self) -> Places:
        """Return each element's number, in the tensor's shape."""
        return np.arange(self.size).reshape(self.shape)

    def select_elements(self, numbers: np.ndarray) -> Value:
        """Return the elements with these numbers, in the shape of ``numbers``."""
        return replace(self, selection=self.selection[numbers.reshape(-1)], shape=numbers.shape)

    def in_order(self) -> bool:
        """Return whether the tensor is the last step's result as it is."""
        return self.size == self.width and bool((self.selection == np.arange(self.width)).all())


def affine(value: Value, scale: np.ndarray, offset: np.ndarray, what: str) -> Value:
    """x · scale + offset, each of the tensor's elements by its own numbers (broadcast as the file says)."""
    for numbers in (scale, offset):
        if not np.isfinite(numbers).all():
            raise ForeignError(f"{what} must have finite constants.", "Train or export the policy again.")
    value, scale, offset = _each(value, (scale, 1.0), (offset, 0.0), what)
    return replace(value, steps=(*value.steps, Affine(scale, offset)))


def clip(value: Value, low: np.ndarray, high: np.ndarray, what: str) -> Value:
    """min(max(x, low), high), element by element."""
    if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
        raise ForeignError(f"{what} must have bounds with low ≤ high.", "Export the policy again.")
    value, low, high = _each(value, (low, -np.inf), (high, np.inf), what)
    return replace(value, steps=(*value.steps, Clip(low, high)))


def activate(value: Value, activation: Activation, slope: float = 0.01) -> Value:
    """Return an activation of each element."""
    return replace(value, steps=(*value.steps, Activate(activation, slope)))


def dense(value: Value, kernel: np.ndarray, bias: np.ndarray, shape: tuple[int, ...]) -> Value:
    """x W + b: kernel (n, m) in the file's order of x; ``shape`` of the result in the file."""
    inputs, outputs = kernel.shape
    if inputs != value.size:
        raise ForeignError(f"A kernel must have {value.size} rows, got {inputs}.", "Export the policy again.")
    if not value.in_order():
        value = _fold_selection(value)
        if value.width * outputs > LARGEST_KERNEL:
            raise ForeignError(f"The kernel of {value.width} × {outputs} is too large.", "Select fewer inputs.")
        rows = np.zeros((value.width, outputs))
        np.add.at(rows, value.selection, kernel.astype(np.float64))  # an element read twice counts twice
        kernel = rows
    step = Dense(kernel.astype(np.float32), np.broadcast_to(bias, (outputs,)).astype(np.float32))
    return _fresh(value, step, np.arange(outputs), shape, None)


def recurrent(value: Value, step: Recurrent, shape: tuple[int, ...]) -> Value:
    """Return the hidden state of a recurrent layer that is fed these elements; ``shape`` of it in the file."""
    if value.image is not None:
        raise ForeignError("A recurrent layer must take a vector, got an image.", "Export a policy of vectors.")
    if len(step.kernel) != value.size:
        message = f"A recurrent layer must get {len(step.kernel)} elements, got {value.size}."
        raise ForeignError(message, "Export the policy for one observation, one period.")
    if not value.in_order():
        value = _fold_selection(value)
        rows = np.zeros((value.width, step.kernel.shape[1]))
        np.add.at(rows, value.selection, step.kernel.astype(np.float64))
        step = replace(step, kernel=rows.astype(np.float32))
    units = len(step.state_kernel)
    return _fresh(value, step, np.arange(units), shape, None)


def convolution(value: Value, kernel: np.ndarray, bias: np.ndarray, stride: int, what: str) -> Value:
    """Return a convolution of (1, channels, height, width) in the file with a kernel (out, in, side, side)."""
    if value.image is None or not np.array_equal(value.selection, channels_first_order(value.image)):
        message = f"{what} must take the whole image, channels first."
        raise ForeignError(message, "Give the network one whole image as its only input.")
    height, width, channels = value.image
    outputs, inputs, side, other = kernel.shape
    rows, columns = (height - side) // stride + 1, (width - side) // stride + 1
    if inputs != channels or side != other or min(rows, columns) < 1:
        message = f"{what}: the kernel must be square, in one group, for {value.image}, got {kernel.shape}."
        raise ForeignError(message, "Use square kernels.")
    step = Convolution(kernel.transpose(2, 3, 1, 0).astype(np.float32), bias.astype(np.float32), stride)
    image = (rows, columns, outputs)
    return _fresh(value, step, channels_first_order(image), (1, outputs, rows, columns), image)


def layer_norm(value: Value, gamma: np.ndarray, beta: np.ndarray, epsilon: float, what: str) -> Value:
    """Return a layer normalisation over all elements of a row; γ and β in the file's order."""
    value = _fold_selection(value)
    if value.image is not None:
        raise ForeignError(f"{what} must normalise a row, got an image.", "Put it after the first dense layer.")
    if len(np.unique(value.selection)) != value.width or value.size != value.width:
        value = materialise(value)
    gammas, betas = np.empty(value.width), np.empty(value.width)
    gammas[value.selection], betas[value.selection] = gamma, beta  # the mean does not care for the order
    step = LayerNorm(gammas.astype(np.float32), betas.astype(np.float32), epsilon)
    return replace(value, steps=(*value.steps, step))


def materialise(value: Value) -> Value:
    """Return the tensor as the last step's result: in a Dense before it, or in one of zeros and ones."""
    value = _fold_selection(value)
    if value.in_order():
        return value
    if value.width * value.size > LARGEST_KERNEL:
        raise ForeignError(f"The kernel of {value.width} × {value.size} is too large.", "Select fewer inputs.")
    kernel = np.zeros((value.width, value.size), np.float32)
    kernel[value.selection, np.arange(value.size)] = 1.0
    return _fresh(value, Dense(kernel, np.zeros(value.size, np.float32)), np.arange(value.size), value.shape, None)


def channels_first_order(image: tuple[int, int, int]) -> Places:
    """Element numbers of an image (height, width, channels) in the order (channels, height, width)."""
    return np.arange(int(np.prod(image))).reshape(image).transpose(2, 0, 1).reshape(-1)


def _fresh(
    value: Value, step: Step, selection: Places, shape: tuple[int, ...], image: tuple[int, int, int] | None
) -> Value:
    return Value((*value.steps, step), len(selection), selection, shape, image, value.tensor, value.observed)


def _fold_selection(value: Value) -> Value:
    """Return the selection moved into the columns of the last Dense, where only elementwise steps follow it."""
    if value.in_order():
        return value
    tail: list[Step] = []
    for index in range(len(value.steps) - 1, -1, -1):
        step = value.steps[index]
        if isinstance(step, Dense):
            chosen = Dense(step.kernel[:, value.selection], step.bias[value.selection])
            steps = (*value.steps[:index], chosen, *reversed(tail))
            return replace(value, steps=steps, width=value.size, selection=np.arange(value.size))
        if not isinstance(step, Affine | Clip | Activate):
            break
        tail.append(restrict_step(step, value.selection))
    return value


def _each(
    value: Value, first: tuple[np.ndarray, float], second: tuple[np.ndarray, float], what: str
) -> tuple[Value, Doubles, Doubles]:
    """Numbers per element, brought before the selection; what is not selected gets the neutral number."""
    try:
        shape = np.broadcast_shapes(value.shape, first[0].shape, second[0].shape)
    except ValueError as error:
        raise ForeignError(f"{what}: shapes do not match ({error}).", "Export the policy again.") from error
    if int(np.prod(shape)) != value.size:
        message = f"{what} must keep the shape {value.shape}, got {shape}."
        raise ForeignError(message, "Export the policy for a batch of one observation.")
    value = replace(value, shape=shape)
    if all(numbers.size == 1 for numbers, _ in (first, second)):
        low, high = (numbers.astype(np.float64).reshape(1) for numbers, _ in (first, second))
        return value, low, high
    if not all(_alike(value.selection, np.broadcast_to(n, shape).reshape(-1)) for n, _ in (first, second)):
        value = materialise(value)
    results = []
    for numbers, neutral in (first, second):
        full_values = np.full(value.width, neutral)
        full_values[value.selection] = np.broadcast_to(numbers, shape).reshape(-1)
        results.append(full_values)
    return value, results[0], results[1]


def _alike(selection: Places, numbers: np.ndarray) -> bool:
    """Return whether elements that are there more than once have the same number each time."""
    _, first, inverse = np.unique(selection, return_index=True, return_inverse=True)
    return bool((numbers[first][inverse] == numbers).all())


def pair_of(step: Affine | Clip) -> tuple[Doubles, Doubles]:
    """Return the step's numbers: scale and offset, or the bounds."""
    return (step.scale, step.offset) if isinstance(step, Affine) else (step.low, step.high)


def restrict_step(step: Step, places: Places) -> Step:
    """Return an elementwise step for the elements at these places."""
    if not isinstance(step, Affine | Clip):
        return step
    first, second = (numbers if len(numbers) == 1 else numbers[places] for numbers in pair_of(step))
    return type(step)(first, second)
