#pragma once
// CUTLASS 2.x's device::Gemm as a peer of the ladder's rungs: NVIDIA's kernel, from its own headers, with the tiles of
// Cfg. Its host code is not needed: the parameters that device::Gemm would make on the host are made by each thread
// here (ptxas folds them), and the kernel is entered as cutlass::Kernel does.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm.h>

#include "gemm/args.cuh"

struct bf16;
struct f16;

template <typename T>
struct CutlassType {
  using type = T;
};
template <>
struct CutlassType<bf16> {
  using type = cutlass::bfloat16_t;
};
template <>
struct CutlassType<f16> {
  using type = cutlass::half_t;
};

template <class Config>
struct CutlassGemm {
  using In = typename CutlassType<typename Config::in_type>::type;
  using Out = typename CutlassType<typename Config::out_type>::type;
  template <int unit>
  using Layout =
      cutlass::platform::conditional_t<unit == unit_row, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;

  static constexpr bool simt = sizeof(In) == 4;
  using Class = cutlass::platform::conditional_t<simt, cutlass::arch::OpClassSimt, cutlass::arch::OpClassTensorOp>;
  using Instruction =
      cutlass::platform::conditional_t<simt, cutlass::gemm::GemmShape<1, 1, 1>, cutlass::gemm::GemmShape<16, 8, 16>>;

  using Device =
      cutlass::gemm::device::Gemm<In, Layout<Config::a_unit>, In, Layout<Config::b_unit>, Out,
                                  cutlass::layout::RowMajor, float, Class, cutlass::arch::Sm80,
                                  cutlass::gemm::GemmShape<Config::tile_m, Config::tile_n, Config::tile_k>,
                                  cutlass::gemm::GemmShape<Config::warp_m, Config::warp_n, Config::tile_k>, Instruction,
                                  cutlass::epilogue::thread::LinearCombination<Out, Config::out_elements, float, float>,
                                  cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<Config::group_m>,
                                  Config::stages, Config::a_elements, Config::b_elements>;
  using Kernel = typename Device::GemmKernel;

  static_assert(Kernel::kThreadCount == Config::threads, "the launch has another number of threads");
  static_assert(sizeof(typename Kernel::SharedStorage) == Config::shared, "the launch has other shared memory");
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, 1) gemm(const __grid_constant__ GemmArgs args) {
  using Gemm = CutlassGemm<Cfg>;
  using Kernel = typename Gemm::Kernel;
  using In = typename Gemm::In;
  using Out = typename Gemm::Out;
  extern __shared__ __align__(128) unsigned char shared[];

  const cutlass::gemm::GemmCoord size(args.m, args.n, args.k);
  const auto tiles =
      typename Kernel::ThreadblockSwizzle().get_tiled_shape(size, {Cfg::tile_m, Cfg::tile_n, Cfg::tile_k}, 1);
  const auto pitch = [](long long row, long long col, int unit) { return int(unit == unit_row ? col : row); };
  const typename Kernel::Params params(size, tiles, {(In*)args.a, pitch(args.a_row, args.a_col, Cfg::a_unit)},
                                       {(In*)args.b, pitch(args.b_row, args.b_col, Cfg::b_unit)},
                                       {(Out*)args.c, int(args.c_row)}, {(Out*)args.out, int(args.out_row)},
                                       {args.alpha, args.beta});
  Kernel()(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
}
