"""Kernels with `// check:` lines: what they say, their score, and what a starter is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.emu import Emulator
from tilewright.errors import CompileError, InvalidOperand, WrongResult
from tilewright.lab.exercise_lines import read_exercise
from tilewright.lab.expression import whole
from tilewright.lab.own_timing import find_opponent, judge, place, product_of
from tilewright.lab.starters import FREE, STARTERS, new_kernel

LESSONS = Path(__file__).parents[2] / "docs" / "learn"


SCALE = """// check: let n = 256
// check: grid n / 128
// check: block 128
// check: arg x = f32[n]=random
// check: arg y = f32[n]=nan
// check: arg a = 2.5
// check: arg n = n
// check: reference y = np.float32(2.5) * x
__global__ void scale(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
"""
TILED = """
__global__ void transpose(const float* x, float* y, int n) {
  __shared__ float tile[32][PITCH];
  int c = blockIdx.x * 32, r = blockIdx.y * 32;
  for (int i = threadIdx.y; i < 32; i += 8) tile[i][threadIdx.x] = x[(r + i) * n + c + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += 8) y[(c + i) * n + r + threadIdx.x] = tile[threadIdx.x][i];
}
"""


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        (tmp_path / "mine.cu").write_text(text)
        return tmp_path / "mine.cu"

    return write


def marks(report) -> dict[str, tuple[int, int]]:
    return {mark.what: (mark.points, mark.of) for mark in report.marks}


@pytest.mark.parametrize("kind", FREE)
def test_a_starter_is_right_and_can_be_improved(tmp_path, kind):
    found = tw.lab.check_kernel(tw.lab.new_kernel(tmp_path / f"{kind}.cu", kind))
    assert found.passed
    assert marks(found)["right"] == (60, 60)
    assert found.score < 100


@pytest.mark.parametrize("kind", [kind for kind in STARTERS if kind not in FREE])
def test_the_exercise_of_a_lesson_passes_with_its_solution_and_not_before(tmp_path, kind):
    exercise = tw.lab.new_kernel(tmp_path / f"{kind}.cu", kind)
    solution = LESSONS / "solutions" / f"{kind}.cu"
    assert not tw.lab.check_kernel(exercise).passed
    solved = tw.lab.check_kernel(solution)
    assert solved.passed
    assert " 0 sectors" not in str(solved), "bulk copies move something too"
    rules = [line for line in solution.read_text().splitlines() if line.startswith("// check:")]
    assert rules == [line for line in exercise.read_text().splitlines() if line.startswith("// check:")]
    assert any(f"--kind {kind}" in lesson.read_text() for lesson in LESSONS.glob("*.md"))


def test_a_kernel_that_moves_no_more_than_it_must_scores_everything(file):
    found = tw.lab.check_kernel(file(SCALE))
    assert (found.passed, found.score, found.costly) == (True, 100, ())


def test_a_tile_gives_the_transpose_its_points_and_a_pitch_those_of_its_conflicts(file):
    head = "".join(
        line + "\n" for line in STARTERS["transpose"].read_text().splitlines() if line.startswith("// check")
    )
    plain = tw.lab.check_kernel(file(head + TILED.replace("PITCH", "32")))
    padded = tw.lab.check_kernel(file(head + TILED.replace("PITCH", "33")))
    assert marks(plain)["coalescing"] == marks(padded)["coalescing"] == (10, 10)
    assert marks(plain)["conflicts"][0] < 2
    assert "32 wavefronts per request, 1 would do" in plain.costly[0]
    assert padded.score == 100


def test_sums_of_blocks_that_meet_in_one_number_need_a_sector_each(file):
    body = "__global__ void total(const float* x, float* sum) { atomicAdd(sum, x[threadIdx.x]); }\n"
    lines = ["grid 4", "block 32", "arg x = f32[32]=random", "arg sum = f32[1]=zeros", "reference sum = 4 * x.sum()",
             "tolerance 1e-4"]  # fmt: skip
    found = tw.lab.check_kernel(file("".join(f"// check: {line}\n" for line in lines) + body))
    assert (marks(found)["coalescing"], found.costly) == ((10, 10), ())


def test_a_wrong_kernel_scores_nothing_and_says_where(file):
    found = tw.lab.check_kernel(file(SCALE.replace("a * x[i]", "x[i]")))
    assert (found.passed, found.score) == (False, 0)
    assert "elements differ" in found.wrong[0]


def test_a_fault_scores_nothing_and_is_reported(file):
    found = tw.lab.check_kernel(file(SCALE.replace("if (i < n)", "if (i < n + 1)").replace("grid n / 128", "grid 3")))
    assert (found.passed, found.score) == (False, 0)
    assert "out_of_bounds" in found.hazards[0]
    assert "out_of_bounds" in str(found)
    assert "white-space: pre-wrap" in found._repr_html_(), "its lines stay lines in a notebook"


def test_a_goal_can_ask_for_a_score(file):
    own, strided = (
        "int i = blockIdx.x * blockDim.x + threadIdx.x;",
        "int i = (blockIdx.x * 128 + threadIdx.x) * 8 % 255;",
    )
    text = SCALE.replace(own, strided).replace("n = 256", "n = 255").replace("grid n / 128", "grid 2")
    text = text.replace("// check: block", "// check: goal score 95\n// check: block")
    found = tw.lab.check_kernel(file(text))
    assert found.marks[0].points == 60
    assert (found.passed, found.least_score) == (False, 95)
    assert tw.lab.check_kernel(file(text.replace("score 95", "score 60"))).passed


def test_a_file_can_ask_for_an_instruction(file):
    text = SCALE.replace("// check: block", "// check: uses ld.global\n// check: uses shfl.sync\n// check: block")
    found = tw.lab.check_kernel(file(text))
    assert (found.passed, found.score) == (False, 0)
    assert (found.wrong, found.without) == ((), ("shfl.sync",))
    assert "right, but the file asks for shfl.sync" in str(found)
    assert tw.lab.banks_of(file(text)).wavefronts == 0, "what it executes is counted all the same"


def test_a_result_without_the_lessons_instruction_scores_nothing(tmp_path):
    """y = x without ldmatrix has no conflicts either."""
    path = new_kernel(tmp_path / "swizzle.cu", "swizzle")
    head = path.read_text().split("__device__")[0]
    path.write_text(
        head + "__global__ void swizzle(const void* x, void* y) {\n"
        "  for (int i = threadIdx.x; i < 128; i += 32) ((uint4*)y)[i] = ((const uint4*)x)[i];\n}\n"
    )
    found = tw.lab.check_kernel(path)
    assert (found.passed, found.score) == (False, 0)
    assert found.without == ("ldmatrix",)


def test_headers_may_lie_in_another_folder(file, tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "scale.cuh").write_text("__device__ inline float by(float a, float x) { return a * x; }\n")
    text = SCALE.replace("a * x[i]", "by(a, x[i])").replace("__global__", '#include "scale.cuh"\n__global__', 1)
    with pytest.raises(CompileError, match="// check: include FOLDER"):
        tw.lab.check_kernel(file(text))
    path = file("// check: include include\n" + text)
    assert tw.lab.check_kernel(path).passed
    assert tw.lab.inspect(path).registers > 0
    assert "\nn = 256: 0 wavefronts" in str(tw.lab.banks_of(path))
    fixed = path.read_text().replace("// check: let n = 256\n", "").replace("[n]", "[256]").replace("n / 128", "2")
    assert "\n0 wavefronts" in str(tw.lab.banks_of(file(fixed.replace("arg n = n", "arg n = 256"))))
    with pytest.raises(InvalidOperand, match=r"mine.cu:1: // check: include nowhere: there is no folder"):
        tw.lab.check_kernel(file("// check: include nowhere\n" + text))


def test_a_costly_line_of_another_file_is_told_with_its_name(file, tmp_path):
    (tmp_path / "wide.cuh").write_text(
        "__device__ inline float by(float a, const float* x, int i) {\n  return a * x[i * 8 % 255];\n}\n"
    )
    text = SCALE.replace("a * x[i]", "by(a, x, i)").replace("__global__", '#include "wide.cuh"\n__global__', 1)
    text = text.replace("* x\n", "* x[np.arange(256) * 8 % 255]\n")
    found = tw.lab.check_kernel(file(text))
    assert found.costly[0].startswith("wide.cuh:2: ld.global")


def test_sizes_can_be_replaced(file):
    path = file(SCALE)
    assert read_exercise(path, {"n": 512}).grid == (4,)
    assert read_exercise(path, {"n": 512}).arguments["x"] == "f32[512]=random"
    with pytest.raises(InvalidOperand, match="no size m; its `let` lines have n"):
        read_exercise(path, {"m": 4})


def test_a_reference_may_be_a_file_next_to_the_kernel(file, tmp_path):
    (tmp_path / "judge.py").write_text(
        "def check(before, after):\n    assert (after['y'] > before['x'] * 9).all(), 'no'\n"
    )
    found = tw.lab.check_kernel(file(SCALE.replace("y = np.float32(2.5) * x", "judge.py")))
    assert "no" in found.wrong[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("// check: block 128\n", ""), "does not say its block"),
        (("// check: reference y = np.float32(2.5) * x\n", ""), "what is right"),
        (("grid n / 128", "grid m / 128"), r"mine.cu:2: // check: grid m / 128: 'm / 128' is not"),
        (("grid n / 128", "grid 0"), "at least 1"),
        (("check: block", "check: blocks"), "'blocks' is not one of"),
        (("arg a = 2.5", "arg 2.5"), "NAME = VALUE"),
        (("arg n = n", "arg m = n"), "m is not one of them"),
        (("// check: block 128", "// check: block 128\n// check: goal 5"), "score N"),
        (("n / 128", "n / 0"), "zero"),
        (("// check: block 128", "// check: let n = 512"), "mine.cu:3: .* an earlier line says let n too"),
        (("// check: block 128", "// check: block 128\n// check: grid 1"), "an earlier line says grid too"),
        (("arg a = 2.5", "arg x = 2.5"), "an earlier line says arg x too"),
        (("// check: block 128", "// check: goal score 1\n// check: goal score 2"), "an earlier line says goal too"),
        (("// check: arg n = n\n", ""), "n is missing"),
    ],
)
def test_what_a_file_does_not_say_is_asked_for(file, change, word):
    with pytest.raises(InvalidOperand, match=word):
        tw.lab.check_kernel(file(SCALE.replace(*change)))


def test_a_file_of_two_kernels_names_one(file):
    two = SCALE + SCALE[SCALE.index("__global__") :].replace("scale", "other")
    with pytest.raises(InvalidOperand, match="2 kernels"):
        tw.lab.check_kernel(file(two))
    assert tw.lab.check_kernel(file(two + "// check: entry other\n")).entry == "other"


@pytest.mark.parametrize(
    ("text", "value"), [("n / 32", 4), ("2 * n + 1", 257), ("-n % 3", 1), ("2 ** 5", 32), ("7", 7)]
)
def test_sizes_are_whole_numbers(text, value):
    assert whole(text, {"n": 128}) == value


@pytest.mark.parametrize("text", ["n.real", "f(n)", "1.5", "__import__('os')", "2 ** 1000", "n +"])
def test_nothing_else_is_worked_out(text):
    with pytest.raises(InvalidOperand):
        whole(text, {"n": 128})


def test_a_starter_never_replaces_a_file_unasked(tmp_path):
    path = tw.lab.new_kernel(tmp_path / "mine.cu")
    path.write_text("mine")
    with pytest.raises(InvalidOperand, match="is there already"):
        tw.lab.new_kernel(path)
    assert path.read_text() == "mine"
    assert tw.lab.new_kernel(path, "sum", force=True).read_text().startswith("// Score it")
    for wrong in ({"kind": "softmax"}, {}):
        with pytest.raises(InvalidOperand, match=r"softmax|mine\.cu"):
            tw.lab.new_kernel(tmp_path / "mine.txt", **wrong)


def test_a_report_is_data_and_html(file):
    found = tw.lab.check_kernel(file(SCALE))
    assert json.loads(json.dumps(found.to_dict()))["score"] == 100
    assert "<table>" in found._repr_html_()


# --- on a device ------------------------------------------------------------------------------------------------------


def test_a_kernel_is_judged_on_a_device_before_it_is_timed(file):
    machine = Emulator("H200")
    exercise = read_exercise(file(SCALE))
    judge(exercise, place(exercise, machine, "sm_90a"), machine)
    exercise = read_exercise(file(SCALE.replace("a * x[i]", "x[i]")))
    with pytest.raises(WrongResult, match="is wrong, so it is not timed"):
        judge(exercise, place(exercise, machine, "sm_90a"), machine)


def test_an_opponent_is_a_rung_or_cublas(file):
    assert find_opponent("cublas") is None
    assert find_opponent("f09").id == "f09_transposed"
    for wrong in ("f99", "a17"):
        with pytest.raises(InvalidOperand, match="neither cublas nor a rung of products"):
            find_opponent(wrong)
    problem = product_of(read_exercise(file(SCALE)))
    assert (problem.m, problem.n, problem.k, problem.dtype) == (256, 256, 256, "f32")
