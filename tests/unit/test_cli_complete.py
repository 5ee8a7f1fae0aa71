"""A shell completes the names that commands take: rungs, GPUs, suites, exercises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tilewright.cli.app import app
from tilewright.gpus import find_gpu
from tilewright.lab.starters import STARTERS

SOURCE = Path(__file__).parents[2] / "src"


def _leaves(command, name=""):
    for word, each in getattr(command, "commands", {}).items():
        yield from _leaves(each, f"{name} {word}".strip())
    yield name, command


PARAMETERS = {
    (name, each.name): each for name, command in _leaves(typer.main.get_command(app)) for each in command.params
}


def completed(command: str, parameter: str, begun: str) -> set[str]:
    found = PARAMETERS[command, parameter]
    return {each.value for each in found._custom_shell_complete(None, found, begun)}


@pytest.mark.parametrize(
    ("command", "parameter", "begun", "names"),
    [
        ("show", "what", "f0", {*(f"f0{n}" for n in range(1, 10)), "f02x", "f03x", "f08x", "f08y"}),
        ("inspect", "diff", "f1", {"f10", "f11", "f12"}),
        ("explain", "gpu", "RTX", {"RTX3090", "RTX4090", "RTX5070Ti"}),
        ("new", "kind", "t", {"transpose", "tiles", "transaction"}),
        ("report", "suite", "fp32-lad", {"fp32-ladder", "fp32-ladder-sizes"}),
    ],
)
def test_names_are_completed(command, parameter, begun, names):
    assert completed(command, parameter, begun) == names


def test_every_command_that_names_a_gpu_completes_it_by_a_name_that_is_understood():
    commands = [command for command, parameter in PARAMETERS if parameter == "gpu"]
    assert len(commands) > 9
    for command in commands:
        assert {find_gpu(name).name for name in completed(command, "gpu", "")} >= {"H200", "RTX 4090"}


def test_installing_the_completion_leaves_with_status_0(tmp_path):
    environment = os.environ | {"HOME": str(tmp_path), "SHELL": "/bin/bash", "PYTHONPATH": str(SOURCE)}
    # bash stays, as what follows is its own: the command asks which shell started it
    command = f"{sys.executable} -m tilewright --install-completion bash; exit $?"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tilewright" in next((tmp_path / ".bash_completions").iterdir()).read_text()


def test_new_names_every_exercise_in_its_help():
    assert all(starter in PARAMETERS["new", "kind"].help for starter in STARTERS)
