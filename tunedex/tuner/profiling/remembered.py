"""Tensors as they were: all that a kernel asks of its operands but their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only


class Remembered(torch.Tensor):
    """A tensor of given shape, strides, dtype and device at a given address, with no memory.

    A view of it lies where a view of the tensor would lie; what an operation would compute lies at address 0, which
    is aligned as new memory is.
    """

    address: int

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: str, address: int
    ) -> Remembered:
        made = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), strides=tuple(strides), dtype=dtype, device=torch.device(device)
        )
        made.address = address
        return made

    def __init__(self, *_: Any) -> None:
        """Nothing is left to do."""

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Remembered({list(self.shape)}, {list(self.stride())}, {self.dtype}, {self.device}, {self.address})"

    def data_ptr(self) -> int:
        return self.address

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What ``func`` returns for tensors of this form, by its own rules for tensors without memory."""
        origins: dict[int, Remembered] = {}

        def empty(tensor: Remembered) -> torch.Tensor:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            origins[made.untyped_storage()._cdata] = tensor
            return made

        device = next(a.device for a in (*args, *(kwargs or {}).values()) if isinstance(a, Remembered))

        def remember(tensor: torch.Tensor) -> Remembered:
            origin = origins.get(tensor.untyped_storage()._cdata)
            address = origin.address + tensor.storage_offset() * tensor.element_size() if origin is not None else 0
            return cls(tensor.shape, tensor.stride(), tensor.dtype, str(device), address)

        result = func(*tree_map_only(Remembered, empty, args), **tree_map_only(Remembered, empty, dict(kwargs or {})))
        return tree_map_only(torch.Tensor, remember, result)
