"""What NVML tells, asked of one that answers like the real one."""

from __future__ import annotations

import json
import logging
import sys
import types
from typing import Any

import pytest
from fake_nvml import (
    A100,
    FUNCTIONS,
    H200,
    NOT_FOUND,
    NOT_SUPPORTED,
    PCI,
    SLICE,
    UNKNOWN,
    VERSION_MISMATCH,
    FakeNvmlError,
    board,
    busy,
    fake_nvml,
    fake_torch,
    find,
    full_board,
    part_of_h100,
    properties,
    utilisation,
)

from tunedex.core import host
from tunedex.core.cuda import from_properties
from tunedex.core.device import Device
from tunedex.core.errors import DeviceError
from tunedex.tuner import nvml
from tunedex.tuner.devices import energy_j, sample
from tunedex.tuner.nvml import Nvml, Sample, bare_uuid, nvml_of, open_nvml, unsteady

UUID = f"GPU-{H200}"
HERE = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")
HERE = Device(**{**vars(HERE), "attributes": {"uuid": UUID}})
SLICED = full_board(mig=[1, 1], slices=[{"uuid": f"MIG-{SLICE}", "name": "NVIDIA H200 MIG 2g.35gb"}])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a module the installed one, in a process that has not opened NVML yet."""

    def install(module: Any) -> None:
        monkeypatch.setattr(nvml, "_opened", None)
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return install


def test_the_state_beside_a_measurement() -> None:
    module = fake_nvml(full_board(reasons=0x01 | 0x04 | 0x40))
    assert Nvml(module).sample(UUID) == Sample(1980, 51, "power_cap,hardware_thermal")
    assert Nvml(module).sample("GPU-elsewhere") == Sample()


def test_a_clock_is_read_anew_each_time() -> None:
    state = Nvml(fake_nvml(full_board(clock=iter([1980, 1980, 1600, 1600]))))
    assert unsteady([state.sample(UUID) for _ in range(4)], 0.03) == "an SM clock between 1600 and 1980 MHz"


def test_before_driver_535_the_reasons_have_another_name() -> None:
    module = fake_nvml(full_board(old_reasons=0x20), lacks=("nvmlDeviceGetCurrentClocksEventReasons",))
    assert Nvml(module).sample(UUID).throttle == "thermal"


def test_the_state_of_a_slice_is_its_cards() -> None:
    assert Nvml(fake_nvml(SLICED)).sample(f"MIG-{SLICE}") == Sample(1980, 51, "")


def test_energy_is_in_joules_and_a_whole_cards_alone() -> None:
    assert Nvml(fake_nvml(full_board())).energy_j(UUID) == 1234.5
    assert Nvml(fake_nvml(SLICED)).energy_j(f"MIG-{SLICE}") is None
    assert Nvml(fake_nvml(SLICED)).energy_j(UUID) is None
    for error in (NOT_SUPPORTED, UNKNOWN):
        assert Nvml(fake_nvml(full_board(energy_mj=error))).energy_j(UUID) is None
    assert Nvml(fake_nvml(full_board(), lacks=("nvmlDeviceGetTotalEnergyConsumption",))).energy_j(UUID) is None


def test_how_busy_a_card_is() -> None:
    assert Nvml(fake_nvml(full_board(rates=utilisation(37)))).busy_percent(UUID) == 37
    assert Nvml(fake_nvml(full_board(rates=NOT_SUPPORTED))).busy_percent(UUID) is None
    assert Nvml(fake_nvml(SLICED)).busy_percent(f"MIG-{SLICE}") is None


def test_processes_by_their_largest_share() -> None:
    samples = [*busy(p7=20, p8=0), *busy(0.5, p7=80), *busy(3.0, p9=99), *busy(p0=50, p5=101)]
    assert Nvml(fake_nvml(full_board(processes=samples))).processes(UUID, 1.0) == {7: 80, 8: 0}


@pytest.mark.parametrize(
    ("answer", "expected"), [(NOT_FOUND, {}), (FakeNvmlError(0, "Success"), {}), (NOT_SUPPORTED, None), (UNKNOWN, None)]
)
def test_no_process_is_not_the_same_as_not_telling(answer: Exception, expected: Any) -> None:
    assert Nvml(fake_nvml(full_board(processes=answer))).processes(UUID, 1.0) == expected


def test_a_driver_that_comes_back_is_asked_again(installed: Any) -> None:
    for away in (VERSION_MISMATCH, FakeNvmlError(999, "Unknown Error"), OSError("cannot open shared object file")):
        installed(fake_nvml(init=away))
        with pytest.raises(DeviceError, match="the NVIDIA driver does not answer: NVML says"):
            open_nvml()
        sys.modules["pynvml"].nvmlInit = lambda: None
        assert open_nvml() is not None
    installed(fake_nvml(full_board(), init=FakeNvmlError(9, "Driver Not Loaded")))
    assert open_nvml() is None
    sys.modules["pynvml"].nvmlInit = lambda: None
    assert open_nvml() is open_nvml() is not None


def test_what_is_read_beside_a_measurement_never_raises(installed: Any) -> None:
    installed(fake_nvml(init=VERSION_MISMATCH))
    assert sample(HERE) == Sample()
    assert energy_j(HERE) is None
    installed(fake_nvml(full_board()))
    assert (sample(HERE).clock_mhz, energy_j(HERE)) == (1980, 1234.5)
    for unknown in (host.cpu(), Device.from_key(HERE.key)):
        assert nvml_of(unknown) is None
        assert (sample(unknown).clock_mhz, energy_j(unknown)) == (None, None)


@pytest.mark.parametrize(
    "answer",
    [None, "N/A", b"", [], {}, float("nan"), object()],
    ids=["none", "text", "bytes", "list", "dict", "nan", "object"],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_answer_of_another_kind_stays_unknown(
    function: str, answer: Any, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a module that is not NVIDIA's."""
    for card, own, uuid in (
        (full_board(), properties("NVIDIA H200"), UUID),
        (SLICED, part_of_h100(pci_bus_id=PCI[H200]), f"MIG-{SLICE}"),
    ):
        module = fake_nvml(card)
        monkeypatch.setattr(module, function, lambda *_: answer)
        installed(module)
        (found,) = find("auto", fake_torch(own), module)
        assert found.device.key == from_properties(own).key
        json.dumps(found.device.to_dict(), allow_nan=False)
        known = Nvml(module)
        state = known.sample(uuid)
        assert all(value is None or isinstance(value, int | str) for value in vars(state).values())
        assert isinstance(known.energy_j(UUID), float | None)
        assert isinstance(known.busy_percent(UUID), int | None)
        assert isinstance(known.processes(UUID, 1.0), dict | None)
        sample(found.device)


def test_no_module_is_no_nvml(installed: Any) -> None:
    installed(None)
    assert open_nvml() is None


def test_a_foreign_module_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    nvml._log_lack.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [open_nvml(types.SimpleNamespace()) for _ in range(2)] == [None, None]
    assert [record.message for record in caplog.records] == [
        "the installed pynvml has no nvmlInit; what it tells stays unknown"
    ]


def test_boards_and_their_slices() -> None:
    module = fake_nvml(board(A100, "NVIDIA A100-SXM4-80GB"), SLICED)
    assert [(each.uuid, each.card, each.profile) for each in Nvml(module).boards()] == [
        (f"GPU-{A100}", "", ""),
        (UUID, "", ""),
        (f"MIG-{SLICE}", UUID, "mig-2g.35gb"),
    ]


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (UUID, H200),
        (f"MIG-{SLICE}", SLICE),
        (f"MIG-GPU-{H200}/5/0", H200),
        (H200.upper(), H200),
        ("", ""),
        ("GPU-", ""),
    ],
)
def test_bare_uuids(text: str, bare: str) -> None:
    assert bare_uuid(text) == bare
