// 05_im2win_zigzag - rung 04 with the lanes of a warp in zig-zag order over the tile.
// idea    lanes walk (k,q) = (0,0) (0,1) (1,0) (1,1)... and hold two float4 half a tile apart, so that partner lanes
//         read the same address and a warp's float4 load needs two wavefronts instead of up to eight
// shapes  xw (N,C,P,WP*R)  wt (K,C/groups,S*R)  y (N,K,P,Q)  float32, C-contiguous; N*P*Q < 2^31
// launch  block (BLOCK_K/8 * BLOCK_Q/8,1,1)  grid (ceil(K/groups / BLOCK_K) * groups * ceil(N*P*Q / BLOCK_Q),1,1)
// access  shared memory: float stores, float4 loads
// source  the order comes from the maxas SGEMM; arXiv:2608.20725 calls it zig-zag
// next    06 reads the windows from a texture; 07 fills one pair of tiles while it multiplies the other
#ifndef BLOCK_K
#define BLOCK_K 64  // output channels a block computes
#endif
#ifndef BLOCK_Q
#define BLOCK_Q 128  // pixels a block computes
#endif
#ifndef BLOCK_C
#define BLOCK_C 8  // window elements a step stages in shared memory
#endif
#ifndef PAD
#define PAD 4  // words added to each row of a shared tile
#endif
#ifndef LANE_K
#define LANE_K (lane >> 1 & 1 | lane >> 2 & 2)  // row 0-3 of a lane in the warp's 4 x 8 grid: bits 1 and 3
#endif
#ifndef LANE_Q
#define LANE_Q (lane & 1 | lane >> 1 & 2 | lane >> 2 & 4)  // its column 0-7: bits 0, 2 and 4
#endif
#define THREADS (BLOCK_K / 8 * BLOCK_Q / 8)
#define LOAD_ROWS (THREADS / BLOCK_C)  // pixels, or output channels, that the block loads at once
static_assert(BLOCK_K % 32 == 0 && BLOCK_Q % 64 == 0 && THREADS <= 1024, "BLOCK_K: of 32, BLOCK_Q: of 64, <= 1024 threads");
static_assert(THREADS % BLOCK_C == 0 && BLOCK_K % LOAD_ROWS == 0 && BLOCK_Q % LOAD_ROWS == 0, "BLOCK_C does not divide the tile");
static_assert(PAD % 4 == 0, "PAD: a multiple of 4 keeps float4 loads aligned");

extern "C" __global__ void __launch_bounds__(THREADS)
    im2win_zigzag(const float* xw, const float* wt, const float* bias, float* y, const Conv c TIMELINE_PARAMETERS) {
  __shared__ __align__(16) float Ws[BLOCK_C][BLOCK_K + PAD];  // Ws[j][k], Xs[j][pixel]: window element j of this step
  __shared__ __align__(16) float Xs[BLOCK_C][BLOCK_Q + PAD];

  // Which tile: output channels k0.. of one group, pixels pixel0.. counted over (N,P,Q).
  const int group_K = c.K / c.groups, group_C = c.C / c.groups, k_tiles = (group_K + BLOCK_K - 1) / BLOCK_K;
  const int tile = blockIdx.x, group = tile / k_tiles % c.groups;
  const int k0 = tile % k_tiles * BLOCK_K, pixel0 = tile / k_tiles / c.groups * BLOCK_Q;
  const int image = c.P * c.Q, row = c.WP * c.R, taps = c.S * c.R, elements = group_C * taps;
  const long long plane = (long long)c.P * row;  // elements of one channel of xw

  // Loading: eight neighbouring threads take eight neighbouring elements of one window.
  const int t = threadIdx.x, j = t % BLOCK_C, load_row = t / BLOCK_C;
  const float* window[BLOCK_Q / LOAD_ROWS];  // the start of each pixel's window, null past the last pixel
#pragma unroll
  for (int i = 0; i < BLOCK_Q / LOAD_ROWS; ++i) {
    const int pixel = pixel0 + load_row + i * LOAD_ROWS, n = pixel / image, p = pixel % image / c.Q, q = pixel % c.Q;
    window[i] = pixel < c.N * image ? xw + ((long long)n * c.C + group * group_C) * plane + (long long)p * row +
                                          (long long)q * c.stride_w * c.R
                                    : nullptr;
  }
  const float* filter = wt + ((long long)group * group_K + k0) * elements;

  // Multiplying: a warp covers 32 x 64 outputs; this thread's are 4 + 4 rows from tk and 4 + 4 columns from tq.
  const int lane = t % 32, warp = t / 32;
  const int tk = warp / (BLOCK_Q / 64) * 32 + (LANE_K) * 4, tq = warp % (BLOCK_Q / 64) * 64 + (LANE_Q) * 4;

  float acc[8][8] = {};
  long long channel = j / taps * plane;  // where element j0 + j lies in its window: channel, then tap
  int tap = j % taps;
  for (int j0 = 0; j0 < elements; j0 += BLOCK_C) {
    STAMP(ISSUE, j0 / BLOCK_C);
    const bool valid = j0 + j < elements;
    const long long at = channel + (c.dilation_w == 1 ? tap : tap / c.R * c.dilation_w * c.R + tap % c.R);
#pragma unroll
    for (int i = 0; i < BLOCK_Q / LOAD_ROWS; ++i)
      Xs[j][load_row + i * LOAD_ROWS] = valid && window[i] ? window[i][at] : 0.f;
#pragma unroll
    for (int i = 0; i < BLOCK_K / LOAD_ROWS; ++i) {
      const int k = load_row + i * LOAD_ROWS;
      Ws[j][k] = valid && k0 + k < group_K ? filter[(long long)k * elements + j0 + j] : 0.f;
    }
    for (tap += BLOCK_C; tap >= taps; tap -= taps) channel += plane;
    __syncthreads();
    STAMP(ARRIVE, j0 / BLOCK_C);
#pragma unroll
    for (int jj = 0; jj < BLOCK_C; ++jj) {
      const float4 a[2] = {*(const float4*)&Ws[jj][tk], *(const float4*)&Ws[jj][tk + 16]};
      const float4 b[2] = {*(const float4*)&Xs[jj][tq], *(const float4*)&Xs[jj][tq + 32]};
      multiply_accumulate(acc, a, b);
    }
    STAMP(CONSUME, j0 / BLOCK_C);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int k_in_group = k0 + tk + i % 4 + i / 4 * 16, k = group * group_K + k_in_group;
    if (k_in_group >= group_K) continue;
    const float b = bias ? bias[k] : 0.f;
    store_pixels(y, &acc[i][0], b, k, pixel0 + tq, c);
    store_pixels(y, &acc[i][4], b, k, pixel0 + tq + 32, c);
  }
}
