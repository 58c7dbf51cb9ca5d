"""Devices by what their silicon is."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedex.core import host
from tunedex.core.cuda import cuda_device, from_properties, profile_in
from tunedex.core.device import GIB, KIB, MIB, Device, Environment
from tunedex.core.errors import BadInput

H200 = Device(
    kind="cuda",
    name="NVIDIA H200",
    multiprocessors=132,
    memory_bytes=150_122_659_840,
    compute_capability=(9, 0),
    l2_bytes=60 * MIB,
    shared_memory_bytes=232_448,
    attributes={"uuid": "GPU-1", "power_limit_w": 700},
)
RTX_PRO = Device(
    kind="cuda",
    name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    multiprocessors=188,
    memory_bytes=97_887 * MIB,
    compute_capability=(12, 0),
    l2_bytes=128 * MIB,
    shared_memory_bytes=101_376,
)


def test_the_key_of_an_h200() -> None:
    assert H200.key == "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
    assert (H200.family, H200.target) == ("hopper", 90)


def test_name_power_and_reserves_do_not_split_a_device() -> None:
    max_q = replace(
        RTX_PRO,
        name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        memory_bytes=97_877 * MIB,
        attributes={"power_limit_w": 300},
    )
    assert max_q.key == RTX_PRO.key
    assert max_q.family == RTX_PRO.family == "blackwell"


def test_a_laptop_is_not_the_desktop_card() -> None:
    desktop = Device.from_key("nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g")
    laptop = replace(desktop, multiprocessors=76, l2_bytes=64 * MIB, memory_bytes=16 * GIB)
    assert desktop.family == laptop.family == "ada"
    assert desktop.key != laptop.key


@pytest.mark.parametrize(("one", "other"), [((12, 0), (12, 1)), ((8, 6), (8, 9)), ((9, 0), (10, 0))])
def test_the_whole_compute_capability_is_in_the_key(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert replace(RTX_PRO, compute_capability=one).key != replace(RTX_PRO, compute_capability=other).key


@pytest.mark.parametrize(
    ("gib", "written"),
    [(5.8, 6), (15.6, 16), (23.6, 24), (79.1, 79), (95.6, 96), (99.4, 99), (99.6, 100), (139.8, 140), (178.4, 180)],
)
def test_memory_classes(gib: float, written: int) -> None:
    assert replace(H200, memory_bytes=round(gib * GIB)).key.endswith(f"-mem_{written}g")


@pytest.mark.parametrize(
    ("capability", "family"),
    [((7, 0), "volta"), ((7, 5), "turing"), ((8, 0), "ampere"), ((8, 6), "ampere"), ((8, 9), "ada"), ((9, 0), "hopper"),
     ((10, 0), "blackwell"), ((12, 1), "blackwell"), ((13, 4), "sm134")],
)  # fmt: skip
def test_families(capability: tuple[int, int], family: str) -> None:
    assert replace(H200, compute_capability=capability).family == family


def test_a_slice_is_not_the_card() -> None:
    assert replace(H200, profile="mig-3g.71gb").key == f"{H200.key}-mig-3g.71gb"


def test_attributes_take_no_part_in_equality() -> None:
    assert replace(H200, attributes={}) == H200
    assert hash(replace(H200, attributes={})) == hash(H200)


@settings(max_examples=80, deadline=None)
@given(
    st.tuples(st.integers(1, 99), st.integers(0, 9)),
    st.integers(1, 9999),
    st.integers(0, 9999),
    st.integers(0, 9999),
    st.integers(1, 4096),
    st.sampled_from(["", "mig-3g.71gb", "mig-1g.10gb+me", "vgpu-a100d-20c"]),
)
def test_a_key_describes_a_device_of_that_key(
    capability: tuple[int, int], sms: int, l2_mib: int, smem_kib: int, memory_gib: int, profile: str
) -> None:
    device = Device("cuda", "a GPU", sms, memory_gib * GIB, capability, l2_mib * MIB, smem_kib * KIB, profile=profile)
    again = Device.from_key(device.key)
    assert again.key == device.key
    assert again.compute_capability == capability
    assert (again.multiprocessors, again.l2_bytes, again.shared_memory_bytes) == (sms, l2_mib * MIB, smem_kib * KIB)
    assert (again.profile, again.family, again.target) == (profile, device.family, device.target)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60), st.integers(1, 512), st.sampled_from(["", "avx2", "avx512", "neon"]))
def test_every_cpu_has_a_key_that_describes_it(name: str, cores: int, vector: str) -> None:
    device = Device("cpu", name, cores, GIB, vector=vector)
    again = Device.from_key(device.key)
    assert again.key == device.key
    assert (again.kind, again.multiprocessors, again.vector, again.family) == ("cpu", cores, vector, "cpu")
    assert again.shared_memory_bytes == again.target == 0


def test_trademarks_are_left_out_of_a_cpus_key() -> None:
    assert Device("cpu", "Intel(R) Xeon(R) CPU E5 @ 2.0GHz", 8, 0).key == "cpu-intel_xeon_e5_2_0ghz-8c-none"


def test_a_device_known_by_name_only_is_never_exact() -> None:
    named = Device.from_key("name:NVIDIA_H100_PCIe")
    assert named.key == "name:NVIDIA_H100_PCIe"
    assert (named.kind, named.family, named.target) == ("named", "unknown", 0)
    assert named.key != H200.key


@pytest.mark.parametrize(
    "text",
    [
        "", "h200", "nvidia", "name:", "name:two words", "cpu-x-2c", "cpu-X-2c-avx2", "cpu--2c-avx2",
        "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140", "nvidia-sm9-132sm-l2_60m-smem_227k-mem_140g",
        "NVIDIA-sm90-132sm-l2_60m-smem_227k-mem_140g", "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g-",
        "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g\n", "nvidia-sm90-132sm-l2_60m-smem_227k-mem_141g",
        "nvidia-sm90-0132sm-l2_60m-smem_227k-mem_140g", "nvidia-sm٩0-132sm-l2_60m-smem_227k-mem_140g",
        "nvidia-sm90-132sm-l2_60m-smem_227k-mem_99999999999999999999g",
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"is not a device key; one looks like nvidia-sm90-132sm") as caught:
        Device.from_key(text)
    assert caught.value.field == "device"


@pytest.mark.parametrize("device", [H200, RTX_PRO, host.cpu(), Device.from_key("name:H100")], ids=lambda d: d.key)
def test_documents_round_trip(device: Device) -> None:
    document = json.loads(json.dumps(device.to_dict()))
    assert document["key"] == device.key
    again = Device.from_dict(document)
    assert again == device
    assert again.attributes == device.attributes


def test_what_torch_reports() -> None:
    properties = SimpleNamespace(
        name=" NVIDIA  H200 ",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=150_122_659_840,
        L2_cache_size=60 * MIB,
        shared_memory_per_block_optin=232_448,
    )
    device = from_properties(properties, attributes={"uuid": "GPU-1"})
    assert device == replace(H200, attributes={})
    assert device.attributes == {"uuid": "GPU-1"}


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 2g.20gb", "mig-2g.20gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", "mig-1g.5gb+me"),
        ("GRID A100D-20C", "vgpu-a100d-20c"),
        ("NVIDIA A40-48Q", "vgpu-a40-48q"),
        ("GRID A100D-1-10C", "vgpu-a100d-1-10c"),
        ("NVIDIA H100XM-1-10CME", "vgpu-h100xm-1-10cme"),
        ("NVIDIA RTX6000-Ada-48Q", "vgpu-rtx6000-ada-48q"),
        ("NVIDIA RTX Pro 6000 Blackwell DC-96Q", "vgpu-rtx_pro_6000_blackwell_dc-96q"),
        ("NVIDIA H100 80GB HBM3", ""),
        ("NVIDIA A100-SXM4-80GB", ""),
        ("NVIDIA GeForce RTX 4090", ""),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", ""),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", ""),
        ("Tesla T4", ""),
    ],
)
def test_a_name_tells_its_slice(name: str, profile: str) -> None:
    assert profile_in(name) == profile
    device = cuda_device(
        name=name,
        compute_capability=(8, 0),
        multiprocessors=14,
        memory_bytes=20 * GIB,
        l2_bytes=0,
        shared_memory_bytes=0,
    )
    assert device.profile == profile
    assert Device.from_key(device.key).profile == profile


class TestEnvironment:
    FULL = Environment("580.159", "13.0", "2.11.0+cu130", "3.6.0", "0.61.2", "3.12.3")

    def test_round_trip(self) -> None:
        document = json.loads(json.dumps(self.FULL.to_dict()))
        assert document["key"] == self.FULL.key
        assert Environment.from_dict(document) == self.FULL

    @pytest.mark.parametrize("field", ["driver", "cuda", "torch", "triton", "numba", "python"])
    def test_every_version_is_in_the_key(self, field: str) -> None:
        assert replace(self.FULL, **{field: "9"}).key != self.FULL.key
        assert replace(self.FULL, **{field: ""}).key != self.FULL.key

    def test_what_is_absent_is_empty(self) -> None:
        assert Environment.from_dict({"python": "3.11.7", "shell": "zsh"}) == Environment(python="3.11.7")


class TestHost:
    def test_this_cpu(self) -> None:
        device = host.cpu()
        assert device.kind == "cpu"
        assert device.multiprocessors == host.cores() >= 1
        assert device.memory_bytes > 0
        assert Device.from_key(device.key).key == device.key

    @pytest.mark.parametrize(
        ("text", "name", "vector"),
        [
            ("model name : Fast CPU\nflags : fpu avx2 avx512f\n", "Fast CPU", "avx512"),
            ("model name\t: Old CPU\nflags\t: fpu avx avx2\n\nmodel name: second\n", "Old CPU", "avx2"),
            ("model name : Older\nflags : fpu sse2\n", "Older", ""),
            ("processor : 0\nFeatures : fp asimd\n", None, "neon"),
        ],
    )
    def test_cpuinfo(self, text: str, name: str | None, vector: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host.Path, "read_text", lambda self, **_: text)
        host.cpu.cache_clear()
        try:
            device = host.cpu()
        finally:
            host.cpu.cache_clear()
        assert device.vector == vector
        assert device.name == name if name else device.name

    def test_a_system_that_tells_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: object, **_: object) -> str:
            raise PermissionError

        monkeypatch.setattr(host.Path, "read_text", refuse)
        host.cpu.cache_clear()
        try:
            assert host.cpu().key.startswith("cpu-")
        finally:
            host.cpu.cache_clear()
