"""An independent JavaScript implementation of `spec/` gives the same vectors."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SPEC = HERE.parent.parent / "spec"


def run(spec: Path) -> subprocess.CompletedProcess[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    command = [node, str(HERE / "canonical.mjs"), str(spec)]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command


def test_second_implementation_gives_every_vector() -> None:
    done = run(SPEC)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results are those of the vectors" in done.stdout


def test_second_implementation_rejects_a_wrong_vector(tmp_path: Path) -> None:
    copied = tmp_path / "spec"
    shutil.copytree(SPEC, copied)
    path = copied / "vectors" / "numbers.json"
    path.write_text(path.read_text().replace('"1e16"', '"1e+16"'))
    done = run(copied)
    assert done.returncode > 0
    assert "1e+16" in done.stdout
