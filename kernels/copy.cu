// copy - read n floats, write n floats: the speed of light of any kernel that moves as much.
// idea    one float4 a thread; nothing else to do
// shapes  x (n) -> y (n)  float32
// launch  block (BLOCK,1,1)  grid (ceil(n / 4 / BLOCK),1,1)
#ifndef BLOCK
#define BLOCK 256  // threads a block
#endif
static_assert(BLOCK >= 32 && BLOCK <= 1024 && BLOCK % 32 == 0, "BLOCK: a multiple of 32, at most 1024");

extern "C" __global__ void copy(const float* x, float* y, const long long n) {
  const long long i = thread_index() * 4;
  if (i + 4 <= n) {
    *(float4*)(y + i) = *(const float4*)(x + i);
  } else {
    for (long long e = i; e < n; ++e) y[e] = x[e];
  }
}
