#pragma once
// griddepcontrol: a grid launched with Launch.overlaps set may be on the SMs before the grids ahead of it in the stream
// have ended, so that its launch and set-up cost no time of their own. sm_90+; elsewhere grids never overlap.

/// Waits until every earlier grid has ended and its writes are seen. Each thread that touches global memory calls it
/// before it does.
__device__ inline void wait_for_earlier_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// From here on, once all blocks of this grid have come here, the next grid may take what SMs this one leaves free. It
/// sees nothing of this grid until that has ended.
__device__ inline void let_later_grids_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Both, in the order that suits. A block that is alone on its SM lets the next grid in before it waits itself: two
/// grids' launches are hidden instead of one. Where a second block fits, the next grid's would fill the SMs unevenly.
template <bool alone>
__device__ inline void start_after_earlier_grids() {
  if constexpr (alone) let_later_grids_start();
  wait_for_earlier_grids();
  if constexpr (!alone) let_later_grids_start();
}
