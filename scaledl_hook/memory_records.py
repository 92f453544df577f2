"""Records of memory: what a rank holds, and what it would hold elsewhere. Bytes of one rank."""

from typing import Annotated

import msgspec

Bytes = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What a training keeps in memory, counted over the whole model, and the peak of this rank.

    ``param_bytes``, ``trainable_bytes`` (the size of all gradients) and ``state_bytes`` (optimizer
    states, and master copies that are no parameters of the model) are those of the unsharded model.
    ``largest_unit_bytes`` are the parameters that FSDP gathers at once, or would.
    ``activation_bytes`` are the outputs of all layers in one micro-batch of the running size.
    ``keeps_gathered``: FSDP does not give its gathered parameters back after the forward (ZeRO-2).
    ``peak_bytes`` is the most the device ever held for this rank, ``capacity_bytes`` what it has;
    of CPU processes the host's, which those of one machine share.
    """

    param_bytes: Bytes
    trainable_bytes: Bytes
    state_bytes: Bytes
    optimizer: str = ""
    largest_unit_bytes: Bytes = 0.0
    activation_bytes: Bytes | None = None
    keeps_gathered: bool = False
    buckets_are_gradients: bool = False
    peak_bytes: Bytes | None = None
    capacity_bytes: Bytes | None = None


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Peak memory of one rank by what it is for; ``low`` to ``high`` should hold the true peak.

    ``activations`` is what they add at the peak beyond the gradients held by then; ``buffers`` are
    those of the communication; ``other`` is the allocator's, the driver's, and what a measured peak
    holds beyond all that was counted.
    """

    params: Bytes
    gradients: Bytes
    states: Bytes
    activations: Bytes
    buffers: Bytes
    other: Bytes
    low: Bytes
    high: Bytes
    capacity: Bytes | None = None

    @property
    def total(self) -> float:
        """Expected peak."""
        held = self.params + self.gradients + self.states
        return held + self.activations + self.buffers + self.other

    @property
    def fits(self) -> bool | None:
        """Whether it fits; ``None`` where the doubt is larger than the margin, or no limit known.

        >>> parts = dict(params=4, gradients=4, states=8, activations=0, buffers=0, other=0)
        >>> [Footprint(**parts, low=15, high=18, capacity=c).fits for c in (20, 16, 10)]
        [True, None, False]
        """
        if self.capacity is None:
            return None
        if self.high <= self.capacity:
            return True
        return False if self.low > self.capacity else None

    @property
    def margin(self) -> float | None:
        """Bytes left at the expected peak; negative where it does not fit."""
        return None if self.capacity is None else self.capacity - self.total
