// 09_im2win_pipeline - a ring of STAGES shared tiles that cp.async fills while older ones are multiplied.
// idea    cp.async copies global to shared memory without passing through registers, and runs on while the warp computes:
//         STAGES - 1 slices are under way at any time, one barrier a step
// shapes  xw (N,C,P,WP*R)  wt (groups,C/groups*S*R,K/groups)  y (N,K,P,Q)  float32, C-contiguous; N*P*Q < 2^31
// launch  block (BLOCK_K/8 * BLOCK_Q/8,1,1)  grid (ceil(K/groups / BLOCK_K) * groups * ceil(N*P*Q / BLOCK_Q),1,1)
//         dynamic shared memory STAGES * BLOCK_C * (BLOCK_K + BLOCK_Q + 2*PAD) floats
// access  shared memory: cp.async of 4 bytes (windows start at any multiple of R) and, for filters where K/groups is a
//         multiple of 4, of 16 bytes; float4 loads
// needs   sm_80
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
#ifndef STAGES
#define STAGES 2  // slices in the ring; 1 waits for each slice before it multiplies
#endif
#define THREADS (BLOCK_K / 8 * BLOCK_Q / 8)
#define LOAD_ROWS (THREADS / BLOCK_C)  // pixels that the block loads at once
#define TILE (BLOCK_C * (BLOCK_K + BLOCK_Q + 2 * PAD))  // floats a stage: Ws[BLOCK_C][BLOCK_K + PAD], Xs[BLOCK_C][BLOCK_Q + PAD]
static_assert(BLOCK_K % 32 == 0 && BLOCK_Q % 64 == 0 && THREADS <= 1024, "BLOCK_K: of 32, BLOCK_Q: of 64, <= 1024 threads");
static_assert(THREADS % BLOCK_C == 0 && BLOCK_Q % LOAD_ROWS == 0, "BLOCK_C does not divide the tile");
static_assert(PAD % 4 == 0, "PAD: a multiple of 4 keeps float4 loads aligned");
static_assert(STAGES >= 1 && STAGES <= 5, "STAGES: 1 to 5");

// Start a copy of BYTES bytes to shared memory; zeros instead where `valid` is false (nothing is read then).
template <int BYTES>
__device__ inline void copy_async(float* to, const float* from, bool valid) {
  const unsigned shared = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until at most PENDING of this thread's groups are still under way.
template <int PENDING>
__device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// The filter as (group, element, channel), so that a slice's channels lie side by side: wt[g,e,k] = w[g*K/groups + k, e].
extern "C" __global__ void window_filter_by_channel(const float* w, float* wt, const Conv c) {
  const long long i = thread_index();
  const int group_K = c.K / c.groups, group_C = c.C / c.groups, taps = c.S * c.R;
  if (i >= (long long)c.K * group_C * taps) return;
  const int k = (int)(i % group_K), group = (int)(i / group_K / (group_C * taps));
  const int e = (int)(i / group_K % (group_C * taps)), channel = e / taps, s = e % taps / c.R, r = e % taps % c.R;
  wt[i] = w[(((long long)group * group_K + k) * group_C + channel) * taps + r * c.S + s];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    im2win_pipeline(const float* xw, const float* wt, const float* bias, float* y, const Conv c TIMELINE_PARAMETERS) {
  extern __shared__ __align__(16) float ring[];
  const auto Ws = [&](int stage, int j, int k) { return ring + stage * TILE + j * (BLOCK_K + PAD) + k; };
  const auto Xs = [&](int stage, int j, int q) {
    return ring + stage * TILE + BLOCK_C * (BLOCK_K + PAD) + j * (BLOCK_Q + PAD) + q;
  };

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
  const float* filter = wt + (long long)group * elements * group_K + k0;

  // Multiplying: a warp covers 32 x 64 outputs; this thread's are 4 + 4 rows from tk and 4 + 4 columns from tq.
  const int lane = t % 32, warp = t / 32;
  const int tk = warp / (BLOCK_Q / 64) * 32 + zigzag_k(lane) * 4, tq = warp % (BLOCK_Q / 64) * 64 + zigzag_q(lane) * 4;

  float acc[8][8] = {};
  long long channel = j / taps * plane;  // where the next slice's element lies in its window: channel, then tap
  int tap = j % taps;
  const auto fetch = [&](int step) {  // start the copies of a slice; past the last one there is nothing to copy
    const int stage = step % STAGES, j0 = step * BLOCK_C;
    if (j0 < elements) {
      STAMP(ISSUE, step);
      const bool valid = j0 + j < elements;
      const long long at = channel + (c.dilation_w == 1 ? tap : tap / c.R * c.dilation_w * c.R + tap % c.R);
#pragma unroll
      for (int i = 0; i < BLOCK_Q / LOAD_ROWS; ++i) {
        const bool inside = valid && window[i];
        copy_async<4>(Xs(stage, j, load_row + i * LOAD_ROWS), inside ? window[i] + at : xw, inside);
      }
      if (group_K % 4 == 0) {
#pragma unroll
        for (int i = t; i < BLOCK_C * BLOCK_K / 4; i += THREADS) {
          const int jj = i / (BLOCK_K / 4), k = i % (BLOCK_K / 4) * 4;
          const bool inside = j0 + jj < elements && k0 + k < group_K;
          copy_async<16>(Ws(stage, jj, k), inside ? filter + (long long)(j0 + jj) * group_K + k : wt, inside);
        }
      } else {
        for (int i = t; i < BLOCK_C * BLOCK_K; i += THREADS) {
          const int jj = i / BLOCK_K, k = i % BLOCK_K;
          const bool inside = j0 + jj < elements && k0 + k < group_K;
          copy_async<4>(Ws(stage, jj, k), inside ? filter + (long long)(j0 + jj) * group_K + k : wt, inside);
        }
      }
      for (tap += BLOCK_C; tap >= taps; tap -= taps) channel += plane;
      STAMP(ISSUED, step);
    }
    commit_copies();  // an empty group keeps the count of groups equal to the count of steps
  };

  for (int step = 0; step < STAGES - 1; ++step) fetch(step);
  for (int step = 0; step * BLOCK_C < elements; ++step) {
    if (STAGES == 1) fetch(step);
    wait_copies<STAGES == 1 ? 0 : STAGES - 2>();
    __syncthreads();  // everyone's copies of this slice have landed, and the slice before it is used up
    STAMP(ARRIVE, step);
    if (STAGES > 1) fetch(step + STAGES - 1);
    const int stage = step % STAGES;
#pragma unroll
    for (int jj = 0; jj < BLOCK_C; ++jj) {
      const float4 a[2] = {*(const float4*)Ws(stage, jj, tk), *(const float4*)Ws(stage, jj, tk + 16)};
      const float4 b[2] = {*(const float4*)Xs(stage, jj, tq), *(const float4*)Xs(stage, jj, tq + 32)};
      multiply_accumulate(acc, a, b);
    }
    STAMP(CONSUME, step);
    if (STAGES == 1) __syncthreads();  // the only tile is written again at once
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
