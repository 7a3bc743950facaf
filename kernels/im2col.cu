// im2col - copy every window out in full, one column a pixel.
// idea    col[n, (c*R + r)*S + s, p*Q + q] = padded x[n,c, p*stride_h + r*dilation_h, q*stride_w + s*dilation_w]: what two
//         windows share is stored once in each, R*S/stride^2 times the input in all
// shapes  x (N,C,H,W) -> col (N,C*R*S,P*Q)  float32, C-contiguous
// launch  block (32,BLOCK_ROWS,1), a warp a row of col, grid (ceil(N*C*R*S / BLOCK_ROWS), ceil(P*Q / 128), 1)
#ifndef BLOCK_ROWS
#define BLOCK_ROWS 8  // rows of col a block writes
#endif
static_assert(BLOCK_ROWS >= 1 && BLOCK_ROWS <= 32, "BLOCK_ROWS: 1 to 32 warps of 32 lanes");

extern "C" __global__ void im2col(const float* x, float* col, const Conv c) {
  const long long row = (long long)blockIdx.x * BLOCK_ROWS + threadIdx.y;  // ((n*C + channel)*R + r)*S + s
  if (row >= (long long)c.N * c.C * c.R * c.S) return;
  const int taps = c.R * c.S, tap = (int)(row % taps), r = tap / c.S, s = tap % c.S;
  const float* image = x + row / taps * c.H * c.W;
  const int pixels = c.P * c.Q;
  for (int i = blockIdx.y * 32 + threadIdx.x; i < pixels; i += gridDim.y * 32) {
    const int h = i / c.Q * c.stride_h + r * c.dilation_h - c.pad_top;
    const int w = i % c.Q * c.stride_w + s * c.dilation_w - c.pad_left;
    const bool inside = h >= 0 && h < c.H && w >= 0 && w < c.W;
    col[row * pixels + i] = inside ? image[(long long)h * c.W + w] : 0.f;
  }
}
