// 08_im2win_tensor_core - the window order on matrix units: slices of windows in shared memory, mma.sync on them.
// idea    a window is a row of (s,r,c) elements; 128-byte slices of many windows and filters are gathered straight from the
//         image (nothing is materialised), stored with their 16-byte chunks XORed by the row, and fed to ldmatrix and mma
// shapes  x (N,C,H,W) or (N,H,W,C)  wt (groups,K/groups,E) with E = S*R*C/groups rounded up to 16 bytes
//         y (N,K,P,Q) or (N,P,Q,K); one N*P*Q < 2^31
// launch  block (BLOCK_Q/64 * BLOCK_K/32 * 32,1,1)  grid (ceil(K/groups / BLOCK_K) * groups * ceil(N*P*Q / BLOCK_Q),1,1)
//         dynamic shared memory: the ring of STAGES slices, or the output tile if that is larger
// access  shared memory: cp.async of 16 bytes or 16-byte stores, ldmatrix of 16-byte rows
// source  fragments and ldmatrix: PTX ISA, "Matrix multiply-accumulate"; every precision has 32-byte fragments' rows
// needs   sm_80
#ifndef PRECISION
#define PRECISION 0  // 0 float16, 1 bfloat16, 2 tf32 (float32 in memory), 3 int8, 4 float8 e4m3
#endif
#ifndef NHWC
#define NHWC 0  // 1: channels innermost in x and y
#endif
#ifndef WIDE_OUTPUT
#define WIDE_OUTPUT 0  // 0: y has the input's type; 1: that of the sums (int32 for int8, else float32); 2: float32
#endif
#ifndef RELU
#define RELU 0  // 1: negative outputs become zero
#endif
#ifndef BLOCK_K
#define BLOCK_K 64  // output channels a block computes
#endif
#ifndef BLOCK_Q
#define BLOCK_Q 128  // pixels a block computes
#endif
#ifndef STAGES
#define STAGES 2  // slices in the ring
#endif
#ifndef SWIZZLE
#define SWIZZLE 1  // 0: chunks where they fall, with the bank conflicts that brings
#endif
#define THREADS (BLOCK_Q / 64 * (BLOCK_K / 32) * 32)
#define LOAD_ROWS (THREADS / 8)  // rows that the block copies at once, eight chunks each
#define ROW_EXISTS(i) (BLOCK_Q % LOAD_ROWS == 0 || threadIdx.x / 8 + (i) * LOAD_ROWS < BLOCK_Q)
static_assert(PRECISION >= 0 && PRECISION <= 4, "PRECISION: 0 to 4");
static_assert(BLOCK_K % 32 == 0 && BLOCK_Q % 64 == 0 && THREADS <= 1024, "BLOCK_K: of 32, BLOCK_Q: of 64, <= 1024 threads");
static_assert(LOAD_ROWS % 8 == 0, "BLOCK_Q / 64 * BLOCK_K / 32 must be even: rows copied by one thread must swizzle alike");
static_assert(STAGES >= 2 && STAGES <= 6, "STAGES: 2 to 6");

#if PRECISION == 2
typedef unsigned int Element;  // bits only: nothing but mma looks inside
#elif PRECISION <= 1
typedef unsigned short Element;
#else
typedef unsigned char Element;
#endif
#if PRECISION == 3
typedef int Sum;
#else
typedef float Sum;
#endif
#if WIDE_OUTPUT == 2
typedef float Result;
#elif WIDE_OUTPUT
typedef Sum Result;
#else
typedef Element Result;
#endif
constexpr int CHUNK = 16 / sizeof(Element);   // elements of a 16-byte chunk
constexpr int SLICE = 128 / sizeof(Element);  // elements of a window staged at once
constexpr int STAGE_BYTES = (BLOCK_Q + BLOCK_K) * 128;

// Byte offset of a chunk in a tile of 128-byte rows.
__device__ inline int chunk_at(int row, int chunk) { return row * 128 + (SWIZZLE ? chunk ^ row & 7 : chunk) * 16; }

