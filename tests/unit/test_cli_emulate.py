"""`tilewright emulate`: arguments by name and from files, references, and reports for a CI."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from tilewright.cli import main
from tilewright.emu.reference import Reference, differences
from tilewright.errors import InvalidOperand

AXPY = """__global__ void axpy(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
"""
NAMED = ("--arg", "n=256", "--arg", "x=f32[256]=arange", "--arg", "a=2.5", "--arg", "y=f32[256]=ones")


@pytest.fixture
def axpy(tmp_path, monkeypatch, capsys):
    """Runs `tilewright emulate axpy.cu --entry axpy` with more options: (status, stdout, stderr)."""
    (tmp_path / "axpy.cu").write_text(AXPY)

    def call(*more: object, grid: str = "2") -> tuple[int, str, str]:
        fixed = ["emulate", tmp_path / "axpy.cu", "--entry", "axpy", "--grid", grid, "--block", "128"]
        monkeypatch.setattr(sys, "argv", ["tilewright", *map(str, [*fixed, *more])])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


def test_arguments_by_name_in_any_order_and_a_reference(axpy, tmp_path):
    status, out, err = axpy(*NAMED, "--reference", "y = a * x + y", "--save-args", tmp_path)
    assert (status, err.count("WRONG")) == (0, 0)
    assert out.startswith("No fault, and the result is right.\n")
    assert (np.load(tmp_path / "y.npy") == 2.5 * np.arange(256) + 1).all()
    assert (np.load(tmp_path / "x.npy") == np.arange(256)).all()


@pytest.mark.parametrize("place", ["axpy.cu", "axpy.cu/after", "/proc/nowhere"])
def test_a_folder_that_cannot_be_made_is_refused_before_the_run(axpy, tmp_path, monkeypatch, place):
    monkeypatch.setattr("tilewright.cli.emulated.outcome_of", pytest.fail)
    status, out, err = axpy(*NAMED, "--save-args", tmp_path / place)
    assert (status, out) == (2, "")
    assert f"{place} cannot be written" in err
    assert (tmp_path / "axpy.cu").read_text() == AXPY


def test_saved_arrays_replace_none_that_the_launch_read(axpy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("y.npy", np.zeros(256, np.float32))
    status, _, err = axpy(*NAMED[:-2], "--arg", "y=y.npy", "--save-args", ".")
    assert (status, not np.load("y.npy").any()) == (2, True)
    assert "y.npy cannot be written (the same command reads it" in err


def test_the_only_kernel_of_a_file_needs_no_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "axpy.cu").write_text(AXPY)
    (tmp_path / "two.cu").write_text(AXPY + AXPY.replace("axpy", "other"))
    status = []
    for name in ("axpy.cu", "two.cu"):
        fixed = ["tilewright", "emulate", str(tmp_path / name), "--grid", "2", "--block", "128", *NAMED]
        monkeypatch.setattr(sys, "argv", fixed)
        with pytest.raises(SystemExit) as left:
            main()
        status.append(left.value.code)
    assert status == [0, 2]
    assert "2 kernels (axpy, other)" in capsys.readouterr().err


def test_jobs_that_cannot_be_shared_out_say_why(axpy):
    status, out, err = axpy(*NAMED, "--jobs", "2")
    assert (status, out.split("\n")[0]) == (0, "No fault.")
    assert "One process ran it: its blocks all run side by side, in one batch." in err


def test_a_wrong_result_says_where_it_is_most_wrong_and_leaves_with_status_1(axpy, tmp_path):
    status, out, err = axpy(*NAMED, "--reference", "y = a * x", "--json", tmp_path / "r.json")
    assert status == 1
    assert "WRONG: y = a * x: 256 of 256 elements differ by more than 1e-05" in err
    assert "expected" in err
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["fault"], len(report["wrong"])) == (None, 1)
    assert axpy(*NAMED, "--reference", "y = a * x", "--tolerance", "1")[0] == 0
    assert "No fault" not in out


def test_positional_arguments_keep_their_form_and_take_the_parameters_names(axpy, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(256, dtype=np.float32))
    np.savez(tmp_path / "z.npz", y=np.ones(256, np.float32), other=np.zeros(3))
    given = ["--arg", tmp_path / "x.npy", "--arg", f"{tmp_path}/z.npz:y", "--arg", "f32=2.5", "--arg", "i32=256"]
    assert axpy(*given, "--reference", "y == a * x + y", "--save-args", tmp_path / "after")[0] == 0
    assert sorted(path.name for path in (tmp_path / "after").iterdir()) == ["arg0.npy", "arg1.npy"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--arg", "x=f32[256]=ones", "--arg", "5"), "has no name, and others have"),
        (("--arg", "x=f32[256]=ones", "--arg", "x=5"), "given twice"),
        (("--arg", "x=f32[256]=ones"), "y is missing, a is missing, n is missing"),
        ((*NAMED, "--reference", "z = x"), "names 'z'; the buffers are x, y"),
        ((*NAMED, "--reference", "y = zzz"), "NameError"),
        ((*NAMED, "--reference", "y = exit(0)"), "failed (SystemExit: 0)"),
        ((*NAMED, "--reference", "y = 'zzz'"), "could not convert string"),
        ((*NAMED, "--reference", "y = (x"), "is not a Python expression"),
        ((*NAMED, "--reference", "nonsense"), "is not NAME = EXPRESSION"),
        ((*NAMED, "--reference", "gone.py"), "is not a file"),
        ((*NAMED, "--constant", "table"), "is not NAME=VALUE"),
        ((*NAMED, "--explore", "1e999s"), "such as '20s'"),
        ((*NAMED, "--explore", "0s"), "such as '20s'"),
        ((*NAMED, "--explore", "-1"), "such as '20s'"),
        ((*NAMED, "--json", ""), "--json is empty"),
        ((*NAMED[:-2], "--arg", "y=f64[256]=ones"), "array of float64"),
    ],
)
def test_what_cannot_be_run_or_judged_leaves_with_status_2_and_one_error(axpy, more, says):
    status, _, err = axpy(*more)
    assert (status, "Traceback" in err) == (2, False)
    assert says in " ".join(err.split())


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("assert (after['y'] == before['a'] * before['x'] + before['y']).all()", 0, ""),
        ("assert before['n'] == 255, 'n is not 255'", 1, "n is not 255"),
        ("return False", 1, "check returned False"),
        ("return 'too small'", 1, "too small"),
        ("return 1 / 0", 2, "ZeroDivisionError"),
        ("exit()", 2, "judge.py failed (SystemExit: None)"),
    ],
)
def test_a_python_file_judges_the_arrays(axpy, tmp_path, body, status, says):
    (tmp_path / "judge.py").write_text(f"def check(before, after):\n    {body}\n")
    left, _, err = axpy(*NAMED, "--reference", tmp_path / "judge.py")
    assert left == status
    assert says in " ".join(err.split())


def test_a_fault_is_in_sarif_and_junit_at_its_line(axpy, tmp_path):
    given = ["--arg", "f32[256]=ones", "--arg", "f32[256]=ones", "--arg", "f32=2", "--arg", "i32=999"]
    more = ["--sarif", tmp_path / "s.sarif", "--junit", tmp_path / "j.xml", "--json", "-"]
    status, out, err = axpy(*given, *more, grid="3")
    assert status == 1
    assert json.loads(out)["fault"]["line"] == 3
    assert "out_of_bounds" in err
    (run,) = json.loads((tmp_path / "s.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("out_of_bounds", "error")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == str(tmp_path / "axpy.cu")
    assert place["region"] == {"startLine": 3}
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["out_of_bounds"]
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert suite.find("testcase/failure").get("type") == "out_of_bounds"
    assert "y[i] += a * x[i]" in suite.find("testcase/failure").text


def test_reports_of_a_right_kernel_and_of_a_wrong_result(axpy, tmp_path):
    more = ["--sarif", tmp_path / "s.sarif", "--junit", tmp_path / "j.xml"]
    assert axpy(*NAMED, *more)[0] == 0
    assert json.loads((tmp_path / "s.sarif").read_text())["runs"][0]["results"] == []
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") == "0"
    assert axpy(*NAMED, *more, "--reference", "y = x * 0")[0] == 1
    assert json.loads((tmp_path / "s.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "wrong_result"
    assert ElementTree.parse(tmp_path / "j.xml").find("testcase/failure").get("type") == "wrong_result"


def test_all_goes_on_after_a_fault_and_reports_each(axpy, tmp_path):
    given = ["--arg", "f32[300]=ones", "--arg", "f32[256]=ones", "--arg", "f32=2", "--arg", "i32=999"]
    status, out, err = axpy(*given, "--all", "--json", tmp_path / "r.json", grid="3")
    assert (status, "No fault" in out) == (1, False)
    hazards = json.loads((tmp_path / "r.json").read_text())["hazards"]
    assert [h["kind"] for h in hazards] == ["out_of_bounds"] * len(hazards)
    assert len(hazards) > 1
    assert err.count("FAULT") == len(hazards)


def test_constants_of_the_module_are_filled(tmp_path, monkeypatch, capsys):
    source = "__constant__ float table[4]; __global__ void k(float *x) { x[threadIdx.x] = table[threadIdx.x]; }"
    (tmp_path / "k.cu").write_text(source)
    more = ["--arg", "x=f32[4]=nan", "--constant", "table=f32[4]=arange", "--reference", "x = np.arange(4)"]
    monkeypatch.setattr(
        sys, "argv", ["tilewright", "emulate", str(tmp_path / "k.cu"), "--entry", "k", "--block", "4", *more]
    )
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0


def test_bf16_is_compared_as_numbers(tmp_path, monkeypatch, capsys):
    source = "#include <cuda_bf16.h>\n__global__ void k(__nv_bfloat16 *x) { int t = threadIdx.x; x[t] = x[t] * x[t]; }"
    (tmp_path / "k.cu").write_text(source)
    call = [
        "tilewright",
        "emulate",
        str(tmp_path / "k.cu"),
        "--entry",
        "k",
        "--block",
        "4",
        "--arg",
        "x=bf16[4]=arange",
    ]
    for reference, status in (("x = x * x", 0), ("x = x + 1", 1)):
        monkeypatch.setattr(sys, "argv", [*call, "--reference", reference, "--tolerance", "0.01"])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == status


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([2**53 + 1]), np.array([2**53]), False),
        (np.array([np.nan, np.inf], "f4"), np.array([np.nan, np.inf]), True),
        (np.array([np.nan], "f4"), np.array([1.0]), False),
        (np.array([np.inf], "f4"), np.array([-np.inf]), False),
        (np.array([1.000001], "f4"), np.array([1.0]), True),
        (np.array([1.001], "f4"), np.array([1.0]), False),
        (np.array([1.001], "f2"), np.array([1.0]), True),
        (np.array([True]), np.array([False]), False),
        (np.array([1 + 1j], "c8"), np.array([1 + 2j]), False),
        (np.zeros((0, 3), "f4"), np.zeros((0, 3)), True),
    ],
)
def test_arrays_differ_beyond_the_tolerance_of_their_type(got, want, same):
    assert (differences("y", got, want) == "") == same


def test_a_reference_may_loop_over_arguments():
    reference = Reference.of("y = np.stack([x[k] * n for k in range(2)])")
    x = np.ones((2, 3), np.float32)
    assert reference.wrong({"x": x, "n": 2, "y": x}, {"y": 2 * x}, None) == ""


def test_a_reference_names_one_buffer():
    assert Reference.of("y = x == 2").expression == "x == 2"
    with pytest.raises(InvalidOperand):
        Reference.of("y[0] = 5")


def test_a_warning_is_told_and_is_no_failure(tmp_path, monkeypatch, capsys):
    source = tmp_path / "k.cu"
    source.write_text(
        """extern "C" __global__ void k(const float *from, float *to) {
    __shared__ alignas(16) float tile[32]; __shared__ unsigned long long full;
    unsigned bar = __cvta_generic_to_shared(&full), place = __cvta_generic_to_shared(tile), done = 0;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar)); // and no fence after it
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" :: "r"(bar) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
            :: "r"(place), "l"(from), "r"(bar) : "memory");
    }
    __syncwarp();
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(bar) : "memory");
    to[threadIdx.x] = tile[threadIdx.x];
}
"""
    )
    more = ["--sarif", tmp_path / "s.sarif", "--junit", tmp_path / "j.xml", "--json", tmp_path / "o.json"]
    args = ["--arg", "f32[32]=arange", "--arg", "f32[32]=zeros"]
    fixed = ["emulate", source, "--entry", "k", "--grid", "1", "--block", "32"]
    monkeypatch.setattr(sys, "argv", ["tilewright", *map(str, [*fixed, *args, *more])])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert left.value.code == 0
    assert "WARNING: mbarrier_fence_missing" in err
    assert "No fault" in out
    (result,) = json.loads((tmp_path / "s.sarif").read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("mbarrier_fence_missing", "warning")
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") == "0"
    written = json.loads((tmp_path / "o.json").read_text())
    assert written["fault"] is None
    assert [hazard["level"] for hazard in written["hazards"]] == ["warning"]


def test_watch_runs_again_on_each_change_and_shows_what_does_not_compile(tmp_path, monkeypatch, capsys):
    file = tmp_path / "k.cu"
    versions = iter(["a[1] = 2; // too far", "a[0] = ; // no C++", "a[0] = 3; // right"])

    def change(seconds: float) -> None:
        body = next(versions, None)
        if body is None:
            raise KeyboardInterrupt
        file.write_text(f"__global__ void k(int *a) {{\n  {body}\n}}\n")

    file.write_text("__global__ void k(int *a) { a[2] = 1; }")
    monkeypatch.setattr("time.sleep", change)
    monkeypatch.setattr(sys, "argv", ["tilewright", "emulate", str(file), "--entry", "k", "--arg", "i32[1]=zeros",
                                      "--reference", "a = a + 3", "--watch"])  # fmt: skip
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert left.value.code == 0
    assert captured.err.count("FAULT: out_of_bounds") == 2
    assert "a[1] = 2; // too far" in captured.err
    assert captured.err.count("ERROR: ") == 1
    assert "expected an expression" in captured.err
    assert captured.out.count("No fault, and the result is right.") == 1
    assert captured.err.count("Waiting for a change") == 4


def test_check_watches_as_well(tmp_path, monkeypatch, capsys):
    file = tmp_path / "k.cu"
    lines = "// check: grid 1\n// check: block 1\n// check: arg a = i32[1]=zeros\n// check: reference a = a + 3\n"
    versions = iter(["a[0] = 3;"])

    def change(seconds: float) -> None:
        body = next(versions, None)
        if body is None:
            raise KeyboardInterrupt
        file.write_text(f"{lines}__global__ void k(int *a) {{ {body} }}\n")

    file.write_text(f"{lines}__global__ void k(int *a) {{ a[0] = 2; }}\n")
    monkeypatch.setattr("time.sleep", change)
    monkeypatch.setattr(sys, "argv", ["tilewright", "check", str(file), "--watch"])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert left.value.code == 0
    assert captured.out.index("k: FAILED") < captured.out.index("k: passed, 100 of 100")
