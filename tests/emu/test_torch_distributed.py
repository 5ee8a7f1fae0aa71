"""Two processes, over gloo: tensors that they share (torch's DTensor), layers, and attention over a shared context."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("script", ["sharded_products.py", "ring_attention.py"])
def test_two_processes_get_what_one_gets(script, tmp_path):
    script = str(Path(__file__).with_name(script))
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [one.strip().splitlines()[-1:] for one in told] == [["right"], ["right"]], "\n\n".join(told)


def test_the_example_of_a_shared_layer_runs_as_its_page_says():
    example = Path(__file__).parents[2] / "examples" / "tensor_parallel.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right on 2 processes (cpu); the first weight's share is (128, 64)" in done.stdout
