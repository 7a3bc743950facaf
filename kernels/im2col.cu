// im2col - copy every window out in full, one column a pixel.
// idea    col[n, (c*R + r)*S + s, p*Q + q] = padded x[n,c, p*stride_h + r*dilation_h, q*stride_w + s*dilation_w]: what two
//         windows share is stored once in each, R*S/stride^2 times the input in all
// shapes  x (N,C,H,W) -> col (N,C*R*S,P*Q)  float32, C-contiguous
// launch  block (32,BLOCK_ROWS,1), a warp SEGMENT elements of a row, grid (N*C, ceil(P*Q / SEGMENT), ceil(R*S / BLOCK_ROWS))
#ifndef BLOCK_ROWS
#define BLOCK_ROWS 8  // rows of col a block writes
#endif
#ifndef SEGMENT
#define SEGMENT 256  // elements of a row a warp writes at once
#endif
static_assert(BLOCK_ROWS >= 1 && BLOCK_ROWS <= 32, "BLOCK_ROWS: 1 to 32 warps of 32 lanes");
static_assert(SEGMENT >= 32 && SEGMENT % 32 == 0, "SEGMENT: a multiple of 32");

extern "C" __global__ void im2col(const float* x, float* col, const Conv c) {
  const float* image = x + (long long)blockIdx.x * c.H * c.W;
  const int taps = c.R * c.S, length = c.P * c.Q;
  for (int tap = blockIdx.z * BLOCK_ROWS + threadIdx.y; tap < taps; tap += gridDim.z * BLOCK_ROWS) {
    float* row = col + ((long long)blockIdx.x * taps + tap) * length;
    const int top = tap / c.S * c.dilation_h - c.pad_top, left = tap % c.S * c.dilation_w - c.pad_left;
    for (int start = blockIdx.y * SEGMENT; start < length; start += gridDim.y * SEGMENT) {
      int i = start + threadIdx.x, p = i / c.Q, q = i % c.Q;
#pragma unroll
      for (int e = 0; e < SEGMENT / 32; ++e, i += 32) {  // neighbouring lanes write neighbouring elements
        const int h = top + p * c.stride_h, w = left + q * c.stride_w;
        if (i < length) row[i] = h >= 0 && h < c.H && w >= 0 && w < c.W ? image[(long long)h * c.W + w] : 0.f;
        q += 32 % c.Q, p += 32 / c.Q;  // cheaper than dividing again
        if (q >= c.Q) q -= c.Q, ++p;
      }
    }
  }
}
