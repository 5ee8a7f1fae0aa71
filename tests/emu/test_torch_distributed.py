"""Two processes, over gloo: tensors that they share (torch's DTensor), layers, and attention over a shared context."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("script", ["sharded_products.py", "ring_attention.py"])
def test_two_processes_get_what_one_gets(script):
    script = str(Path(__file__).with_name(script))
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), port], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--master-port", str(free_port()), str(example)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right on 2 processes (cpu); the first weight's share is (128, 64)" in done.stdout