// Start a copy of BYTES bytes to shared memory; zeros instead where `valid` is false (nothing is read then).
template <int BYTES>
__device__ inline void copy_async(unsigned shared, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until at most PENDING of this thread's groups are still under way.
template <int PENDING>
__device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

__device__ inline void load_fragment(unsigned (&to)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared)
               : "memory");
}

#if PRECISION == 3
#define MMA_REGISTER "+r"
#else
#define MMA_REGISTER "+f"
#endif
#if PRECISION == 0
#define MMA_SHAPE "m16n8k16.row.col.f32.f16.f16.f32"
#elif PRECISION == 1
#define MMA_SHAPE "m16n8k16.row.col.f32.bf16.bf16.f32"
#elif PRECISION == 2
#define MMA_SHAPE "m16n8k8.row.col.f32.tf32.tf32.f32"
#elif PRECISION == 3
#define MMA_SHAPE "m16n8k32.row.col.s32.s8.s8.s32"
#else
#define MMA_SHAPE "m16n8k32.row.col.f32.e4m3.e4m3.f32"
#endif
// d += a * b for 16 pixels by 8 channels over 32 bytes of window.
__device__ inline void multiply(Sum (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned." MMA_SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : MMA_REGISTER(d[0]), MMA_REGISTER(d[1]), MMA_REGISTER(d[2]), MMA_REGISTER(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One output in the type of y; e4m3 and int8 saturate.
__device__ inline Result result(Sum sum, float scale, float bias) {
#if WIDE_OUTPUT == 1 && PRECISION == 3
  return RELU && sum < 0 ? 0 : sum;  // exact: scale and bias belong to float outputs
#else
  float v = (float)sum * scale + bias;
  if (RELU) v = v < 0.f ? 0.f : v;  // NaN stays NaN
#if WIDE_OUTPUT || PRECISION == 2
  Result out;
  memcpy(&out, &v, 4);
  return out;
#elif PRECISION == 0
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  return h;
#elif PRECISION == 1
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
  return h;
#elif PRECISION == 3
  int i;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(i) : "f"(v));
  return (Result)(i < -128 ? -128 : i > 127 ? 127 : i);
#else
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(v));
  return (Result)pair;
#endif
#endif
}

