"""What can be tuned: one file a kernel, with its formula, reference, cost, space, default and implementations.

Importable with neither torch nor triton: signatures and spaces are data, the rest is imported when it runs.
"""

from tunedex.kernels.registry import all_kernels, get_kernel

__all__ = ["all_kernels", "get_kernel"]
