"""Clusters: who is where, memory of peers, the barrier of a cluster, multicast, and blocks that end too early."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_prelude import fault, kernel, run

import tilewright as tw
from tilewright.errors import ConfigRejected, InvalidOperand
from tilewright.jit import compile_source
from tilewright.jit.tensor_map import TensorMap


def test_special_registers_place_each_block_in_its_cluster():
    reads = ["%ctaid.x", "%ctaid.y", "%clusterid.x", "%clusterid.y", "%cluster_ctaid.x", "%cluster_ctaid.y",
             "%cluster_ctarank", "%cluster_nctaid.x", "%cluster_nctaid.y", "%cluster_nctarank", "%nclusterid.x",
             "%nclusterid.y"]  # fmt: skip
    body = "".join(f'asm("mov.u32 %0, %{name};" : "=r"(v)); row[{k}] = v;' for k, name in enumerate(reads))
    text = kernel(
        "u32 *out",
        f"""u32 v; u32 *row = out + (blockIdx.y * gridDim.x + blockIdx.x) * 13; {body}
        asm("{{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }}" : "=r"(v)); row[12] = v;""",
        "__cluster_dims__(2, 3, 1)",
    )
    rows = run(text, ["u32[312]=zeros"], grid=(4, 6), block=1).arrays[0].reshape(6, 4, 13)
    for y in range(6):
        for x in range(4):
            assert rows[y, x].tolist() == [x, y, x // 2, y // 3, x % 2, y % 3, x % 2 + 2 * (y % 3), 2, 3, 6, 2, 2, 1]


def test_a_launch_may_bring_the_cluster_and_has_to_be_made_of_whole_ones():
    text = kernel("u32 *out", "if (threadIdx.x == 0) out[blockIdx.x] = rank();")
    assert run(text, ["u32[6]=zeros"], grid=6, cluster=3).arrays[0].tolist() == [0, 1, 2] * 2
    assert run(text, ["u32[6]=ones"], grid=6).arrays[0].tolist() == [0] * 6
    with pytest.raises(ConfigRejected, match=r"a grid of \(6, 1, 1\) is not made of whole clusters of \(4, 1, 1\)"):
        run(text, ["u32[6]=zeros"], grid=6, cluster=4)
    with pytest.raises(InvalidOperand, match="1 to 16 blocks"):
        run(text, ["u32[6]=zeros"], grid=17, cluster=17)
    fixed = kernel("u32 *out", "out[0] = 1;", "__cluster_dims__(2, 1, 1)")
    with pytest.raises(ConfigRejected, match=r"a cluster of \(3, 1, 1\), but k was compiled for \(2, 1, 1\)"):
        run(fixed, ["u32[6]=zeros"], grid=6, cluster=3)


def test_gpus_before_hopper_have_no_clusters():
    ptx = compile_source("__global__ void k(int *out) { out[blockIdx.x] = 1; }", entry="k", arch="sm_80")
    with pytest.raises(ConfigRejected, match=r"a cluster of \(2, 1, 1\): .*A100.* \(sm_80\) has none"):
        tw.emulate(ptx.ptx, ptx.entry, 4, 1, ["i32[4]"], gpu="A100", cluster=2)


RING = """
    __shared__ int box[32];
    const u32 next = (rank() + 1) % 4;
    cluster_sync();
    asm volatile("st.shared::cluster.u32 [%0], %1;"
        :: "r"(peer(box + threadIdx.x, next)), "r"(100 * rank() + threadIdx.x));
    SYNC
    out[blockIdx.x * 32 + threadIdx.x] = box[threadIdx.x];
