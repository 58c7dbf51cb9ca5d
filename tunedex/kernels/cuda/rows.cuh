// What kernels that work row by row share: elements, vector loads and stores, reductions over the threads of a row.
//
// Macros: ELEMENT_BYTES  4 for float32, 2 for float16 and bfloat16
//         BFLOAT16       1 where 2 bytes are a bfloat16
//         COLS           elements per row
//         VEC            elements per access, a divisor of COLS, at most 16 bytes
//         LANES          threads per row, whole warps
//         ROWS           rows per block
//         STREAMING      1 to mark what is read or written once as the first to leave the caches
#pragma once

constexpr int kWarp = 32;
constexpr int kWarps = LANES / kWarp;                   // warps per row
constexpr int kVectors = COLS / VEC;                    // accesses per row
constexpr int kSteps = (kVectors + LANES - 1) / LANES;  // accesses per thread
constexpr unsigned kAll = 0xffffffffu;

static_assert(LANES % kWarp == 0 && kWarps <= kWarp, "a row takes whole warps, at most 32");
static_assert(COLS % VEC == 0, "a row is whole vectors");

template <int Bytes> struct Packet;
template <> struct Packet<2> { typedef unsigned short type; };
template <> struct Packet<4> { typedef unsigned int type; };
template <> struct Packet<8> { typedef uint2 type; };
template <> struct Packet<16> { typedef uint4 type; };

#if ELEMENT_BYTES == 4
typedef float Element;
#else
typedef unsigned short Element;
#endif

// VEC elements, moved as one.
union Vector {
    typename Packet<VEC * ELEMENT_BYTES>::type packet;
    Element element[VEC];
};

__device__ __forceinline__ Vector load(const Element* at) {
    Vector vector;
    vector.packet = *reinterpret_cast<const decltype(vector.packet)*>(at);
    return vector;
}

__device__ __forceinline__ Vector load_once(const Element* at) {
    Vector vector;
    const auto* place = reinterpret_cast<const decltype(vector.packet)*>(at);
    vector.packet = STREAMING ? __ldcs(place) : *place;
    return vector;
}

__device__ __forceinline__ void store_once(Element* at, const Vector& vector) {
    auto* place = reinterpret_cast<decltype(vector.packet)*>(at);
    if (STREAMING) {
        __stcs(place, vector.packet);
    } else {
        *place = vector.packet;
    }
}

__device__ __forceinline__ float to_float(Element element) {
#if ELEMENT_BYTES == 4
    return element;
#elif BFLOAT16
    return __uint_as_float(static_cast<unsigned>(element) << 16);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
    return value;
#endif
}

// Round `even` and `odd` to nearest and put them side by side.
__device__ __forceinline__ void from_float(Vector& vector, int at, float even, float odd) {
#if ELEMENT_BYTES == 4
    vector.element[at] = even;
    vector.element[at + 1] = odd;
#else
    unsigned pair;
#if BFLOAT16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(odd), "f"(even));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(odd), "f"(even));
#endif
    vector.element[at] = static_cast<unsigned short>(pair);
    vector.element[at + 1] = static_cast<unsigned short>(pair >> 16);
#endif
}

__device__ __forceinline__ Vector pack(const float (&value)[VEC]) {
    Vector vector;
    if constexpr (VEC == 1) {
#if ELEMENT_BYTES == 4
        vector.element[0] = value[0];
#elif BFLOAT16
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(vector.element[0]) : "f"(value[0]));
#else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(vector.element[0]) : "f"(value[0]));
#endif
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i += 2) from_float(vector, i, value[i], value[i + 1]);
    }
    return vector;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct Sum {
    static __device__ __forceinline__ float none() { return 0.0f; }
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

struct Largest {
    static __device__ __forceinline__ float none() { return -__int_as_float(0x7f800000); }
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

// The reduction of `value` over the threads of a row, given to each of them. `shared` holds a float per warp of the
// block; a kernel's consecutive reductions take different ones, so that one barrier each is enough. Every thread of
// the block takes part.
template <typename Op> __device__ __forceinline__ float reduce(float value, float* shared) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
        value = Op::of(value, __shfl_xor_sync(kAll, value, distance));
    if constexpr (kWarps > 1) {
        const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
        if (lane == 0) shared[warp] = value;
        __syncthreads();
        const int first = warp / kWarps * kWarps;  // of this row
        value = lane < kWarps ? shared[first + lane] : Op::none();
#pragma unroll
        for (int distance = kWarp / 2; distance > 0; distance /= 2)
            value = Op::of(value, __shfl_xor_sync(kAll, value, distance));
    }
    return value;
}

// Where row number `row` begins, counting rows over the whole batch.
__device__ __forceinline__ long long place(long long row, long long rows, long long batch_pitch, long long row_pitch) {
    const long long item = row / rows;
    return item * batch_pitch + (row - item * rows) * row_pitch;
}