// The filter in window order, each row a multiple of 16 bytes: wt[g,k, (s*R + r)*C/groups + c] = w[g*K/groups + k, c, r, s].
extern "C" __global__ void tensor_core_filter(const Element* w, Element* wt, const Conv c) {
  const long long i = thread_index();
  const int group_C = c.C / c.groups, taps = c.R * c.S, pitch = (group_C * taps + CHUNK - 1) / CHUNK * CHUNK;
  if (i >= (long long)c.K * pitch) return;
  const int e = (int)(i % pitch), channel = e % group_C, r = e / group_C % c.R, s = e / group_C / c.R;
  wt[i] = s < c.S ? w[(i / pitch * group_C + channel) * taps + r * c.S + s] : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    im2win_tensor_core(const Element* x, const Element* wt, const float* scale, const float* bias, Result* y, const Conv c) {
  extern __shared__ __align__(128) unsigned char ring[];  // a stage: BLOCK_Q rows of windows, then BLOCK_K of filters
  __shared__ int3 pixels[BLOCK_Q];  // each window's offset from the tile's first image, its first row and first column

  const int group_K = c.K / c.groups, group_C = c.C / c.groups, k_tiles = (group_K + BLOCK_K - 1) / BLOCK_K;
  const int tile = blockIdx.x, group = tile / k_tiles % c.groups;
  const int k0 = tile % k_tiles * BLOCK_K, pixel0 = tile / k_tiles / c.groups * BLOCK_Q;
  const int image = c.P * c.Q, elements = group_C * c.R * c.S, pitch = (elements + CHUNK - 1) / CHUNK * CHUNK;
  const int step_c = NHWC ? 1 : c.H * c.W, step_w = NHWC ? c.C : 1, step_h = step_w * c.W;
  const int first_image = pixel0 / image;
  const Element* base = x + (long long)first_image * c.C * c.H * c.W + (long long)group * group_C * step_c;
  const Element* filter = wt + ((long long)group * group_K + k0) * pitch;
  const int t = threadIdx.x;

  for (int i = t; i < BLOCK_Q; i += THREADS) {  // past the last pixel: that one again, computed but not written
    const int pixel = min(pixel0 + i, c.N * image - 1), n = pixel / image - first_image;
    const int h = pixel % image / c.Q * c.stride_h - c.pad_top, w = pixel % c.Q * c.stride_w - c.pad_left;
    pixels[i] = make_int3(n * c.C * c.H * c.W + h * step_h + w * step_w, h, w);
  }
  __syncthreads();

  const unsigned shared = (unsigned)__cvta_generic_to_shared(ring);
  const bool vector = NHWC && group_C % CHUNK == 0;  // a chunk is one run of channels: copy it as such
  const bool padded = c.pad_top || c.WP > c.W || (c.P - 1) * c.stride_h + (c.R - 1) * c.dilation_h >= c.H;
  // Offsets in the image from one tap to the next: down a row of the window; then to the top of its next column.
  const int down = c.dilation_h * step_h, across = c.dilation_w * step_w - c.R * down;

  // This thread copies chunk t % 8 of every LOAD_ROWS-th pixel: where that chunk lies in the window, slice by slice.
  constexpr int ROWS = (BLOCK_Q + LOAD_ROWS - 1) / LOAD_ROWS;
  int from_row[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) from_row[i] = ROW_EXISTS(i) ? pixels[t / 8 + i * LOAD_ROWS].x : 0;
  int channel = t % 8 * CHUNK % group_C, r = t % 8 * CHUNK / group_C % c.R, s = t % 8 * CHUNK / group_C / c.R;
  const auto fetch = [&](int slice) {
    const unsigned stage = slice % STAGES * STAGE_BYTES;
    if (slice * SLICE < elements) {
      if (vector) {
        const int h = r * c.dilation_h, w = s * c.dilation_w;
        const bool valid = slice * SLICE + t % 8 * CHUNK < elements;
        const Element* from = valid ? base + channel + h * step_h + w * step_w : x;
        const unsigned to = shared + stage + chunk_at(t / 8, t % 8);
        if (!padded) {
#pragma unroll
          for (int i = 0; i < ROWS; ++i)
            if (ROW_EXISTS(i)) copy_async<16>(to + i * LOAD_ROWS * 128, from + from_row[i], valid);
        } else {
#pragma unroll
          for (int i = 0; i < ROWS; ++i) {
            const int row = t / 8 + i * LOAD_ROWS;
            if (!ROW_EXISTS(i)) break;
            const int3 p = pixels[row];
            const bool inside = valid && (unsigned)(p.y + h) < c.H && (unsigned)(p.z + w) < c.W;
            copy_async<16>(to + i * LOAD_ROWS * 128, inside ? from + p.x : x, inside);
          }
        }
        for (channel += SLICE; channel >= group_C; channel -= group_C)
          if (++r == c.R) r = 0, ++s;
      } else {
        for (int i = t; i < BLOCK_Q * 8; i += THREADS) {  // a thread gathers chunks of one pixel, element by element
          const int row = i % BLOCK_Q, chunk = i / BLOCK_Q;
          const int3 p = pixels[row];
          const int e = slice * SLICE + chunk * CHUNK;
          int channel = e % group_C, r = e / group_C % c.R, s = e / group_C / c.R;
          const Element* from = base + p.x + channel * step_c + r * down + s * c.dilation_w * step_w;
          __align__(16) Element part[CHUNK];
#pragma unroll
          for (int j = 0; j < CHUNK; ++j) {
            bool inside = e + j < elements;
            if (padded) {
              const int h = p.y + r * c.dilation_h, w = p.z + s * c.dilation_w;
              inside = inside && (unsigned)h < c.H && (unsigned)w < c.W;
            }
            part[j] = inside ? *from : 0;
            from += step_c;
            if (++channel == group_C) {
              channel = 0, from += down - group_C * step_c;
              if (++r == c.R) r = 0, ++s, from += across;
            }
          }
          *(uint4*)(ring + stage + chunk_at(row, chunk)) = *(const uint4*)part;
        }
      }
#pragma unroll 4
      for (int i = t; i < BLOCK_K * 8; i += THREADS) {
        const int row = i / 8, chunk = i % 8, e = slice * SLICE + chunk * CHUNK;
        const bool inside = k0 + row < group_K && e < pitch;
        const unsigned to = shared + stage + BLOCK_Q * 128 + chunk_at(row, chunk);
        copy_async<16>(to, inside ? filter + (long long)row * pitch + e : wt, inside);
      }
    }
    commit_copies();
  };

  // A warp computes 64 pixels by 32 channels: 4 x 4 products of 16 x 8.
  const int lane = t % 32, warp = t / 32, warp_q = warp / (BLOCK_K / 32) * 64, warp_k = warp % (BLOCK_K / 32) * 32;
  const int a_row = warp_q + lane % 16, a_chunk = lane / 16;
  const int b_row = warp_k + lane % 8 + lane / 16 * 8, b_chunk = lane / 8 % 2;
  Sum acc[4][4][4] = {};
  for (int slice = 0; slice < STAGES - 1; ++slice) fetch(slice);
  for (int slice = 0; slice * SLICE < elements; ++slice) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // everyone's copies of this slice have landed, and the slice before it is used up
    fetch(slice + STAGES - 1);
    const unsigned windows = shared + slice % STAGES * STAGE_BYTES, filters = windows + BLOCK_Q * 128;
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // 32 of the 128 bytes
      unsigned a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_fragment(a[i], windows + chunk_at(a_row + i * 16, part * 2 + a_chunk));
#pragma unroll
      for (int i = 0; i < 2; ++i) load_fragment(b[i], filters + chunk_at(b_row + i * 16, part * 2 + b_chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  wait_copies<0>();
  __syncthreads();  // the ring is free: it now takes the output tile, so that global stores are whole lines

  constexpr int PAD = 16 / sizeof(Result), ROW = (NHWC ? BLOCK_K : BLOCK_Q) + PAD;
  Result* out = (Result*)ring;
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = warp_k + j * 8 + lane % 4 * 2 + e, k = k0 + column < group_K ? group * group_K + k0 + column : 0;
      const float factor = scale ? scale[k] : 1.f, term = bias ? bias[k] : 0.f;
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = warp_q + i * 16 + lane / 4 + half * 8;
          out[NHWC ? row * ROW + column : column * ROW + row] = result(acc[i][j][half * 2 + e], factor, term);
        }
    }
  __syncthreads();
  if (NHWC) {
    Result* to = y + (long long)pixel0 * c.K + group * group_K + k0;
    if (c.K % PAD == 0 && group_K % PAD == 0) {
      for (int i = t; i < BLOCK_Q * (BLOCK_K / PAD); i += THREADS) {
        const int row = i / (BLOCK_K / PAD), column = i % (BLOCK_K / PAD) * PAD;
        if (pixel0 + row < c.N * image && k0 + column < group_K)
          *(uint4*)(to + (long long)row * c.K + column) = *(const uint4*)(out + row * ROW + column);
      }
    } else {
      for (int i = t; i < BLOCK_Q * BLOCK_K; i += THREADS) {
        const int row = i / BLOCK_K, column = i % BLOCK_K;
        if (pixel0 + row < c.N * image && k0 + column < group_K) to[(long long)row * c.K + column] = out[row * ROW + column];
      }
    }
  } else {
    for (int i = t; i < BLOCK_Q * BLOCK_K; i += THREADS) {
      const int row = i % BLOCK_Q, column = i / BLOCK_Q, pixel = pixel0 + row;
      if (pixel < c.N * image && k0 + column < group_K)
        y[((long long)(pixel / image) * c.K + group * group_K + k0 + column) * image + pixel % image] = out[column * ROW + row];
    }
  }
}
