// common.cuh - the convolution's extents and what every kernel shares. Pasted in front of each kernel file.
// Letters as everywhere: N batch, C channels, H x W input, K output channels, R x S filter, P x Q output.

struct Conv {
  int N, C, H, W, K, R, S, P, Q;
  int stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w, groups;
  int WP;  // width of the padded input
};

// Which output a flat index into y (N,K,P,Q) is.
struct Output { int n, k, p, q; };

__device__ inline Output output_at(long long i, const Conv& c) {
  Output o;
  o.q = (int)(i % c.Q), i /= c.Q;
  o.p = (int)(i % c.P), i /= c.P;
  o.k = (int)(i % c.K);
  o.n = (int)(i / c.K);
  return o;
}

// The flat index of this thread in a one-dimensional launch; 64 bits, as y may hold more than 2^31 elements.
__device__ inline long long thread_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }

// acc[i][j] += a[i] * b[j] for an 8 x 8 tile held in registers; a and b come as two float4 each.
__device__ inline void multiply_accumulate(float acc[8][8], const float4 (&a)[2], const float4 (&b)[2]) {
  const float av[8] = {a[0].x, a[0].y, a[0].z, a[0].w, a[1].x, a[1].y, a[1].z, a[1].w};
  const float bv[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) acc[i][j] += av[i] * bv[j];
}

// Rung 05's zig-zag: row 0-3 and column 0-7 of a lane in the warp's 4 x 8 grid of thread tiles.
__device__ inline int zigzag_k(int lane) { return lane >> 1 & 1 | lane >> 2 & 2; }
__device__ inline int zigzag_q(int lane) { return lane & 1 | lane >> 1 & 2 | lane >> 2 & 4; }

// Write four neighbouring pixels of output channel k; `pixel` counts over (N,P,Q) and is a multiple of 4.
__device__ inline void store_pixels(float* y, const float* v, float bias, int k, int pixel, const Conv& c) {
  const int image = c.P * c.Q;
  if (image % 4 == 0 && pixel < c.N * image) {  // four pixels of one image, 16-byte aligned: one store
    const long long at = ((long long)(pixel / image) * c.K + k) * image + pixel % image;
    *(float4*)(y + at) = make_float4(v[0] + bias, v[1] + bias, v[2] + bias, v[3] + bias);
    return;
  }
  for (int e = 0; e < 4; ++e, ++pixel)
    if (pixel < c.N * image) y[((long long)(pixel / image) * c.K + k) * image + pixel % image] = v[e] + bias;
}

// With -DTIMELINE=n a kernel stamps the multiprocessor's clock for the first n tiles of each warp of some blocks: when the
// tile's loads begin (ISSUE) and are all under way (ISSUED), when it is there for the whole block (ARRIVE), and when the
// warp has used it up (CONSUME). Without the switch nothing of this is compiled.
#ifdef TIMELINE
#define TIMELINE_PARAMETERS , long long *timeline, int first_block, int blocks
#define STAMP(event, step) stamp(timeline, first_block, blocks, event, step)
enum Event { ISSUE, ISSUED, ARRIVE, CONSUME };

// timeline (blocks, warps, TIMELINE + 1, 4): the last row holds the number of the multiprocessor.
__device__ inline void stamp(long long* timeline, int first_block, int blocks, Event event, int step) {
  const unsigned block = blockIdx.x - first_block;
  if (block >= (unsigned)blocks || step >= TIMELINE || threadIdx.x % 32 != 0) return;
  long long now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  long long* rows = timeline + ((long long)block * warps + warp) * (TIMELINE + 1) * 4;
  rows[step * 4 + event] = now;
  unsigned multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  if (step == 0) rows[TIMELINE * 4] = multiprocessor;
}
#else
#define TIMELINE_PARAMETERS
#define STAMP(event, step)
#endif
