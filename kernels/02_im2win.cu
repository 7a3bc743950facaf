// 02_im2win - copy the image into window order, once, before the convolution.
// idea    xw[n,c,p, w*R + r] = padded x[n,c, p*stride_h + r*dilation_h, w]: the R rows that output row p needs are
//         interleaved column by column, so the R*S window of pixel q is one run that starts at q*stride_w*R
// shapes  x (N,C,H,W) -> xw (N,C,P,WP*R)    w (K,C/groups,R,S) -> wt (K,C/groups,S*R)    float32, C-contiguous
// launch  im2win: block (32,BLOCK_ROWS,1), a warp a row of xw, grid (ceil(N*C*P / BLOCK_ROWS), ceil(WP*R / 128), 1)
//         window_filter: block (256,1,1), grid (ceil(K*C/groups*R*S / 256),1,1)
// source  im2win layout: arXiv:2306.14316, section 3
// next    03 convolves from xw
#ifndef BLOCK_ROWS
#define BLOCK_ROWS 8  // rows of xw a block writes
#endif
static_assert(BLOCK_ROWS >= 1 && BLOCK_ROWS <= 32, "BLOCK_ROWS: 1 to 32 warps of 32 lanes");

extern "C" __global__ void im2win(const float* x, float* xw, const Conv c) {
  const long long row = (long long)blockIdx.x * BLOCK_ROWS + threadIdx.y;  // (n*C + channel)*P + p
  if (row >= (long long)c.N * c.C * c.P) return;
  const int p = (int)(row % c.P);
  const float* image = x + row / c.P * c.H * c.W;
  const int top = p * c.stride_h - c.pad_top, length = c.WP * c.R;
  for (int i = blockIdx.y * 32 + threadIdx.x; i < length; i += gridDim.y * 32) {
    const int r = i % c.R, h = top + r * c.dilation_h, w = i / c.R - c.pad_left;
    const bool inside = h >= 0 && h < c.H && w >= 0 && w < c.W;
    xw[row * length + i] = inside ? image[(long long)h * c.W + w] : 0.f;
  }
}

// The filter in the same order: wt[k,c, s*R + r] = w[k,c,r,s].
extern "C" __global__ void window_filter(const float* w, float* wt, const Conv c) {
  const long long i = thread_index();
  if (i >= (long long)c.K * (c.C / c.groups) * c.R * c.S) return;
  const int taps = c.R * c.S, j = (int)(i % taps), r = j % c.R, s = j / c.R;
  wt[i] = w[i - j + r * c.S + s];
}