"""


def test_blocks_of_a_cluster_write_to_one_another():
    text = kernel("int *out", RING.replace("SYNC", "cluster_sync();"), "__cluster_dims__(4, 1, 1)")
    out = run(text, ["i32[256]=zeros"], grid=8).arrays[0].reshape(2, 4, 32)
    assert np.array_equal(out, np.stack([100 * ((np.arange(4)[:, None] + 3) % 4) + np.arange(32)] * 2))


@pytest.mark.parametrize(
    ("sync", "kind"),
    [
        ("__syncthreads();", "shared_race"),
        ('asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); cluster_wait();', "shared_race"),
        ("cluster_arrive();", "shared_race"),
        ("cluster_wait();", "cluster_barrier"),
        ("cluster_arrive(); cluster_arrive(); cluster_wait();", "cluster_barrier"),
        ("if (rank()) cluster_sync(); else while (true) { if (test_parity(&never, 0)) break; }", "deadlock"),
    ],
)
def test_what_does_not_order_a_cluster_is_seen(sync, kind):
    body = "__shared__ u64 never; if (threadIdx.x == 0) init(&never, 1); __syncthreads();" + RING.replace("SYNC", sync)
    hazard = fault(kernel("int *out", body, "__cluster_dims__(4, 1, 1)"), ["i32[128]=zeros"], grid=4)
    assert hazard.kind == kind, str(hazard)
    if kind == "shared_race":  # a barrier of the block would do nothing
        assert "barrier.cluster" in hazard.details["missing"]
        assert "does not reach" in hazard.hint
    if kind == "deadlock":
        assert any("barrier.cluster: 32 threads of block (0, 0, 0) have not arrived" in line
                   for line in hazard.details["what_is_waited_for"])  # fmt: skip


def test_generic_addresses_atomics_and_ranks_of_peers():
    text = kernel(
        "int *out",
        """
        __shared__ int sum;
        if (threadIdx.x == 0) sum = 0;
        cluster_sync();
        int *there; asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&sum), "r"(0));
        atomicAdd(there, 1 + rank());
        asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" :: "r"(peer(&sum, 1)), "r"(10) : "memory");
        u32 of; asm("getctarank.u64 %0, %1;" : "=r"(of) : "l"(there));
        cluster_sync();
        if (threadIdx.x == 0) { out[2 * blockIdx.x] = sum; out[2 * blockIdx.x + 1] = of; }
        """,
        "__cluster_dims__(2, 1, 1)",
    )
    assert run(text, ["i32[4]=zeros"], grid=2).arrays[0].tolist() == [96, 0, 640, 0]


def test_a_peer_that_may_have_ended_is_named():
    body = """
        __shared__ int box[32];
        box[threadIdx.x] = threadIdx.x;
        cluster_sync();
        int v; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(peer(box + threadIdx.x, rank() ^ 1)));
        out[blockIdx.x * 32 + threadIdx.x] = v;
        LAST
    """
    right = kernel("int *out", body.replace("LAST", "cluster_sync();"), "__cluster_dims__(2, 1, 1)")
    assert run(right, ["i32[64]=zeros"], grid=2).arrays[0].tolist() == [*range(32)] * 2
    early = kernel("int *out", body.replace("LAST", ""), "__cluster_dims__(2, 1, 1)")
    hazard = fault(early, ["i32[64]=zeros"], grid=2)
    assert hazard.kind == "peer_exited"
    gone = kernel(
        "int *out",
        """__shared__ int box[32]; box[threadIdx.x] = 1; cluster_sync(); if (rank()) return;
        for (int i = 0; i < 40; ++i) __syncwarp();
        asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(peer(box, 1)), "r"(1));""",
        "__cluster_dims__(2, 1, 1)",
    )
    assert fault(gone, ["i32[64]=zeros"], grid=2).kind == "peer_exited"


def test_an_address_of_a_peer_is_not_one_of_the_own_block():
    text = kernel(
        "int *out",
        """__shared__ int box[32]; box[threadIdx.x] = 1; cluster_sync(); int v;
        asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(peer(box, WHO))); out[threadIdx.x] = v;
        cluster_sync();""",
        "__cluster_dims__(2, 1, 1)",
    )
    assert run(text.replace("WHO", "rank()"), ["i32[32]=zeros"], grid=2).arrays[0].tolist() == [1] * 32
    hazard = fault(text.replace("WHO", "rank() ^ 1"), ["i32[32]=zeros"], grid=2)
    assert (hazard.kind, "another block of the cluster" in hazard.message) == ("out_of_bounds", True)
    assert fault(text.replace("WHO", "2"), ["i32[32]=zeros"], grid=2).kind == "out_of_bounds"


MULTICAST = """
    __shared__ alignas(1024) float tile[2][256]; __shared__ u64 full;
    if (threadIdx.x == 0) { init(&full, 1); init_fence(); }
    cluster_sync();
    if (threadIdx.x == 0) {
        arrive_expect(&full, 2048);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;" :: "r"(at(tile[rank()])), "l"(&map), "r"(0), "r"(8 * (int)rank()),
            "r"(at(&full)), "h"((u16)MASK) : "memory");
    }
    wait(&full, 0);
    for (int i = threadIdx.x; i < 512; i += 32) out[512 * blockIdx.x + i] = tile[0][i];
    cluster_sync();
