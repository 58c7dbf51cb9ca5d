"""One question, asked of a real server, of a client of it that goes on alone, and on the command line: one answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import tunedex
from tunedex.cli.app import run
from tunedex.core.catalog import builtin_signatures
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Measurement, Policy, Resources
from tunedex.core.row import Row
from tunedex.db import open_store

SOFTMAX = next(signature for signature in builtin_signatures() if signature.kernel == "softmax")
H200 = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")
H100 = Device.from_key("nvidia-sm90-132sm-l2_50m-smem_227k-mem_80g")
#: As a client beside the device sees it, with what no key holds.
SEEN = replace(H100, name="NVIDIA H100 80GB HBM3", memory_bytes=int(79.6 * 2**30), l2_bytes=50 * 2**20)


@pytest.fixture(autouse=True)
def _own_process(fresh_settings: None) -> None:
    """No settings of whoever runs this."""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """softmax tuned for 1024 and 8192 rows of 4096 on an H200, and for nothing on an H100."""
    path = tmp_path / "tunedex.db"
    measured: dict[str, Any] = {"resources": Resources(shared_memory_bytes=4096), "peak_memory_bytes": 0}
    measurement = Measurement(50.0, 49.0, 51.0, 30, Policy.EAGER_COLD, 1e-7, True, "bits", **measured)
    answers = {}
    for rows in (1024, 8192):
        times = {64: 50.0, 128: 60.0, 256: 55.0 if rows == 1024 else 45.0}
        answers[SOFTMAX.problem({"rows": rows, "cols": 4096, "dtype": "bfloat16"})] = [
            Row(
                rank,
                Config("triton", {"chunk": chunk}),
                replace(measurement, time_us=times[chunk]),
                SOFTMAX.version,
                "e" * 32,
                default_us=100.0,
            )
            for rank, chunk in enumerate(sorted(times, key=lambda chunk: times[chunk]))
        ]
    with open_store(str(path)) as store:
        store.register_device(H200)
        store.publish(H200.key, answers)
    return path


@contextmanager
def served(database: Path) -> Iterator[str]:
    """The address of a server over ``database``."""
    command = [sys.executable, "-m", "tunedex", "serve", "--port", "0", "--db", str(database)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = (re.search(r"Tunedex answers at http://\S+:(\d+)", line) for line in process.stderr)
        yield f"http://127.0.0.1:{next(match for match in found if match)[1]}"
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()


def test_online_offline_and_on_the_command_line(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [(device, rows) for device in (H200, SEEN) for rows in (1024, 2048, 1000, 4096, 8192, 65536)]
    with served(database) as url:
        clients = {device: tunedex.connect(url, device=device) for device in (H200, SEEN)}
        online = []
        for device, rows in questions:
            asked = {"kernel": "softmax", "device": device.key, "rows": rows, "cols": 4096, "dtype": "bfloat16"}
            online.append(httpx.get(f"{url}/v1/lookup", params=asked, timeout=30).json())
        before = [client.report_misses() for client in clients.values()]
    assert before == [0, 0]
    for (device, rows), answer in zip(questions, online, strict=True):
        alone = clients[device].lookup("softmax", rows, 4096, dtype="bfloat16").to_dict()
        assert json.loads(json.dumps(alone)) == answer
        arguments = ["softmax", f"rows={rows}", "cols=4096", "dtype=bfloat16", "--device", device.key]
        assert run(["lookup", *arguments, "--db", str(database), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == answer
    assert [answer["match"] for answer in online] == [
        *("exact", "near", "default", "near", "exact", "default"),
        *("family", "family", "default", "family", "family", "default"),
    ]
    assert [online[n]["config"]["chunk"] for n in (1, 3)] == [64, 256]
    # 1000, 2048, 4096 and 65536 on the H200, everything on the H100: only exact answers are no misses.
    assert [client.status().misses for client in clients.values()] == [4, 6]
    with open_store(str(database)) as store:
        assert {miss.device for miss in store.list_misses().items} <= {H200.key, H100.key}


def test_a_near_answer_reads_well(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["softmax", "rows=2048", "cols=4096", "dtype=bfloat16", "--db", str(database)]
    assert run(["lookup", *asked, "--device", H200.key]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^match +near$", out, re.M)
    assert re.search(r"^distance +1 doublings$", out, re.M)
    assert re.search(r"^expected loss +(\d+\.\d % of the best time|unknown)$", out, re.M)
    assert re.search(r"^why +softmax:rows=2048\S+ is not tuned on \S+; ranked by 2 tuned problems", out, re.M)
    assert run(["lookup", *asked, "--device", H100.key]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^match +family$", out, re.M)
    assert re.search(rf"^device +{H200.key}$", out, re.M)
    assert re.search(r"^expected loss +unknown$", out, re.M)
