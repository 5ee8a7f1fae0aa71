#pragma once
// The attention rungs of Hopper, after a17, and the kernel that runs the one that Cfg names.
//
// TMA brings tiles of Q, K and V into shared memory, wgmma multiplies them from there. A warpgroup makes 64 rows of
// out: S = Q K^T in its registers becomes weights P there, and P is the left operand of P V as it lies.
//
// Roles (from a19 on)   warpgroup 0: one thread starts the copies. Warpgroups 1 ..: 64 rows of out each.
// Named barriers        1 + w, of turns between warpgroups (a21); 4, of those that clear rows of V
//
// Which tiles there are, where they lie and how they come: attention/hopper_tiles.cuh. What a warpgroup does with them:
// attention/hopper_multiplier.cuh, which asks the rung that Cfg names.

#include "attention/hopper_multiplier.cuh"
#include "ptx/grid_dependency.cuh"

// ---- a18_wgmma -----------------------------------------------------------------------------------------------------
// TMA copies tiles, wgmma reads them from shared memory, P stays in registers. Thread 0 starts the copies between
// products; a ring of Cfg::stages tiles is on its way.

struct A18 {
  static constexpr bool has_producer = false;    // a warpgroup that only copies, whose registers go to the others
  static constexpr bool overlaps = false;        // Q K^T of the next tile runs under this one's softmax
  static constexpr int turns = 0;                // what warpgroups do in turns: 1 start products, 2 exponentials
  static constexpr bool own_keys = false;        // a warpgroup skips tiles that its rows do not see
  static constexpr bool by_old_maximum = false;  // weights by the maxima of the tiles before
  static constexpr bool stays = false;           // a block makes many tiles; Q of the next comes early
};

// ---- a19_producer --------------------------------------------------------------------------------------------------
// A warpgroup copies and gives its registers away: no warpgroup that multiplies waits to start a copy.

struct A19 : A18 {
  static constexpr bool has_producer = true;
};

// ---- a20_overlap ---------------------------------------------------------------------------------------------------
// Q K^T of the next tile and P V of this one are in flight together, and the softmax waits for the first alone.

struct A20 : A19 {
  static constexpr bool overlaps = true;
};

// ---- a21_turns -----------------------------------------------------------------------------------------------------
// Warpgroups take turns, so that one's softmax runs under another's products.

struct A21 : A20 {
  static constexpr int turns = Cfg::turns;
};

// ---- a22_stays -----------------------------------------------------------------------------------------------------
// As many blocks as SMs: the copies of the next tile run under the end of this one. Under a causal mask a block takes
// the longest tile that is left of a head with the shortest: all blocks have the same to do.

struct A22 : A21 {
  static constexpr bool stays = true;
};

// ---- a23_own_keys --------------------------------------------------------------------------------------------------
// A warpgroup walks the keys that its own 64 rows see, not all of the block's: it only passes on what the mask hides
// from it, and rows that do not exist take no products. Under a causal mask those come before the first query.

struct A23 : A22 {
  static constexpr bool own_keys = true;
};

// ---- a24_old_maximum -----------------------------------------------------------------------------------------------
// Weights are made by the maxima of the tiles before, without a look at this tile's: no comparison, no exchange between
// lanes, before the first exponential. Their sum tells whether that was good enough, and it nearly always is. The
// scores stay until then, so that weights go to registers of their own: two sets of them take turns.

struct A24 : A23 {
  static constexpr bool by_old_maximum = true;
};

