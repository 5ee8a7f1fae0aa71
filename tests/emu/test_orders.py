"""Other legal orders: bugs that the usual order hides are found, right kernels stay right, and a number repeats one."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hopper_prelude import kernel
from typer.testing import CliRunner

import tilewright as tw
from tilewright import emu
from tilewright.cli.app import app
from tilewright.errors import EmulatorFault, InvalidOperand

ORDERS = 24

RING = kernel(
    "const int *a, int *out, int n",
    """
    __shared__ u64 full[2], empty[2]; __shared__ __align__(16) int s[2][32];
    if (threadIdx.x == 0) { for (int i = 0; i < 2; ++i) { init(&full[i], 1); init(&empty[i], 32); } init_fence(); }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) for (int k = 0; k < n; ++k) {
            EMPTY
            arrive_expect(&full[k % 2], 128); load(s[k % 2], a + 32 * k, 128, &full[k % 2]);
        }
    } else {
        int sum = 0;
        for (int k = 0; k < n; ++k) {
            FULL
            sum += s[k % 2][threadIdx.x - 32]; arrive(&empty[k % 2]);
        }
        out[threadIdx.x - 32] = sum;
    }
    """,
)
EMPTY, FULL = "wait(&empty[k % 2], (k / 2 & 1) ^ 1);", "wait(&full[k % 2], k / 2 & 1);"

# name: (right, wrong, grid, block, arguments, what the usual order leaves in the last of them)
PLANTED = {
    "a wait that asks once": (
        RING.replace("EMPTY", EMPTY).replace("FULL", FULL),
        RING.replace("EMPTY", EMPTY).replace("FULL", "if (!try_parity(&full[k % 2], k / 2 & 1)) __nanosleep(99);"),
        1, 64, ["i32[256]=ones", "i32[32]=zeros", 8], [8] * 32,
    ),
    "blocks summed by the one with the highest number": (
        *(f"""__global__ void k(int *parts, unsigned *done, int *out) {{
            atomicExch(parts + blockIdx.x, 1); __threadfence();
            unsigned ticket = atomicAdd(done, 1);
            if ({last} != gridDim.x - 1) return;
            int sum = 0;
            for (int b = 0; b < gridDim.x; ++b) sum += atomicAdd(parts + b, 0);
            out[0] = sum;
        }}""" for last in ("ticket", "blockIdx.x")),
        6, 1, ["i32[6]=zeros", "u32[1]=zeros", "i32[1]=zeros"], [6],
    ),
    "a start value from one block": (
        *(f"""__global__ void k(int *out) {{
            if (blockIdx.x == 0) atomic{start};
            __threadfence();
            if (threadIdx.x == 0) atomicAdd(out, 1);
        }}""" for start in ("Add(out, 100)", "Exch(out, 100)")),
        4, 1, ["i32[1]=zeros"], [104],
    ),
    "lanes that exchange without __syncwarp": (
        *(
            f"""__global__ void k(volatile int *s, int *out) {{
            int t = threadIdx.x;
            if (t < 16) s[t] = t + 1;
            {sync}
            if (t >= 16) out[t - 16] = s[t - 16];
        }}"""
            for sync in ("__syncwarp();", "")
        ),
        1,
        32,
        ["i32[16]=zeros", "i32[16]=zeros"],
        list(range(1, 17)),
    ),
    "a copy that may come second": (
        *(kernel("const int *a, int *out", f"""
            __shared__ u64 bar[2]; __shared__ __align__(16) int s[64];
            if (threadIdx.x) return;
            init(bar, 1), init(bar + 1, 1), init_fence();
            arrive_expect(bar, 128); load(s, a, 128, bar);
            {between}
            arrive_expect(bar + 1, 128); load(s + 32, a + 32, 128, bar + 1);
            while (!try_parity(bar + 1, 0)) {{}}
            {after}
            out[0] = s[0] + s[32];
        """) for between, after in (("", "wait(bar, 0);"), ("", "if (!try_parity(bar, 0)) __nanosleep(99);"))),
        1, 1, ["i32[64]=ones", "i32[1]=zeros"], [2],
    ),
    "a warp that trusts another to be ahead": (
        *(f"""__global__ void k(int *done, int *out) {{
            if (threadIdx.x == 0) {{ atomicExch(out, 7); __threadfence(); atomicExch(done, 1); }}
            if (threadIdx.x == 32) {{ {wait} if (atomicAdd(out, 0) == 7) atomicAdd(out, 1); }}
        }}""" for wait in ("while (!atomicAdd(done, 0)) {}", "__nanosleep(1000);")),
        1, 64, ["i32[1]=zeros", "i32[1]=zeros"], [8],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_what_only_some_orders_show_is_found_and_its_number_repeats_it(name):
    right, wrong, grid, block, args, leaves = PLANTED[name]
    result = tw.emulate(right, "k", grid, block, args, explore=ORDERS)
    assert result.arrays[-1].tolist() == leaves
    assert (result.hazards, result.differing, result.explored) == ([], {}, ORDERS)
    usual = tw.emulate(wrong, "k", grid, block, args, hazards="collect")
    assert usual.hazards == []
    assert usual.arrays[-1].tolist() == leaves
    found = tw.emulate(wrong, "k", grid, block, args, hazards="collect", explore=ORDERS)
    assert found.hazards or found.differing
    for hazard in found.hazards:
        number = int(hazard.details["order"].split()[0])
        again = tw.emulate(wrong, "k", grid, block, args, hazards="collect", order=number)
        assert str(hazard) in [str(other) for other in again.hazards]
    for number, other in found.differing.items():
        again = tw.emulate(wrong, "k", grid, block, args, hazards="collect", order=number)
        assert [a.tolist() for a in again.arrays] == [a.tolist() for a in other.arrays]


def test_a_fault_of_an_order_tells_how_to_repeat_it():
    _, wrong, grid, block, args, _ = PLANTED["a wait that asks once"]
    with pytest.raises(EmulatorFault, match=r"order=\d+, seed=3 repeats it \(--order \d+ --seed 3\)") as caught:
        tw.emulate(wrong, "k", grid, block, args, explore=ORDERS, seed=3)
    number = int(caught.value.hazard.details["order"].split()[0])
    with pytest.raises(EmulatorFault) as again:
        tw.emulate(wrong, "k", grid, block, args, order=number, seed=3)
    assert str(again.value) == str(caught.value)


def test_orders_of_one_seed_are_the_same_and_of_two_are_not():
    source = """__global__ void k(int *next, int *out) {
        for (int i = 0; i < 20; ++i) if (threadIdx.x % 32 == 0) out[atomicAdd(next, 1)] = threadIdx.x / 32;
    }"""
    args = ["i32[1]=zeros", "i32[80]=zeros"]

    def left(seed: int) -> list[list[int]]:
        return [tw.emulate(source, "k", 1, 128, args, order=n, seed=seed).arrays[1].tolist() for n in range(1, 5)]

    assert left(0) == left(0)
    assert len({tuple(order) for seed in (0, 1) for order in left(seed)}) > 4


def test_orders_may_be_given_by_time():
    right, _, grid, block, args, _ = PLANTED["a start value from one block"]
    started = time.perf_counter()
    result = tw.emulate(right, "k", grid, block, args, explore="0.2s")
    assert result.explored >= 1
    assert time.perf_counter() - started >= 0.2
    for wrong in ("20", "s", "-1s", -1, 1.5):
        with pytest.raises(InvalidOperand, match="explore"):
            tw.emulate(right, "k", grid, block, args, explore=wrong)


def test_a_late_copy_comes_though_other_warps_spin_until_it_has():
    body = """
    __shared__ __align__(16) int s[32]; __shared__ u64 full; __shared__ volatile int ready;
    if (threadIdx.x == 0) {
        ready = 0; init(&full, 1); init_fence(); arrive_expect(&full, 128); load(s, a, 128, &full);
    }
    __syncthreads();
    if (threadIdx.x < 32) { wait(&full, 0); __threadfence_block(); __syncwarp(); if (threadIdx.x == 0) ready = 1; }
    else { while (!ready) {} __threadfence_block(); }
    out[threadIdx.x] = s[31 - threadIdx.x % 32];
    """
    text, a = kernel("const int *a, int *out", body), np.arange(32, dtype=np.int32)
    result = tw.emulate(text, "k", 1, 64, [a, np.zeros(64, np.int32)], order=1)  # in which copies come last
    assert result.hazards == []
    assert np.array_equal(result.arrays[1], np.tile(a[::-1], 2))


def test_a_wait_that_nobody_ends_is_a_deadlock_in_every_order_and_a_spin_that_ends_is_not_endless():
    never = """__global__ void k(int *flag, int *out) {
        if (threadIdx.x == 0) { while (atomicAdd(flag, 0) == 0) {} out[0] = 1; }
        else if (threadIdx.x == 32 SET) atomicExch(flag, 1);
    }"""
    args = ["i32[1]=zeros", "i32[1]=zeros"]
    with pytest.raises(EmulatorFault) as caught:
        tw.emulate(never.replace("SET", "&& flag == nullptr"), "k", 1, 64, args, order=1)
    assert caught.value.hazard.kind == "endless_loop"
    result = tw.emulate(never.replace("SET", ""), "k", 1, 64, args, explore=ORDERS)
    assert result.arrays[1][0] == 1
    assert not result.hazards


@pytest.mark.parametrize(("rung", "shape"), [("f03", (96, 80, 40)), ("h11", (96, 136, 64)), ("h13", (128, 136, 136))])
def test_rungs_give_the_same_bits_in_other_orders(rung, shape):
    m, n, k = shape
    random = np.random.default_rng(0)
    kind = np.float32 if rung[0] == "f" else np.float16
    a, b = random.normal(size=(m, k)).astype(kind), random.normal(size=(k, n)).astype(kind)
    with tw.emulator():
        usual = tw.matmul(a, b, rung=rung)
    for order in range(1, 6):
        with tw.emulator(order=order):
            assert np.array_equal(tw.matmul(a, b, rung=rung), usual)


def test_clusters_and_cooperative_blocks_are_right_in_other_orders():
    source = kernel(
        "int *out",
        """
        __shared__ int box[32];
        asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
        u32 to; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at(box + threadIdx.x)), "r"(rank() ^ 1));
        asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(to), "r"(blockIdx.x) : "memory");
        asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
        out[blockIdx.x * 32 + threadIdx.x] = box[threadIdx.x];
        """,
    )
    result = emu.emulate(source, "k", 4, 32, ["i32[128]=zeros"], cluster=2, explore=ORDERS)
    assert result.arrays[0].reshape(4, 32)[:, 0].tolist() == [1, 0, 3, 2]
    assert not result.differing


def test_the_command_judges_the_reference_in_every_order(tmp_path):
    _, wrong, *_ = PLANTED["a start value from one block"]
    file = tmp_path / "k.cu"
    file.write_text(wrong)
    words = ["emulate", str(file), "--entry", "k", "--grid", "4", "--block", "1", "--arg", "out=i32[1]=zeros",
             "--reference", "out = out + 104"]  # fmt: skip
    assert CliRunner().invoke(app, words).exit_code == 0
    said = CliRunner().invoke(app, [*words, "--explore", "24", "--json", str(tmp_path / "r.json")])
    found = json.loads((tmp_path / "r.json").read_text())
    assert said.exit_code == 1
    assert found["explored"] == 24
    assert found["differing"]
    order = str(found["differing"][0])
    assert f"--order {order} --seed 0" in found["wrong"][0]
    assert CliRunner().invoke(app, [*words, "--order", order]).exit_code == 1
