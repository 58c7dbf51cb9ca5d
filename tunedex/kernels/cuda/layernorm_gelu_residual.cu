// out = gelu((x - mean) / sqrt(variance + eps) * weight + bias) + residual over rows, in float32 within.
//
// LANES threads hold a row in registers, so it is read once; a block has ROWS rows and goes on to further ones. The
// residual is asked for before the reductions, whose barriers then wait beside the memory and not before it.
// Pitches are in elements; rows of `out` lie side by side.
//
// gelu(z) = max(z, 0) - a 2^Q(a), a = min(|z|, 16), Q by its coefficients Q_0 .. Q_DEGREE, given as the bits of float32.
#include "rows.cuh"

__device__ __forceinline__ float gelu(float z) {
    constexpr unsigned bits[DEGREE + 1] = {Q_BITS};
    const float a = fminf(fabsf(z), 16.0f);  // where the term is 0: an infinite one times that is no number
    float q = __uint_as_float(bits[DEGREE]);
#pragma unroll
    for (int i = DEGREE - 1; i >= 0; --i) q = fmaf(q, a, __uint_as_float(bits[i]));
    return fmaf(-a, exp2_fast(q), z < 0.0f ? 0.0f : z);  // a NaN stays one
}

extern "C" __global__ void __launch_bounds__(LANES* ROWS)
    layernorm_gelu_residual(const Element* __restrict__ x, const Element* __restrict__ weight,
                            const Element* __restrict__ bias, const Element* __restrict__ residual,
                            Element* __restrict__ out, long long total, long long rows, long long x_batch,
                            long long x_row, long long r_batch, long long r_row, float eps) {
    __shared__ float sums[ROWS * kWarps], squares[ROWS * kWarps];
    const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const long long tiles = (total + ROWS - 1) / ROWS;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long row = tile * ROWS + group;
        const bool inside = row < total;
        const Element* source = x + place(inside ? row : total - 1, rows, x_batch, x_row);
        const Element* added = residual + place(inside ? row : total - 1, rows, r_batch, r_row);
        Vector raw[kSteps], rest[kSteps];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int at = lane + step * LANES;
            if (at < kVectors) raw[step] = load_once(source + at * VEC);
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int at = lane + step * LANES;
            if (at < kVectors) rest[step] = load_once(added + at * VEC);
        }
        float value[kSteps][VEC];
        float sum = 0.0f;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const bool there = lane + step * LANES < kVectors;
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                value[step][i] = there ? to_float(raw[step].element[i]) : 0.0f;
                sum += value[step][i];
            }
        }
        const float mean = reduce<Sum>(sum, sums) * (1.0f / COLS);
        float square = 0.0f;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const bool there = lane + step * LANES < kVectors;
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                value[step][i] = there ? value[step][i] - mean : 0.0f;
                square = fmaf(value[step][i], value[step][i], square);
            }
        }
        const float scale = rsqrtf(reduce<Sum>(square, squares) * (1.0f / COLS) + eps);
        if (inside) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const int at = lane + step * LANES;
                if (at < kVectors) {
                    const Vector w = load(weight + at * VEC), b = load(bias + at * VEC);
#pragma unroll
                    for (int i = 0; i < VEC; ++i) {
                        const float z = fmaf(value[step][i] * scale, to_float(w.element[i]), to_float(b.element[i]));
                        value[step][i] = gelu(z) + to_float(rest[step].element[i]);
                    }
                    store_once(out + row * COLS + at * VEC, pack(value[step]));
                }
            }
        }
    }
}
