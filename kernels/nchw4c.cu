// nchw4c - four channels side by side, the way a texture's RGBA texel holds them.
// idea    x4[n, c/4, h, w, c%4] = x[n,c,h,w], zeros where C is not a multiple of 4
// shapes  x (N,C,H,W) -> x4 (N,ceil(C/4),H,W,4)  float32, C-contiguous
// launch  block (BLOCK,1,1)  grid (ceil(N*ceil(C/4)*H*W / BLOCK),1,1); one thread a texel, one float4 store
#ifndef BLOCK
#define BLOCK 128  // threads a block
#endif
static_assert(BLOCK >= 32 && BLOCK <= 1024 && BLOCK % 32 == 0, "BLOCK: a multiple of 32, at most 1024");

extern "C" __global__ void nchw4c(const float* x, float* x4, const Conv c) {
  const long long i = thread_index(), image = (long long)c.H * c.W;
  const int slices = (c.C + 3) / 4;
  if (i >= c.N * slices * image) return;
  const long long at = i % image, n = i / image / slices;
  const int channel = (int)(i / image % slices) * 4;
  const float* from = x + (n * c.C + channel) * image + at;
  float v[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) v[e] = channel + e < c.C ? from[e * image] : 0.f;
  *(float4*)(x4 + 4 * i) = make_float4(v[0], v[1], v[2], v[3]);
}
