// texture_probe - read one image in a given order, along different paths to the same L1 cache.
// idea    the order comes from a buffer and every path visits the same places, so only the path and the layout differ
// shapes  image (height,width) float32, or (height,width,4) for the ...4 probes  order (blocks, steps/4, THREADS, 4) int32
//         y (blocks*THREADS) float32: what each thread read, summed
// launch  block (THREADS,1,1)  grid (blocks,1,1); steps a multiple of 4
// access  one fetch of a thread at a time, so that a hit never waits for a line that is still under way; the order itself
//         goes past the L1 cache
#ifndef THREADS
#define THREADS 256  // threads a block: warps that share an L1 cache
#endif
#ifndef WINDOW
#define WINDOW 1  // texels read at each place: WINDOW x WINDOW around it
#endif
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS: a multiple of 32, at most 1024");
static_assert(WINDOW % 2 == 1, "WINDOW: odd, so that it has a middle");
#define NEVER 0x7fc0dead  // a bit pattern no texel has

// The next four places of this thread, each y * 65536 + x.
__device__ inline int4 next_places(const int4* order, int4* slot) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n\tcp.async.wait_all;"
               ::"r"((unsigned)__cvta_generic_to_shared(slot)), "l"(order) : "memory");
  return *slot;
}

template <class Read>
__device__ float walk(const int4* order, const int steps, const Read read) {
  __shared__ int4 slots[THREADS];
  order += (long long)blockIdx.x * (steps / 4) * THREADS + threadIdx.x;
  float sum = 0.f;
  int late = 0;  // always 0, but known only when the last fetch has arrived
  for (int s = 0; s < steps; s += 4, order += THREADS) {
    const int4 four = next_places(order, slots + threadIdx.x);
    const int places[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll 1
      for (int v = -(WINDOW / 2); v <= WINDOW / 2; ++v)
#pragma unroll 1
        for (int u = -(WINDOW / 2); u <= WINDOW / 2; ++u) {
          const float value = read((places[e] & 0xffff) + u + late, (places[e] >> 16) + v);
          late = __float_as_int(value) == NEVER;
          sum += value;
        }
  }
  return sum;
}

__device__ inline float sum_of(const float4 v) { return v.x + v.y + v.z + v.w; }

// Plain loads: outside the image is outside the buffer, so every read is guarded.
extern "C" __global__ void probe_global(const float* image, const int4* order, float* y, int width, int height, int steps) {
  y[thread_index()] = walk(order, steps, [=](int u, int v) {
    return u >= 0 && u < width && v >= 0 && v < height ? image[v * width + u] : 0.f;
  });
}

// The same through the read-only path (ld.global.nc).
extern "C" __global__ void probe_ldg(const float* image, const int4* order, float* y, int width, int height, int steps) {
  y[thread_index()] = walk(order, steps, [=](int u, int v) {
    return u >= 0 && u < width && v >= 0 && v < height ? __ldg(image + v * width + u) : 0.f;
  });
}

// Four channels at once.
extern "C" __global__ void probe_global4(const float4* image, const int4* order, float* y, int width, int height, int steps) {
  y[thread_index()] = walk(order, steps, [=](int u, int v) {
    return u >= 0 && u < width && v >= 0 && v < height ? sum_of(image[v * width + u]) : 0.f;
  });
}

// Textures: what lies outside is the view's business.
extern "C" __global__ void probe_texture(cudaTextureObject_t image, const int4* order, float* y, int steps) {
  y[thread_index()] = walk(order, steps, [=](int u, int v) { return tex2D<float>(image, u + 0.5f, v + 0.5f); });
}

// On the corner between four texels, of which the filter makes one value.
extern "C" __global__ void probe_filter(cudaTextureObject_t image, const int4* order, float* y, int steps) {
  y[thread_index()] = walk(order, steps, [=](int u, int v) { return tex2D<float>(image, u + 1.f, v + 1.f); });
}

// Four channels a texel, as NCHW4c has them.
extern "C" __global__ void probe_texture4(cudaTextureObject_t image, const int4* order, float* y, int steps) {
  y[thread_index()] = walk(order, steps, [=](int u, int v) { return sum_of(tex2D<float4>(image, u + 0.5f, v + 0.5f)); });
}

// Surfaces count x in bytes.
extern "C" __global__ void probe_surface(cudaSurfaceObject_t image, const int4* order, float* y, int steps) {
  y[thread_index()] =
      walk(order, steps, [=](int u, int v) { return surf2Dread<float>(image, 4 * u, v, cudaBoundaryModeZero); });
}

// How long a fetch of texel (z,w) takes after one of (x,y): short if both lie in one sector of the cache.
extern "C" __global__ void probe_latency(cudaTextureObject_t image, const int4* pairs, int* cycles) {
  const int4 p = pairs[blockIdx.x];
  if (__float_as_int(tex2D<float>(image, p.x + 0.5f, p.y + 0.5f)) == NEVER) return;
  const long long start = clock64();
  if (__float_as_int(tex2D<float>(image, p.z + 0.5f, p.w + 0.5f)) == NEVER) return;
  cycles[blockIdx.x] = (int)(clock64() - start);
}
