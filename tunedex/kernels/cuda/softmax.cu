// softmax over rows: out = exp(x - max x) / sum exp(x - max x), in float32 within.
//
// LANES threads hold a row in registers, so it is read once; a block has ROWS rows and goes on to further ones.
// Pitches are in elements; rows of `out` lie side by side. exp(x - m) is 2^(x log2 e - m log2 e): the rounding of
// m log2 e is the same for the whole row and cancels in the quotient.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(LANES* ROWS)
    softmax(const Element* __restrict__ x, Element* __restrict__ out, long long total, long long rows,
            long long x_batch, long long x_row) {
    __shared__ float largest[ROWS * kWarps], sums[ROWS * kWarps];
    constexpr float kLog2E = 1.4426950408889634f;
    const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const long long tiles = (total + ROWS - 1) / ROWS;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long row = tile * ROWS + group;
        const bool inside = row < total;
        const Element* source = x + place(inside ? row : total - 1, rows, x_batch, x_row);
        Vector raw[kSteps];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int at = lane + step * LANES;
            if (at < kVectors) raw[step] = load_once(source + at * VEC);
        }
        float value[kSteps][VEC];
        float top = Largest::none();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const bool there = lane + step * LANES < kVectors;
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                value[step][i] = there ? to_float(raw[step].element[i]) : Largest::none();
                top = fmaxf(top, value[step][i]);
            }
        }
        const float shift = -kLog2E * reduce<Largest>(top, largest);
        float sum = 0.0f;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                value[step][i] = exp2_fast(fmaf(value[step][i], kLog2E, shift));
                sum += value[step][i];
            }
        }
        const float scale = 1.0f / reduce<Sum>(sum, sums);
        if (inside) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const int at = lane + step * LANES;
#pragma unroll
                for (int i = 0; i < VEC; ++i) value[step][i] *= scale;
                if (at < kVectors) store_once(out + row * COLS + at * VEC, pack(value[step]));
            }
        }
    }
}
