// 06_im2win_texture - rung 05 without the transform: the block fetches its windows through the texture units.
// idea    the image is a layered texture in border mode: a fetch outside it returns the padding's zero, so windows are
//         read in window order straight from the image, and xw is never written
// shapes  x (N,C,H,W) as a texture of N*C/PLANES layers, PLANES*H high, W wide  wt (K,C/groups,S*R)  y (N,K,P,Q)  float32
// launch  block (BLOCK_K/8 * BLOCK_Q/8,1,1)  grid (ceil(K/groups / BLOCK_K) * groups * ceil(N*P*Q / BLOCK_Q),1,1)
// access  texture: one float a fetch, point sampling; shared memory: as in 05
// next    07 goes back to xw and fills one pair of tiles while it multiplies the other
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
#ifndef PLANES
#define PLANES 1  // channels stacked in a layer: more than 1 only where N*C exceeds the 2048 layers of a texture
#endif
#define THREADS (BLOCK_K / 8 * BLOCK_Q / 8)
#define LOAD_ROWS (THREADS / BLOCK_C)  // pixels, or output channels, that the block loads at once
static_assert(BLOCK_K % 32 == 0 && BLOCK_Q % 64 == 0 && THREADS <= 1024, "BLOCK_K: of 32, BLOCK_Q: of 64, <= 1024 threads");
static_assert(THREADS % BLOCK_C == 0 && BLOCK_K % LOAD_ROWS == 0 && BLOCK_Q % LOAD_ROWS == 0, "BLOCK_C does not divide the tile");
static_assert(PAD % 4 == 0, "PAD: a multiple of 4 keeps float4 loads aligned");

extern "C" __global__ void __launch_bounds__(THREADS)
    im2win_texture(cudaTextureObject_t x, const float* wt, const float* bias, float* y, const Conv c) {
  __shared__ __align__(16) float Ws[BLOCK_C][BLOCK_K + PAD];  // Ws[j][k], Xs[j][pixel]: window element j of this step
  __shared__ __align__(16) float Xs[BLOCK_C][BLOCK_Q + PAD];

  // Which tile: output channels k0.. of one group, pixels pixel0.. counted over (N,P,Q).
  const int group_K = c.K / c.groups, group_C = c.C / c.groups, k_tiles = (group_K + BLOCK_K - 1) / BLOCK_K;
  const int tile = blockIdx.x, group = tile / k_tiles % c.groups;
  const int k0 = tile % k_tiles * BLOCK_K, pixel0 = tile / k_tiles / c.groups * BLOCK_Q;
  const int image = c.P * c.Q, taps = c.S * c.R, elements = group_C * taps;

  // Loading: eight neighbouring threads take eight neighbouring elements of one window.
  const int t = threadIdx.x, j = t % BLOCK_C, load_row = t / BLOCK_C;
  int plane[BLOCK_Q / LOAD_ROWS], top[BLOCK_Q / LOAD_ROWS], left[BLOCK_Q / LOAD_ROWS];  // each pixel's first channel, corner
#pragma unroll
  for (int i = 0; i < BLOCK_Q / LOAD_ROWS; ++i) {
    const int pixel = pixel0 + load_row + i * LOAD_ROWS, n = pixel / image, p = pixel % image / c.Q, q = pixel % c.Q;
    plane[i] = pixel < c.N * image ? n * c.C + group * group_C : -1;
    top[i] = p * c.stride_h - c.pad_top, left[i] = q * c.stride_w - c.pad_left;
  }
  const float* filter = wt + ((long long)group * group_K + k0) * elements;

  // Multiplying: a warp covers 32 x 64 outputs; this thread's are 4 + 4 rows from tk and 4 + 4 columns from tq.
  const int lane = t % 32, warp = t / 32, lane_k = lane >> 1 & 1 | lane >> 2 & 2, lane_q = lane & 1 | lane >> 1 & 2 | lane >> 2 & 4;
  const int tk = warp / (BLOCK_Q / 64) * 32 + lane_k * 4, tq = warp % (BLOCK_Q / 64) * 64 + lane_q * 4;

  float acc[8][8] = {};
  int channel = j / taps, tap = j % taps;  // which element of its window j0 + j is
  for (int j0 = 0; j0 < elements; j0 += BLOCK_C) {
    const bool valid = j0 + j < elements;
    const int down = tap % c.R * c.dilation_h, right = tap / c.R * c.dilation_w;
#pragma unroll
    for (int i = 0; i < BLOCK_Q / LOAD_ROWS; ++i) {
      // No test whether the image has this row and column: the border does it. Only where planes share a layer, a row of
      // this plane that does not exist would be one of its neighbour, and is sent outside the texture instead.
      const int row = top[i] + down, at = plane[i] + channel;
      const float h = PLANES == 1 || (row >= 0 && row < c.H) ? at % PLANES * c.H + row + 0.5f : -1.f;
      Xs[j][load_row + i * LOAD_ROWS] =
          valid && plane[i] >= 0 ? tex2DLayered<float>(x, left[i] + right + 0.5f, h, at / PLANES) : 0.f;
    }
#pragma unroll
    for (int i = 0; i < BLOCK_K / LOAD_ROWS; ++i) {
      const int k = load_row + i * LOAD_ROWS;
      Ws[j][k] = valid && k0 + k < group_K ? filter[(long long)k * elements + j0 + j] : 0.f;
    }
    for (tap += BLOCK_C; tap >= taps; tap -= taps) ++channel;
    __syncthreads();
#pragma unroll
    for (int jj = 0; jj < BLOCK_C; ++jj) {
      const float4 a[2] = {*(const float4*)&Ws[jj][tk], *(const float4*)&Ws[jj][tk + 16]};
      const float4 b[2] = {*(const float4*)&Xs[jj][tq], *(const float4*)&Xs[jj][tq + 32]};
      multiply_accumulate(acc, a, b);
    }
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
