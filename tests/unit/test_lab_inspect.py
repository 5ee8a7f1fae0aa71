"""Inspection: registers, groups of machine code, address registers and distances, of rungs and of files."""

from __future__ import annotations

import json
import signal
import sys
import sysconfig
import threading

import pytest

import tilewright as tw
from tilewright.errors import ConfigRejected, InvalidOperand, MissingDependency, TilewrightError
from tilewright.gpus import ARCHS
from tilewright.jit import compile_source
from tilewright.lab import sass
from tilewright.lab.sass import Instruction
from tilewright.lab.sass_facts import GROUPS, address_registers, distances, group_of, reads_and_writes
from tilewright.lab.starters import new_kernel
from tilewright.lab.subject import every_rung, problem_of
from tilewright.tuning import build

SCALE = """extern "C" __global__ void __launch_bounds__(128) scale(float* x, float a) {
  __shared__ float tile[128];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = a * tile[127 - threadIdx.x];
}
"""


@pytest.fixture(scope="module", autouse=True)
def _disassembler():
    try:
        sass.find_disassembler()
    except MissingDependency as missing:
        pytest.skip(str(missing))


def made(*lines: str) -> list[Instruction]:
    return [
        Instruction(16 * n, "", *(line.split(" ", 1) if " " in line else (line, ""))) for n, line in enumerate(lines)
    ]


@pytest.mark.parametrize(
    ("opcode", "group"),
    [("IMAD.MOV.U32", "moves"), ("MOV", "moves"), ("IMAD.SHL.U32", "logic and shifts"),
     ("LOP3.LUT", "logic and shifts"), ("SHF.L.U32", "logic and shifts"), ("LEA.HI", "integer"),
     ("IMAD.WIDE", "integer"), ("CS2R", "zeroing"),
     ("HMMA.16816.F32", "tensor"), ("HGMMA.64x256x16.F32", "tensor"), ("LDSM.16.M88.4", "shared loads"),
     ("LDGSTS.E.BYPASS.128", "asynchronous copies"), ("STL.64", "spills"), ("NEWOP", "other")],
)  # fmt: skip
def test_an_opcode_belongs_to_its_group(opcode, group):
    assert group_of(opcode) == group


def test_no_opcode_belongs_to_two_groups():
    every = [opcode for opcodes in GROUPS.values() for opcode in opcodes]
    assert len(every) == len(set(every))


def test_registers_are_read_and_written_in_the_widths_of_their_instruction():
    (hmma,) = made("HMMA.16816.F32 R20, R192.reuse, R184, R20")
    assert reads_and_writes(hmma) == ({*range(192, 196), 184, 185, *range(20, 24)}, set(range(20, 24)))
    (load,) = made("LDG.E.128 R28, desc[UR8][R30.64+0x10]")
    assert reads_and_writes(load) == ({30, 31}, set(range(28, 32)))
    (store,) = made("STS.128 [R97+0x800], R48")
    assert reads_and_writes(store) == ({97, *range(48, 52)}, set())
    (compare,) = made("ISETP.GE.AND P0, PT, R3, R5, PT")
    assert reads_and_writes(compare) == ({3, 5}, set())


def test_a_distance_is_from_a_load_to_the_first_that_needs_it_round_the_loop():
    body = made("LDS.64 R4, [R1]", "FFMA R9, R8, R8, R9", "FFMA R9, R5, R8, R9", "LDS R8, [R1+0x8]")
    assert distances(body, "LDS") == [2, 2]  # the second is needed by the FFMA of the next round
    assert distances(body, "LDS", again=False) == [2]
    assert distances(made("LDS R4, [R1]", "MOV R4, RZ", "FADD R5, R4, R4"), "LDS") == [], "written anew before"


def test_address_registers_are_counted_without_descriptors():
    body = made("LDG.E R4, desc[UR6][R2.64]", "LDG.E R5, desc[UR6][R2.64+0x10]", "LDG.E R6, desc[UR6][R8.64]",
                "LDGSTS.E.BYPASS.128 [R19+0x80], desc[UR10][R12.64]")  # fmt: skip
    assert address_registers(body, "LDG") == {"R2": 2, "R8": 1}
    assert address_registers(body, "LDGSTS") == {"R19": 1}


