// Rows of 16-bit elements from any strides to any others; columns that the source lacks become zeros.
//
// Attention takes rows of certain lengths that begin at multiples of 16 bytes. What an operand is not, its copy is.

struct RowsArgs {
  const unsigned short* from;
  unsigned short* to;
  // Strides in elements.
  long long from_batch, from_head, from_row, from_col, to_batch, to_head, to_row, to_col;
  int rows, from_cols, to_cols;
};

/// blockIdx.y: head; blockIdx.x: threads along rows x to_cols of one batch entry after the other.
extern "C" __global__ void __launch_bounds__(Cfg::threads) copy_rows(const __grid_constant__ RowsArgs args) {
  const unsigned blocks = ((long long)args.rows * args.to_cols + Cfg::threads - 1) / Cfg::threads;
  const unsigned batch = blockIdx.x / blocks;
  const long long element = (long long)(blockIdx.x - batch * blocks) * Cfg::threads + threadIdx.x;
  const long long row = element / args.to_cols, col = element - row * args.to_cols;
  if (row >= args.rows) return;
  const long long from = batch * args.from_batch + blockIdx.y * args.from_head + row * args.from_row;
  const long long to = batch * args.to_batch + blockIdx.y * args.to_head + row * args.to_row;
  args.to[to + col * args.to_col] = col < args.from_cols ? args.from[from + col * args.from_col] : (unsigned short)0;
}
