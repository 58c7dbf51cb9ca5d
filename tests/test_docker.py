"""The image and the compose file pass their linters, and agree with the code on ports, commands and settings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "docker" / "Dockerfile.server"
COMPOSE = ROOT / "docker" / "compose.yaml"
TOOLS = Path(sys.executable).parent


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def test_hadolint_has_no_finding() -> None:
    result = run(TOOLS / "hadolint", DOCKERFILE)
    assert (result.returncode, result.stdout) == (0, "")


def test_hadolint_would_find_a_fault(tmp_path: Path) -> None:
    faulty = tmp_path / "Dockerfile"
    faulty.write_text("FROM python\nRUN pip install tunedex\n")
    assert run(TOOLS / "hadolint", faulty).returncode != 0


def test_compose_file_fits_the_schema() -> None:
    result = run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert result.returncode == 0, result.stdout + result.stderr


def test_image_runs_the_server_as_another_user_than_root() -> None:
    final = DOCKERFILE.read_text().split("FROM ")[-1]
    assert 'ENTRYPOINT ["tuner", "serve", "--host", "0.0.0.0"]' in final
    assert re.search(r"^EXPOSE 8421$", final, re.M)
    assert re.search(r"^USER [1-9]\d+$", final, re.M)
    assert re.search(r"^HEALTHCHECK .*\n.*http://127\.0\.0\.1:8421/healthz", final, re.M)


def test_image_takes_what_the_build_context_lets_through() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.M)
    sources = {source for line in copied for source in line.split()}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


def test_no_password_has_a_default(services: dict[str, Any]) -> None:
    secrets = [
        value
        for service in services.values()
        for name, value in service.get("environment", {}).items()
        if "PASSWORD" in name
    ]
    assert len(secrets) == 3
    assert all(re.fullmatch(r"\$\{[A-Z_]+:\?.+\}", value) for value in secrets)
    example = (ROOT / "docker" / "env.example").read_text()
    assert re.search(r"^POSTGRES_PASSWORD=$", example, re.M)
    assert "docker/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_server_starts_after_the_migration(services: dict[str, Any]) -> None:
    assert services["migrate"]["entrypoint"] == ["tuner", "db", "upgrade"]
    assert services["migrate"]["depends_on"]["database"]["condition"] == "service_healthy"
    assert services["server"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["server"]["environment"]["TUNEDEX_DB"].startswith("postgresql://")
    assert services["server"]["environment"] == services["migrate"]["environment"]