// ---- the kernel ----------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(Cfg::threads, 1)
    attention(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
              const __grid_constant__ TensorMap v_map, const __grid_constant__ HopperArgs args) {
  using Rung = typename Cfg::rung;
  using At = Layout<Cfg>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const At at{shared_address(shared)};
  const Maps maps{q_map, k_map, v_map};
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that the compiler knows it the same for a warp
  if (threadIdx.x == 0) at.start_barriers();
  __syncthreads();

  OutTile<Cfg>* const drawn = reinterpret_cast<OutTile<Cfg>*>(shared + At::drawn);
  Copies<Cfg> copies{maps, at, drawn};
  const Walk<Cfg> walk{args};
  if constexpr (Cfg::draws) wait_for_earlier_grids();
  if constexpr (Rung::has_producer) {
    // Registers per thread that multiplies. Finding tiles by length takes more than 24 of the warpgroup that copies.
    constexpr int multiplying = At::groups == 3 ? 160 : Walk<Cfg>::by_mask && Cfg::d_v < 256 ? 232 : 240;
    if (warpgroup == 0) {
      if constexpr (At::groups > 1) release_registers<At::groups == 3 ? 32 : 504 - 2 * multiplying>();
      if (threadIdx.x < 32) {
        const auto copy = [&](const OutTile<Cfg>& tile) {
          if (threadIdx.x == 0 && tile.exists()) copies.start(tile, Score<Cfg>(args, tile, Cfg::b_r));
          __syncwarp();
        };
        if constexpr (Cfg::draws) {
          for (int number = blockIdx.x, next = 0; number < args.tiles; number = __shfl_sync(~0u, next, 0)) {
            if (threadIdx.x == 0) next = gridDim.x + atomicAdd(args.drawn, 1);
            copy(OutTile<Cfg>(args, walk.drawn(args, number)));
          }
          if (threadIdx.x == 0) copies.end();
        } else {
          Place place;
          for (int step = 0; walk.at(step, walk.blocks_anew(), place); ++step) {
            copy(OutTile<Cfg>(args, place));
            if (!Rung::stays) break;
          }
        }
      }
    } else {
      if constexpr (At::groups > 1) take_registers<multiplying>();
      Multiplier<Cfg> multiplier(args, at, warpgroup - 1);
      if (Rung::turns == 1 && multiplier.group == At::groups - 1) multiplier.pass_turn();
      if (Rung::turns == 2 && multiplier.group == At::groups - 1) multiplier.pass_exponentials();
      const auto make = [&](const OutTile<Cfg>& tile) {
        const Score<Cfg> block(args, tile, Cfg::b_r);
        const int row0 = tile.row0 + 64 * multiplier.group;
        const int row = row0 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        if constexpr (!Cfg::draws) multiplier.await_q();
        if constexpr (Rung::own_keys)
          multiplier.walk(block, keys_of_group<Cfg>(args, tile, row0, block.end), row, [](int) {});
        else
          multiplier.walk(block, block, row, [](int) {});
        multiplier.store(tile, row);
      };
      if constexpr (Cfg::draws) {
        while (true) {
          multiplier.await_q();
          const OutTile<Cfg> tile = drawn[At::place(multiplier.group, multiplier.q.stage)];
          __syncwarp();  // all lanes have read it, and one lets the next come
          if (tile.is_none()) break;
          make(tile);
        }
      } else {
        Place place;
        for (int step = 0; walk.at(step, gridDim.x, place); ++step) {
          const OutTile<Cfg> tile(args, place);
          if (tile.exists()) make(tile);
          if (!Rung::stays) break;
        }
      }
    }
  } else {
    Place place;
    walk.at(0, gridDim.x, place);
    const OutTile<Cfg> tile(args, place);
    const Score<Cfg> score(args, tile, Cfg::b_r);
    if (!tile.exists()) return;
    if (threadIdx.x == 0) {
      copies.start_q(tile);
      for (int n = 0; n < Cfg::stages && n < score.end - score.first; ++n)
        copies.start_k(tile, score.end - 1 - n), copies.start_v(tile, score.end - 1 - n);
    }
    __syncwarp();
    Multiplier<Cfg> multiplier(args, at, warpgroup);
    const int row = tile.row0 + 64 * warpgroup + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    multiplier.await_q();
    multiplier.walk(score, score, row, [&](int n) {
      const int next = score.end - 1 - n - Cfg::stages;
      if (threadIdx.x == 0 && next >= score.first) copies.start_k(tile, next), copies.start_v(tile, next);
      __syncwarp();
    });
    multiplier.store(tile, row);
  }
}