def test_a_label_is_the_address_it_stands_for_and_lines_are_told_outwards():
    (code,) = sass.parse(
        '\t.section\t.text.k,"ax",@progbits\n'
        '\t//## File "in.cuh", line 7 inlined at "k.cu", line 3\n\t//## File "k.cu", line 3\n'
        "        /*0000*/                   FADD R0, R0, R1 ;\n.L_x_1:\n        /*0010*/  FADD R0, R0, R1 ;\n"
        '\t//## File "k.cu", line 4\n        /*0020*/               @P0 BRA `(.L_x_1) ;\n'
    ).values()
    assert code[2].operands == "0x10"
    assert [i.places for i in code] == [(("in.cuh", 7), ("k.cu", 3))] * 2 + [(("k.cu", 4),)]
    assert [[i.address for i in body] for body in sass.loops(code)] == [[16, 32]]


def test_a_rung_is_inspected_whole():
    found = tw.lab.inspect("f09")
    assert found.name == "f09_transposed"
    whole, loop = found.parts[0], found.main_loop
    assert sum(whole.groups.values()) == whole.instructions
    assert loop is not None
    assert loop.groups["fp32 and exp"] == 64 * 128 * 16 // 128  # each thread's FFMA of one step of k
    assert not any(found.seen.values())
    assert (found.boards[0].gpu, found.boards[0].limiter) == ("H200", "registers")
    assert set(loop.distances) == {"LDG", "LDS"}
    assert len(tw.lab.inspect("f09", boards=True).boards) == len(tw.gpus.GPUS)


@pytest.mark.parametrize(
    ("rung", "there", "missing"),
    [
        ("f11", {"LDGSTS"}, {"LDSM", "HMMA"}),
        ("h11", {"LDGSTS", "LDSM", "HMMA"}, {"HGMMA"}),
        ("h12", {"HGMMA"}, {"HMMA"}),
    ],
)
def test_what_a_kernel_copies_and_multiplies_with_is_seen(rung, there, missing):
    seen = tw.lab.inspect(rung).seen
    assert all(seen[name] for name in there)
    assert not any(seen[name] for name in missing)


@pytest.fixture
def no_disassembler(monkeypatch):
    def find():
        raise MissingDependency("nvdisasm is not here. Install it with: pip install nvidia-cuda-nvdisasm")

    monkeypatch.setattr(sass, "find_disassembler", find)


@pytest.mark.usefixtures("no_disassembler")
def test_without_a_disassembler_the_compilers_report_and_occupancy_stay(tmp_path):
    found = tw.lab.inspect("f09")
    assert (found.registers > 100, found.boards[0].limiter, found.main_loop) == (True, "registers", None)
    for shown in (found, tw.lab.inspect_diff("f08", "f09")):
        assert "registers" in str(shown)
        assert "pip install nvidia-cuda-nvdisasm" in shown._repr_html_()
        assert "missing" not in str(shown)  # nobody looked
    (tmp_path / "k.cubin").write_bytes(compile_source(SCALE, entry="scale", arch="sm_80").cubin)
    with pytest.raises(MissingDependency):  # whose spills are counted in the code
        tw.lab.inspect(tmp_path / "k.cubin")


def test_the_main_loop_of_a_kernel_that_only_copies_is_the_one_that_loads_most(tmp_path):
    new_kernel(tmp_path / "mine.cu")
    found = tw.lab.inspect(tmp_path / "mine.cu")
    loads = [part.groups.get("global loads", 0) for part in found.parts[1:]]
    assert found.main_loop is not None
    assert found.main_loop.groups["global loads"] == max(loads) > min(loads)


def test_next_to_attention_a_product_takes_no_d_head():
    found = tw.lab.inspect_diff("a07", "f02", d_head=64)
    assert found.one.config == tw.lab.inspect("a07", d_head=64).config
    assert found.other.config == tw.lab.inspect("f02").config


def test_two_rungs_stand_side_by_side():
    found = tw.lab.inspect_diff("a07", "a08", gpu="A100", config="(128, 64, 64, 4): load_0_2_2_fragments")
    before, after = found.one.main_loop, found.other.main_loop
    assert before is not None
    assert after is not None
    assert len(before.address_registers["LDSM"]) >= 30 > 5 >= len(after.address_registers["LDSM"])
    assert "address registers of LDSM" in str(found)


def test_a_table_of_configs_has_spills_and_says_what_cannot_run():
    found = tw.lab.inspect_space(
        "a03", [f"(128, {size}, 4): load_0_0_0_fragments" for size in ("64, 32", "128, 64")], gpu="A100"
    )
    small, large = found.rows
    assert small.spill_store_bytes == small.stack_bytes == 0
    assert large.spill_store_bytes > 400
    assert large.spill_load_bytes > large.stack_bytes > 0
    (refused,) = tw.lab.inspect_space("f12", ["stages=40"]).rows
    assert refused.registers is None
    assert refused.why_not