"""


def test_a_multicast_brings_bytes_and_their_count_to_each_block():
    tensor = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    signature = "const __grid_constant__ CUtensorMap map, float *out"
    text = kernel(signature, MULTICAST.replace("MASK", "3"), "__cluster_dims__(2, 1, 1)")
    result = run(text, [TensorMap.of(tensor, (8, 32)), "f32[1024]=nan"], grid=2)
    assert np.array_equal(result.arrays[1].reshape(2, 16, 32), np.stack([tensor, tensor]))
    assert result.counters.bulk_load_bytes == 2048  # read once for both
    for mask, kind in (("1", "deadlock"), ("7", "bulk_operand"), ("0", "bulk_operand")):
        wrong = kernel(signature, MULTICAST.replace("MASK", mask), "__cluster_dims__(2, 1, 1)")
        assert fault(wrong, [TensorMap.of(tensor, (8, 32)), "f32[1024]=nan"], grid=2).kind == kind


REMOTE = """
    __shared__ u64 ready; __shared__ alignas(16) int box[32];
    if (threadIdx.x == 0) { init(&ready, COUNT); init_fence(); }
    cluster_sync();
    if (rank() == 1) { SEND }
    else { wait(&ready, 0); out[threadIdx.x] = box[threadIdx.x]; }
    LAST
"""
SENDS = {
    "arrivals": (
        32,
        """asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(peer(box + threadIdx.x, 0)), "r"(threadIdx.x + 5));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
            :: "r"(peer(&ready, 0)) : "memory");""",
    ),
    "st.async": (
        1,
        """if (threadIdx.x == 0)
            asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 128;"
            :: "r"(peer(&ready, 0)) : "memory");
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
            :: "r"(peer(box + threadIdx.x, 0)), "r"(threadIdx.x + 5), "r"(peer(&ready, 0)) : "memory");""",
    ),
    "bulk": (
        1,
        """box[threadIdx.x] = threadIdx.x + 5; proxy_fence(); __syncwarp();
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 128;"
                :: "r"(peer(&ready, 0)) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                :: "r"(peer(box, 0)), "r"(at(box)), "r"(peer(&ready, 0)) : "memory");
        }""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", SENDS)
def test_values_go_to_a_peer_and_its_mbarrier_says_so(way):
    count, send = SENDS[way]
    body = REMOTE.replace("COUNT", str(count)).replace("SEND", send)
    text = kernel("int *out", body.replace("LAST", "cluster_sync();"), "__cluster_dims__(2, 1, 1)")
    assert run(text, ["i32[32]=zeros"], grid=2).arrays[0].tolist() == list(range(5, 37))
    early = kernel("int *out", body.replace("wait(&ready, 0);", "").replace("LAST", "cluster_sync();"),
                   "__cluster_dims__(2, 1, 1)")  # fmt: skip
    assert fault(early, ["i32[32]=zeros"], grid=2).kind in (
        "shared_race", "async_copy_not_waited", "uninitialised_shared_read",
    )  # fmt: skip


def test_reductions_count_at_the_mbarrier_of_a_peer():
    body = REMOTE.replace("COUNT", "1").replace(
        "SEND",
        """if (threadIdx.x == 0)
            asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 128;"
            :: "r"(peer(&ready, 0)) : "memory");
        asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
            :: "r"(peer(box + threadIdx.x % 4, 0)), "r"(1), "r"(peer(&ready, 0)) : "memory");""",
    )
    body = body.replace(
        "cluster_sync();\n    if (rank() == 1)", "box[threadIdx.x] = 0; cluster_sync();\n    if (rank() == 1)"
    )
    text = kernel("int *out", body.replace("LAST", "cluster_sync();"), "__cluster_dims__(2, 1, 1)")
    assert run(text, ["i32[32]=zeros"], grid=2).arrays[0].tolist() == [8] * 4 + [0] * 28


def test_a_multicast_that_its_target_has_waited_for_needs_no_barrier_at_the_end():
    tensor = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    body = MULTICAST.replace("MASK", "3")
    body = body[: body.rindex("cluster_sync();")]
    text = kernel("const __grid_constant__ CUtensorMap map, float *out", body, "__cluster_dims__(2, 1, 1)")
    assert run(text, [TensorMap.of(tensor, (8, 32)), "f32[1024]=nan"], grid=2).hazards == []


def test_an_arrival_at_a_peer_that_does_not_wait_for_it_is_named():
    body = REMOTE.replace("COUNT", "32").replace("SEND", SENDS["arrivals"][1]).replace("LAST", "")
    early = body.replace("else { wait(&ready, 0);", "else if (rank() > 5) { wait(&ready, 0);")
    assert run(kernel("int *out", body, "__cluster_dims__(2, 1, 1)"), ["i32[32]=zeros"], grid=2).hazards == []
    hazard = fault(kernel("int *out", early, "__cluster_dims__(2, 1, 1)"), ["i32[32]=zeros"], grid=2)
    assert hazard.kind == "peer_exited"
