// 01_direct - one thread per output, reading the image where it lies.
// idea    the definition: y[n,k,p,q] = sum over c,r,s of x[n,c,p*stride+r,q*stride+s] * w[k,c,r,s]
// shapes  x (N,C,H,W)  w (K,C/groups,R,S)  y (N,K,P,Q)  float32, C-contiguous
// launch  block (BLOCK,1,1)  grid (ceil(N*K*P*Q / BLOCK),1,1)
// next    02 copies the image so that a window becomes one contiguous run
#ifndef BLOCK
#define BLOCK 128  // threads a block
#endif
static_assert(BLOCK >= 32 && BLOCK <= 1024 && BLOCK % 32 == 0, "BLOCK: a multiple of 32, at most 1024");

extern "C" __global__ void direct(const float* x, const float* w, const float* bias, float* y, const Conv c) {
  const long long i = thread_index();
  if (i >= (long long)c.N * c.K * c.P * c.Q) return;
  const Output o = output_at(i, c);
  const int channels = c.C / c.groups, first = o.k / (c.K / c.groups) * channels;
  float acc = 0.f;
  for (int ch = 0; ch < channels; ++ch) {
    const float* image = x + ((long long)o.n * c.C + first + ch) * c.H * c.W;
    const float* filter = w + ((long long)o.k * channels + ch) * c.R * c.S;
    for (int r = 0; r < c.R; ++r) {
      const int row = o.p * c.stride_h + r * c.dilation_h - c.pad_top;
      if (row < 0 || row >= c.H) continue;  // padding is zero: nothing to add
      for (int s = 0; s < c.S; ++s) {
        const int col = o.q * c.stride_w + s * c.dilation_w - c.pad_left;
        if (col >= 0 && col < c.W) acc += image[(long long)row * c.W + col] * filter[r * c.S + s];
      }
    }
  }
  y[i] = acc + (bias ? bias[o.k] : 0.f);
}
