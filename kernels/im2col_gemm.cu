// im2col_gemm - multiply the filters by the im2col matrix: the baseline that im2win is compared with.
// idea    a convolution becomes one matrix product per image, at the price of the R*S-fold copy
// shapes  col (N,C*R*S,P*Q)  w (K,C/groups*R*S)  y (N,K,P,Q)  float32, C-contiguous; N*P*Q < 2^31
// launch  block (BLOCK_K/8 * BLOCK_Q/8,1,1)  grid (ceil(K/groups / BLOCK_K) * groups * ceil(N*P*Q / BLOCK_Q),1,1)
// access  shared memory: float stores, float4 loads; the micro-kernel is rung 04's
#ifndef BLOCK_K
#define BLOCK_K 64  // output channels a block computes
#endif
#ifndef BLOCK_Q
#define BLOCK_Q 128  // pixels a block computes
#endif
#ifndef BLOCK_C
#define BLOCK_C 8  // rows of col a step stages in shared memory
#endif
#define THREADS (BLOCK_K / 8 * BLOCK_Q / 8)
static_assert(BLOCK_K % 8 == 0 && BLOCK_Q % 8 == 0 && THREADS <= 1024, "BLOCK_K, BLOCK_Q: multiples of 8, <= 1024 threads");
static_assert(THREADS % BLOCK_Q == 0 && BLOCK_C % (THREADS / BLOCK_Q) == 0, "a block loads whole rows: BLOCK_K a multiple of 64");

extern "C" __global__ void __launch_bounds__(THREADS)
    im2col_gemm(const float* col, const float* w, const float* bias, float* y, const Conv c) {
  __shared__ __align__(16) float Ws[BLOCK_C][BLOCK_K + 4];
  __shared__ __align__(16) float Xs[BLOCK_C][BLOCK_Q];

  const int group_K = c.K / c.groups, group_C = c.C / c.groups, k_tiles = (group_K + BLOCK_K - 1) / BLOCK_K;
  const int tile = blockIdx.x, group = tile / k_tiles % c.groups;
  const int k0 = tile % k_tiles * BLOCK_K, pixel0 = tile / k_tiles / c.groups * BLOCK_Q;
  const int image = c.P * c.Q, elements = group_C * c.R * c.S;
  const float* filter = w + ((long long)group * group_K + k0) * elements;

  // Loading: neighbouring threads take neighbouring pixels of one row of col.
  const int t = threadIdx.x, load_row = t / BLOCK_Q, load_pixel = t % BLOCK_Q, pixel = pixel0 + load_pixel;
  const float* column = col + ((long long)(pixel / image) * c.C * c.R * c.S + group * elements) * image + pixel % image;
  const int tk = t / (BLOCK_Q / 8) * 8, tq = t % (BLOCK_Q / 8) * 8;

  float acc[8][8] = {};
  for (int j0 = 0; j0 < elements; j0 += BLOCK_C) {
#pragma unroll
    for (int j = load_row; j < BLOCK_C; j += THREADS / BLOCK_Q)
      Xs[j][load_pixel] = j0 + j < elements && pixel < c.N * image ? column[(long long)(j0 + j) * image] : 0.f;
#pragma unroll
    for (int i = t; i < BLOCK_C * BLOCK_K; i += THREADS) {
      const int j = i % BLOCK_C, k = i / BLOCK_C;
      Ws[j][k] = j0 + j < elements && k0 + k < group_K ? filter[(long long)k * elements + j0 + j] : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < BLOCK_C; ++j) {
      const float4 a[2] = {*(const float4*)&Ws[j][tk], *(const float4*)&Ws[j][tk + 4]};
      const float4 b[2] = {*(const float4*)&Xs[j][tq], *(const float4*)&Xs[j][tq + 4]};
      multiply_accumulate(acc, a, b);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int k_in_group = k0 + tk + i, k = group * group_K + k_in_group;
    if (k_in_group >= group_K) continue;
    const float b = bias ? bias[k] : 0.f;
    store_pixels(y, &acc[i][0], b, k, pixel0 + tq, c);
    store_pixels(y, &acc[i][4], b, k, pixel0 + tq + 4, c);
  }
}