def test_a_config_that_the_compiler_dies_of_is_a_row_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    every_rung("f02").compile(problem_of(every_rung("f02"), None, 128), every_rung("f02").default, ARCHS["sm_90a"])
    monkeypatch.setattr(build, "_COMMAND", (sys.executable, "-c", "raise SystemExit(7)"))
    told: list[tuple[float | None, str]] = []
    kept, dead = tw.lab.inspect_space("f02", ["", "tile_m=16,tile_n=16"], say=lambda *what: told.append(what)).rows
    assert kept.registers
    assert dead.why_not == "the compiling process ended with status 7"
    assert told == [(0.5, "1 of 2 configs"), (1.0, "2 of 2 configs")]


def test_ctrl_c_ends_a_table_of_configs_while_one_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    started = tmp_path / "started"
    sleeps = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(600)"
    monkeypatch.setattr(build, "_COMMAND", (sys.executable, "-c", sleeps))

    def interrupt():
        while not started.exists() and not over.wait(0.01):
            pass
        if not over.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    main, over = threading.get_ident(), threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            tw.lab.inspect_space("f02")
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_a_file_is_inspected_as_source_and_as_machine_code(tmp_path):
    (tmp_path / "scale.cu").write_text(SCALE)
    found = tw.lab.inspect(tmp_path / "scale.cu", gpu="A100")
    assert (found.entry, found.threads, found.static_shared_bytes) == ("scale", 128, 512)
    cubin = compile_source(SCALE, entry="scale", arch="sm_80").cubin
    (tmp_path / "scale.cubin").write_bytes(cubin)
    again = tw.lab.inspect(tmp_path / "scale.cubin", threads=128, gpu="A100")
    assert (again.arch, again.registers, again.shared_bytes) == ("sm_80", found.registers, 512)
    assert again.parts == found.parts


def test_a_rung_and_a_file_stand_side_by_side_each_with_its_own_options(tmp_path):
    (tmp_path / "scale.cu").write_text(SCALE)
    found = tw.lab.inspect_diff("f02", tmp_path / "scale.cu", gpu="A100", threads=64, dtype="f32")
    assert found.one.threads == 1024
    assert found.other.threads == 64


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_machine_code_says_its_architecture(tmp_path, arch):
    (tmp_path / "k.cubin").write_bytes(compile_source(SCALE, entry="scale", arch=arch).cubin)
    assert tw.lab.inspect(tmp_path / "k.cubin").arch == arch.rstrip("a")
    assert arch in ARCHS


@pytest.fixture
def ptx(tmp_path):
    (tmp_path / "scale.ptx").write_text(compile_source(SCALE, entry="scale", arch="sm_80").ptx)
    return tmp_path / "scale.ptx"


def test_ptx_without_ptxas_says_what_to_install(ptx, tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="pip install nvidia-cuda-nvcc"):
        tw.lab.inspect(ptx, gpu="A100")


def test_ptx_is_assembled_where_ptxas_is(ptx):
    try:
        sass.find_tool("ptxas", "nvidia-cuda-nvcc")
    except MissingDependency as missing:
        pytest.skip(str(missing))
    found = tw.lab.inspect(ptx, gpu="A100")
    assert (found.threads, found.static_shared_bytes, found.entry) == (128, 512, "scale")
    with pytest.raises(InvalidOperand, match="it has scale"):
        tw.lab.inspect(ptx, entry="other")


@pytest.mark.parametrize(
    ("told", "advice"),
    [("fatal : Unsupported .version 9.9", "of a newer compiler: pip install -U nvidia-cuda-nvcc"),
     ("error : PTX .version 8.0 does not support .target sm_120", "sm_120"),
     ("fatal : SM version specified by .target is higher than default SM version assumed",
      "for a newer GPU: name that one as gpu.")],
)  # fmt: skip
def test_ptx_that_ptxas_refuses_says_what_helps(ptx, tmp_path, monkeypatch, told, advice):
    tool = tmp_path / "ptxas"
    tool.write_text(f'#!/bin/sh\necho "ptxas $5, line 9; {told}" >&2; exit 1\n')
    tool.chmod(0o755)
    monkeypatch.setattr("tilewright.lab.subject.find_tool", lambda name, package: tool)
    with pytest.raises(tw.errors.TilewrightError, match=f"{advice}$"):
        tw.lab.inspect(ptx, gpu="A100")


