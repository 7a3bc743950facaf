// 02_im2win - copy the image into window order, once, before the convolution.
// idea    xw[n,c,p, w*R + r] = padded x[n,c, p*stride_h + r*dilation_h, w]: the R rows that output row p needs are
//         interleaved column by column, so the R*S window of pixel q is one run that starts at q*stride_w*R
// shapes  x (N,C,H,W) -> xw (N,C,P,WP*R)    w (K,C/groups,R,S) -> wt (K,C/groups,S*R)    float32, C-contiguous
// launch  im2win: block (32,BLOCK_ROWS,1), a warp SEGMENT elements of a row, grid (N*C, ceil(WP*R / SEGMENT), ceil(P / BLOCK_ROWS))
//         window_filter: block (256,1,1), grid (ceil(K*C/groups*R*S / 256),1,1)
// source  im2win layout: arXiv:2306.14316, section 3
// next    03 convolves from xw
#ifndef BLOCK_ROWS
#define BLOCK_ROWS 8  // rows of xw a block writes
#endif
#ifndef SEGMENT
#define SEGMENT 256  // elements of a row a warp writes at once
#endif
static_assert(BLOCK_ROWS >= 1 && BLOCK_ROWS <= 32, "BLOCK_ROWS: 1 to 32 warps of 32 lanes");
static_assert(SEGMENT >= 32 && SEGMENT % 32 == 0, "SEGMENT: a multiple of 32");

extern "C" __global__ void im2win(const float* x, float* xw, const Conv c) {
  const float* image = x + (long long)blockIdx.x * c.H * c.W;
  const int length = c.WP * c.R;
  for (int p = blockIdx.z * BLOCK_ROWS + threadIdx.y; p < c.P; p += gridDim.z * BLOCK_ROWS) {
    float* row = xw + ((long long)blockIdx.x * c.P + p) * length;
    const int top = p * c.stride_h - c.pad_top;
    for (int start = blockIdx.y * SEGMENT; start < length; start += gridDim.y * SEGMENT) {
      int i = start + threadIdx.x, r = i % c.R, w = i / c.R - c.pad_left;
#pragma unroll
      for (int e = 0; e < SEGMENT / 32; ++e, i += 32) {  // neighbouring lanes write neighbouring elements
        const int h = top + r * c.dilation_h;
        if (i < length) row[i] = h >= 0 && h < c.H && w >= 0 && w < c.W ? image[(long long)h * c.W + w] : 0.f;
        r += 32 % c.R, w += 32 / c.R;  // cheaper than dividing again
        if (r >= c.R) r -= c.R, ++w;
      }
    }
  }
}

// The filter in the same order: wt[k,c, s*R + r] = w[k,c,r,s].
extern "C" __global__ void window_filter(const float* w, float* wt, const Conv c) {
  const long long i = thread_index();
  if (i >= (long long)c.K * (c.C / c.groups) * c.R * c.S) return;
  const int taps = c.R * c.S, j = (int)(i % taps), r = j % c.R, s = j / c.R;
  wt[i] = w[i - j + r * c.S + s];
}
