"""Lanes of one warp that exchange through shared memory and never come together; and those that do."""

from __future__ import annotations

import pytest

import tilewright as tw

K = "__global__ void k"


def kinds(source: str, block: int = 64, args: tuple = ("f32[256]=ones",), **options) -> list[str]:
    return [h.kind for h in tw.emulate(source, "k", 2, block, list(args), hazards="collect", **options).hazards]


OWN = "float *o = a + blockIdx.x * blockDim.x; int t = threadIdx.x, l = t % 32, w = t / 32;"
# With SYNC as __syncwarp(); right, without it a race.
EXCHANGES = {
    "a neighbour's value": f"{K}(float *a) {{ {OWN} __shared__ float s[64]; s[t] = l; SYNC o[t] = s[t ^ 1]; }}",
    "a sum of a warp": f"""{K}(float *a) {{ {OWN} __shared__ float s[64];
        s[t] = o[t]; __syncwarp();
        for (int d = 16; d > 0; d /= 2) {{ if (l < d) s[t] += s[t + d]; SYNC }}
        o[t] = s[w * 32]; }}""",
    "a value of one lane for all": f"""{K}(float *a) {{ {OWN} __shared__ float s[2];
        if (l == 5) s[w] = o[t]; SYNC o[t] = s[w]; }}""",
    "a write over what others still read": f"""{K}(float *a) {{ {OWN} __shared__ float s[64];
        s[t] = l; __syncwarp(); float v = s[t ^ 7]; SYNC s[t] = v + 1; o[t] = s[t]; }}""",
    "a transpose of a tile by one warp": f"""{K}(float *a) {{ {OWN} __shared__ float s[2][32][33];
        for (int i = 0; i < 32; ++i) s[w][i][l] = i * l; SYNC
        float v = 0; for (int i = 0; i < 32; ++i) v += s[w][l][i]; o[t] = v; }}""",
    "a count by atomics, read by all": f"""{K}(float *a) {{ {OWN} __shared__ int s[2];
        if (l == 0) s[w] = 0; __syncwarp(); atomicAdd(&s[w], l); SYNC o[t] = s[w]; }}""",
    "halves of a warp": f"""{K}(float *a) {{ {OWN} __shared__ float s[64];
        if (l < 16) s[t] = l; SYNC if (l >= 16) o[t] = s[t - 16]; }}""",
}  # fmt: skip


@pytest.mark.parametrize("name", EXCHANGES)
def test_lanes_that_do_not_come_together_are_found(name):
    source = EXCHANGES[name]
    assert kinds(source.replace("SYNC", "__syncwarp();")) == []
    assert kinds(source.replace("SYNC", "__syncthreads();") if "l < d" not in source else
                 source.replace("SYNC", "__syncwarp();")) == []  # fmt: skip
    assert set(kinds(source.replace("SYNC", ""))) == {"lane_race"}


@pytest.mark.parametrize("name", EXCHANGES)
def test_volatile_shared_memory_without_syncwarp_is_a_warning(name):
    source = EXCHANGES[name].replace("__shared__ float", "__shared__ volatile float").replace("SYNC", "")
    wanted = "lane_race" if "atomicAdd" in source else "warp_synchronous"
    assert set(kinds(source)) == {wanted}


def test_votes_and_ldmatrix_are_warned_to_need_a_syncwarp():
    vote = f"""{K}(float *a) {{ {OWN} __shared__ float s[64];
        s[t] = l; SYNC if (__any_sync(~0u, l == 3)) o[t] = s[t ^ 1]; }}"""
    assert kinds(vote.replace("SYNC", "")) == ["warp_synchronous"]
    assert kinds(vote.replace("SYNC", "__syncwarp();")) == []
    matrix = f"""{K}(float *a) {{ {OWN} __shared__ __align__(16) unsigned s[64];
        s[t] = l; SYNC unsigned r, at = (unsigned)__cvta_generic_to_shared(s + w * 32 + l % 8 * 4);
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%0}}, [%1];" : "=r"(r) : "r"(at) : "memory");
        o[t] = r; }}"""
    assert kinds(matrix.replace("SYNC", "")) == ["warp_synchronous"]
    assert kinds(matrix.replace("SYNC", "__syncwarp();")) == []
    assert kinds(matrix.replace("SYNC", "__syncthreads();")) == []


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = l; o[t] = s[t];",  # each lane its own
        "s[w] = 3; o[t] = s[w];",  # all lanes store one value, and each reads its own or an equal one
        "if (l == 0) { s[w] = 1; s[w] += 2; o[t] = s[w]; }",
        "atomicAdd(s + w, 1.0f); atomicAdd(s + w, 2.0f);",
        "s[t] = l; __syncthreads(); o[t] = s[63 - t];",
        "for (int i = 0; i < 4; ++i) { s[t] = i; __syncwarp(); float v = s[t ^ 1]; __syncwarp(); o[t] += v; }",
    ],
)
def test_what_needs_no_syncwarp_is_silent(body):
    source = (
        f"{K}(float *a) {{ {OWN} __shared__ float s[64]; if (l == 0) {{ s[w] = 0; s[w + 2] = 0; }} __syncthreads(); "
    )
    assert kinds(source + body + " }", explore=3) == []


def test_a_lane_race_names_both_places():
    source = f"""{K}(float *a) {{ {OWN}
        __shared__ float s[64];
        s[t] = l; // write
        o[t] = s[t ^ 1]; // read
    }}"""
    hazard = tw.emulate(source, "k", 1, 32, ["f32[32]=ones"], hazards="collect").hazards[0]
    assert (hazard.kind, hazard.line, hazard.warp, len(hazard.lanes)) == ("lane_race", 4, 0, 32)
    assert "kernel.cu:3" in hazard.details["other_access"]
    assert "lane 1 of the same warp" in hazard.message