def test_a_spilling_cubin_counts_its_spills(tmp_path):
    many = "\n".join(f"  float v{i} = x[{i} * 32 + threadIdx.x];" for i in range(64))
    used = " + ".join(f"v{i} * v{63 - i}" for i in range(64))
    text = (
        f'extern "C" __global__ void __launch_bounds__(1024, 2) k(float* x, float a) {{\n{many}\n  __syncthreads();\n'
    )
    text += (
        "  for (int j = 0; j < 9; ++j) {\n" + "".join(f"  v{i} = v{i} * a + v{63 - i};\n" for i in range(64)) + "  }\n"
    )
    text += f"  x[threadIdx.x] = {used};\n}}\n"
    (tmp_path / "k.cu").write_text(text)
    known = tw.lab.inspect(tmp_path / "k.cu", gpu="A100")
    assert known.spill_store_bytes > 0
    (tmp_path / "k.cubin").write_bytes(compile_source(text, entry="k", arch="sm_80").cubin)
    counted = tw.lab.inspect(tmp_path / "k.cubin")
    assert counted.spill_store_bytes == known.spill_store_bytes
    assert counted.spill_load_bytes > 0


@pytest.mark.parametrize(
    ("what", "options", "error", "word"),
    [
        ("nowhere.cu", {}, InvalidOperand, "neither a rung nor a file"),
        ("f09", {"threads": 4}, InvalidOperand, "are of files"),
        ("f09", {"config": "tile_q=4"}, ConfigRejected, "tile_q=4"),
        ("f09", {"config": "tile_k=x"}, ConfigRejected, "whole number"),
        ("f09", {"config": "tile_k=3"}, ConfigRejected, "f09_transposed"),
        ("f09", {"gpu": "Voodoo"}, InvalidOperand, "Voodoo"),
        ("f9", {}, InvalidOperand, "Did you mean 'f09'"),
    ],
)
def test_what_cannot_be_inspected_is_refused(what, options, error, word):
    with pytest.raises(error, match=word):
        tw.lab.inspect(what, **options)


def test_a_file_of_two_kernels_asks_which(tmp_path):
    (tmp_path / "two.cu").write_text(SCALE + SCALE.replace("scale", "other"))
    with pytest.raises(InvalidOperand, match="2 kernels \\(scale, other\\)"):
        tw.lab.inspect(tmp_path / "two.cu")
    assert tw.lab.inspect(tmp_path / "two.cu", entry="other").entry == "other"


def test_a_file_without_a_kernel_and_a_block_that_is_too_large_are_refused(tmp_path):
    (tmp_path / "none.cu").write_text("__device__ int f() { return 1; }\n")
    with pytest.raises(InvalidOperand, match="has no kernel: no __global__"):
        tw.lab.inspect(tmp_path / "none.cu")
    (tmp_path / "one.cu").write_text(SCALE)
    with pytest.raises(InvalidOperand, match="threads=2000 is not from 0 to 1024"):
        tw.lab.inspect(tmp_path / "one.cu", threads=2000)


def test_two_instances_of_a_template_stand_side_by_side_under_the_names_of_the_source(tmp_path):
    (tmp_path / "t.cu").write_text("template <int N> __global__ void fill(float* x) { x[threadIdx.x * N] = N; }\n")
    found = tw.lab.inspect_diff(tmp_path / "t.cu", tmp_path / "t.cu", entry="fill<1>", other_entry="fill<64>")
    assert (found.one.title, found.other.title) == ("t.cu: fill<1>", "t.cu: fill<64>")
    assert found.one.entry != found.other.entry


def test_machine_code_that_is_none_is_said_in_the_tools_words(tmp_path):
    (tmp_path / "x.cubin").write_bytes(b"no cubin")
    with pytest.raises(TilewrightError, match="cuobjdump"):
        tw.lab.inspect(tmp_path / "x.cubin")


def test_results_are_data_and_html():
    for found in (tw.lab.inspect("f02"), tw.lab.inspect_diff("f01", "f02"), tw.lab.inspect_space("f02")):
        assert json.loads(json.dumps(found.to_dict()))
        assert "<table>" in found._repr_html_()


def test_a_suite_of_compiled_configs_needs_no_gpu(tmp_path):
    from tilewright.lab.record import went_wrong
    from tilewright.lab.suite import run_suite

    suite = {
        "name": "built",
        "kind": "compiled",
        "gpu": "A100",
        "cases": [{"rung": "f12", "configs": ["", "stages=3"]}],
    }
    path, records = run_suite(suite, tmp_path)
    assert path == tmp_path / "built-A100.json"
    assert ["4 stages" in records[0]["case"]["config_text"], "3 stages" in records[1]["case"]["config_text"]] == [
        True
    ] * 2
    for record in records:
        assert record["result"]["registers"] > 0
        assert record["result"]["loop"]["groups"]["shared loads"] > 0
        assert record["provenance"]["kernels"]
        assert not went_wrong(record)
