"""A kernel whose every config is right, and whose space is read from the environment: out = 2 x, in some steps."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from planted import Library, PlantedKernel

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.core.signature import DefaultRule
from tunedex.kernels.base import Constraint, Implementation, Launch, Tensors, Tunable

#: Names a JSON object of each tunable's values, and the largest product of them that the space allows.
SPACE_SETTING = "PLANTED_SPACE"
LIMIT_SETTING = "PLANTED_LIMIT"

SPACE = {"steps": [1, 2, 4, 8], "width": [16, 32, 64], "order": ["rows", "cols"]}


def space() -> Mapping[str, Sequence[int | str]]:
    found: Mapping[str, Sequence[int | str]] = json.loads(os.environ.get(SPACE_SETTING, "null")) or SPACE
    return found


class Steps(Implementation):
    name = "numba"
    kinds = frozenset({"cpu", "cuda"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return tuple(Tunable(name, tuple(values), "planted") for name, values in space().items())

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        limit = int(os.environ.get(LIMIT_SETTING, "1000000"))
        return (Constraint(f"steps * width <= {limit}", lambda v: v["steps"] * v["width"] <= limit),)

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        steps = int(config.values["steps"])

        def launch(operands: Tensors, outputs: Tensors) -> None:
            parts = zip(operands["x"].chunk(steps, -1), outputs["out"].chunk(steps, -1), strict=True)
            for x, out in parts:
                torch.mul(x, 2, out=out)

        return launch


class StepsKernel(PlantedKernel):
    signature = replace(
        PlantedKernel.signature,
        kernel="steps",
        version="000000000002",
        defaults=tuple(
            DefaultRule(kind, {"implementation": "numba", "steps": 4, "width": 32, "order": "rows"})
            for kind in ("cpu", "cuda")
        ),
    )
    implementations = (Steps(), Library())


KERNEL = StepsKernel()
