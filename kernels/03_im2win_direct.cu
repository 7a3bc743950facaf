// 03_im2win_direct - one thread per output, reading the im2win layout.
// idea    the R*S window of one output is ONE contiguous slice of xw (S runs of R elements when dilation_w > 1)
// shapes  xw (N,C,P,WP*R)  wt (K,C/groups,S*R)  y (N,K,P,Q)  float32, C-contiguous
// launch  block (BLOCK,1,1)  grid (ceil(N*K*P*Q / BLOCK),1,1)
// next    04 stages slices in shared memory and keeps an 8 x 8 tile of outputs in registers
#ifndef BLOCK
#define BLOCK 128  // threads a block
#endif
static_assert(BLOCK >= 32 && BLOCK <= 1024 && BLOCK % 32 == 0, "BLOCK: a multiple of 32, at most 1024");

extern "C" __global__ void im2win_direct(const float* xw, const float* wt, const float* bias, float* y, const Conv c) {
  const long long i = thread_index();
  if (i >= (long long)c.N * c.K * c.P * c.Q) return;
  const Output o = output_at(i, c);
  const int channels = c.C / c.groups, first = o.k / (c.K / c.groups) * channels;
  const int row = c.WP * c.R;                                         // elements of one row of xw
  float acc = 0.f;
  for (int ch = 0; ch < channels; ++ch) {
    const float* window = xw + (((long long)o.n * c.C + first + ch) * c.P + o.p) * row + (long long)o.q * c.stride_w * c.R;
    const float* filter = wt + ((long long)o.k * channels + ch) * c.S * c.R;
    for (int s = 0; s < c.S; ++s)
      for (int r = 0; r < c.R; ++r) acc += window[s * c.dilation_w * c.R + r] * filter[s * c.R + r];
  }
  y[i] = acc + (bias ? bias[o.k] : 0.f);
}
