// Kernels with one bug each, of the kinds that only the compiled program has, and the same kernels
// without it. planted_test.cc runs what nvcc makes of them: testdata/planted.ptx, by
//   nvcc -std=c++17 -arch=compute_80 -lineinfo -ptx -o planted.ptx planted.cu
//   sed -e '/^\t*\/\//d' -e '/debug_str/,$d' -e '/\.file/s|"/.*/|"|' planted.ptx >
//   ../testdata/planted.ptx
// Blocks of 64 threads; x[i] = i, z is 0. Without the bug y[i] = 2 for each thread of a block.
#include <cstdint>

#define PLANTED(name)                                                                            \
  template <bool kBug>                                                                           \
  __device__ void name(float* x, float* y, unsigned* z);                                         \
  extern "C" __global__ void name##Bug(float* x, float* y, unsigned* z) { name<true>(x, y, z); } \
  extern "C" __global__ void name##Right(float* x, float* y, unsigned* z) {                      \
    name<false>(x, y, z);                                                                        \
  }                                                                                              \
  template <bool kBug>                                                                           \
  __device__ void name([[maybe_unused]] float* x, [[maybe_unused]] float* y,                     \
                       [[maybe_unused]] unsigned* z)

constexpr unsigned kAll = 0xffffffffu;

__device__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void Copy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
__device__ void Commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void Wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ void BarSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ void BarArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ uint32_t LoadMatrix(const void* row) {
  uint32_t value;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(value)
               : "r"(SharedAddress(row))
               : "memory");
  return value;
}

__device__ void Publish(volatile unsigned* flag) { *flag = 1; }

// ---- Lanes of a warp ----

PLANTED(MissingSyncWarp) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  if (!kBug) __syncwarp();
  y[t] = s[t ^ 1];
}

PLANTED(MissingSyncWarpAfterRead) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  __syncwarp();
  const float value = s[t ^ 1];
  if (!kBug) __syncwarp();
  s[t] = 3;
  y[t] = value;
}

PLANTED(SyncWarpOfHalves) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  __syncwarp(kBug ? (t % 32 < 16 ? 0xffffu : 0xffff0000u) : kAll);
  y[t] = s[t ^ 16];
}

PLANTED(ShuffleTakenForBarrier) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  if (!kBug) __syncwarp();
  const unsigned other = __shfl_xor_sync(kAll, t, 1);
  y[t] = s[other];
}

PLANTED(VoteTakenForBarrier) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  if (!kBug) __syncwarp();
  if (__all_sync(kAll, x[t] >= 0)) y[t] = s[t ^ 1];
}

PLANTED(TwoLanesOneWord) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[kBug ? t / 2 : t] = x[t];
  y[t] = 2;
  if (x[t] < 0) y[t] = s[t];
}

// Lanes that store the same value by one instruction are right whichever of them wins.
PLANTED(DifferentValuesOneWord) {
  __shared__ float s[2];
  const unsigned t = threadIdx.x;
  s[t / 32] = kBug ? static_cast<float>(t) : x[2];
  __syncthreads();
  y[t] = s[t / 32];
}

PLANTED(HalvesOfAWarp) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 1;
  __syncwarp();
  if (t % 32 < 16) s[t] = 2;
  if (!kBug) __syncwarp();
  if (t % 32 >= 16) s[t] = s[t - 16];
  y[t] = s[t];
}

PLANTED(GlobalBetweenLanes) {
  const unsigned t = threadIdx.x;
  x[t] = 2;
  if (!kBug) __syncwarp();
  y[t] = x[t ^ 1];
}

// ---- Warps of a block ----

PLANTED(NamedBarrierOfOneWarp) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  if (kBug) {
    BarSync(1 + static_cast<int>(t / 32), 32);
  } else {
    BarSync(1, 64);
  }
  y[t] = s[63 - t];
}

PLANTED(ConsumerOnlyArrives) {
  __shared__ float s[32];
  const unsigned t = threadIdx.x;
  y[t] = 2;
  if (t < 32) {
    s[t] = 2;
    if (kBug) BarSync(1, 64);
    if (!kBug) BarArrive(1, 64);
  } else {
    if (kBug) BarArrive(1, 64);
    if (!kBug) BarSync(1, 64);
    y[t] = s[t - 32];
  }
}

PLANTED(BetweenTwoBarriers) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  __syncthreads();
  const float value = s[63 - t];
  if (!kBug) __syncthreads();
  if (t < 32) s[t] = 5;
  __syncthreads();
  y[t] = value;
}

PLANTED(OneBufferTooFew) {
  __shared__ float s[2][64];
  const unsigned t = threadIdx.x;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    float* const buffer = s[kBug ? 0 : i % 2];
    buffer[t] = 0.5f;
    __syncthreads();
    sum += buffer[63 - t];
  }
  y[t] = sum;
}

PLANTED(GenericAddress) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  float* const generic = x[t] >= 0 ? s : x;  // a choice that nvcc cannot make
  asm volatile("st.f32 [%0], %1;" ::"l"(generic + t), "f"(2.0f) : "memory");
  if (!kBug) __syncthreads();
  float value;
  asm volatile("ld.f32 %0, [%1];" : "=f"(value) : "l"(generic + 63 - t) : "memory");
  y[t] = value;
}

PLANTED(AtomicAndPlain) {
  __shared__ unsigned count;
  const unsigned t = threadIdx.x;
  if (t == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1u);
  if (!kBug) __syncthreads();
  y[t] = count == 0 ? 1 : 2;
}

PLANTED(CounterZeroedByOneLane) {
  __shared__ unsigned count;
  const unsigned t = threadIdx.x;
  if (t == 0) count = 0;
  if (!kBug) __syncthreads();
  y[t] = atomicAdd(&count, 1u) < 64 ? 2 : 1;
}

PLANTED(FlagWithoutFence) {
  __shared__ float s[32];
  __shared__ volatile unsigned flag;
  const unsigned t = threadIdx.x;
  if (t == 0) flag = 0;
  __syncthreads();
  y[t] = 2;
  if (t == 0) {
    s[0] = x[2];
    if (!kBug) __threadfence_block();
    flag = 1;
  }
  if (t == 32) {
    while (flag == 0) {
    }
    y[t] = s[0];
  }
}

PLANTED(GlobalBetweenWarps) {
  const unsigned t = threadIdx.x;
  x[t] = 2;
  if (!kBug) __syncthreads();
  y[t] = x[63 - t];
}

// ---- Blocks of a grid (two) ----

PLANTED(TwoBlocksOneElement) {
  const unsigned t = threadIdx.x;
  if (t == 5) x[kBug ? 7 : blockIdx.x] = 1;
  if (blockIdx.x == 0) y[t] = 2;
}

template <bool kFence, bool kLate, bool kOfBlock, bool kBlockAtomic>
__device__ void LastBlock(float* x, float* y, unsigned* z, bool& is_last) {
  if (threadIdx.x == 0) {
    x[blockIdx.x] = 1;
    if (kFence && kOfBlock) __threadfence_block();
    if (kFence && !kOfBlock) __threadfence();
    is_last = (kBlockAtomic ? atomicAdd_block(z, 1u) : atomicAdd(z, 1u)) == gridDim.x - 1;
    if (kLate) __threadfence();
  }
  __syncthreads();
  if (is_last) y[threadIdx.x] = x[0] + x[1];
}

PLANTED(LastBlockWithoutFence) {
  __shared__ bool is_last;
  LastBlock<!kBug, false, false, false>(x, y, z, is_last);
}

PLANTED(LastBlockFencesLate) {
  __shared__ bool is_last;
  LastBlock<!kBug, kBug, false, false>(x, y, z, is_last);
}

PLANTED(LastBlockFencesForItself) {
  __shared__ bool is_last;
  LastBlock<true, false, kBug, false>(x, y, z, is_last);
}

PLANTED(LastBlockCountsForItself) {
  __shared__ bool is_last;
  LastBlock<true, false, false, kBug>(x, y, z, is_last);
}

// The usual loop of a compare-and-swap begins with a plain load, whose value the swap checks.
PLANTED(SwapWithoutComparing) {
  if (threadIdx.x == 0) {
    unsigned seen = *z;
    if (kBug) {
      atomicExch(z + (x[0] < 0), seen + 1);
    } else {
      for (unsigned expected = seen + 1; seen != expected;) {
        expected = seen;
        seen = atomicCAS(z, expected, expected + 1);
      }
    }
  }
  if (blockIdx.x == 0) y[threadIdx.x] = 2;
}

// Who counts last comes after all others who counted, and needs no fence to reset the counter.
PLANTED(CounterResetBeforeTheLast) {
  if (threadIdx.x == 0) {
    const bool is_last = atomicAdd(z, 1u) == gridDim.x - 1;
    if (is_last != kBug) *z = 0;
  }
  if (blockIdx.x == 0) y[threadIdx.x] = 2;
}

PLANTED(PlainFlagBetweenBlocks) {
  const unsigned t = threadIdx.x;
  if (t == 0 && blockIdx.x == 0) {
    if (kBug) z[0] = 1;
    if (!kBug) Publish(z);
  }
  if (t == 0 && blockIdx.x == 1) z[1] = *static_cast<volatile unsigned*>(z);
  if (blockIdx.x == 0) y[t] = 2;
}

// A fence covers what its thread knows; thread 0 knows of the others' stores after the barrier.
PLANTED(FenceOfOneBeforeTheBarrier) {
  __shared__ bool is_last;
  const unsigned t = threadIdx.x;
  x[64 * blockIdx.x + t] = 1;
  if (!kBug || t == 0) __threadfence();
  __syncthreads();
  if (t == 0) is_last = atomicAdd(z, 1u) == gridDim.x - 1;
  __syncthreads();
  if (is_last) y[t] = x[t] + x[64 + t];
}

PLANTED(LockWithoutFence) {
  const unsigned t = threadIdx.x;
  if (t % 32 == 0) {
    while (atomicCAS(z, 0u, 1u) != 0) {
    }
    if (!kBug) __threadfence();
    x[0] += 1;
    if (!kBug) __threadfence();
    atomicExch(z, 0u);
  }
  if (blockIdx.x == 0) y[t] = 2;
}

PLANTED(RelaxedInsteadOfRelease) {
  const unsigned t = threadIdx.x;
  if (t == 0 && blockIdx.x == 0) {
    x[0] = 2;
    if (kBug) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(z), "r"(1) : "memory");
    if (!kBug) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(z), "r"(1) : "memory");
  }
  if (t == 0 && blockIdx.x == 1) {
    unsigned flag;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(flag) : "l"(z) : "memory");
    if (flag != 0) x[1] = x[0];
  }
  if (blockIdx.x == 0) y[t] = 2;
}

// ---- cp.async ----

PLANTED(OneGroupTooFew) {
  __shared__ float s[128];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[t]);
  Commit();
  Copy4(&s[64 + t], &x[t]);
  Commit();
  Wait<kBug ? 1 : 0>();
  y[t] = 2 + s[t] - s[64 + t];
}

PLANTED(CommitLeftOut) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[t]);
  if (!kBug) Commit();
  Wait<0>();
  y[t] = 2 + s[t] - static_cast<float>(t);
}

PLANTED(WaitInABranch) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[t]);
  Commit();
  if (!kBug || t % 32 < 16) Wait<0>();
  y[t] = 2 + s[t] - static_cast<float>(t);
}

PLANTED(WaitAfterTheBarrier) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[t]);
  Commit();
  if (!kBug) Wait<0>();
  __syncthreads();
  y[t] = 2 + s[63 - t] - static_cast<float>(63 - t);
  if (kBug) Wait<0>();
}

PLANTED(BarrierAfterTheWaitLeftOut) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[t]);
  Commit();
  Wait<0>();
  if (!kBug) __syncthreads();
  y[t] = 2 + s[63 - t] - static_cast<float>(63 - t);
}

PLANTED(StoreIntoACopy) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[t]);
  Commit();
  if (!kBug) Wait<0>();
  s[t] = 2;
  if (kBug) Wait<0>();
  y[t] = s[t];
}

PLANTED(TwoCopiesOneTarget) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[64 + t]);
  Commit();
  if (!kBug) Wait<0>();
  Copy4(&s[t], &x[t]);
  Commit();
  Wait<0>();
  y[t] = 2 + s[t] - static_cast<float>(t);
}

PLANTED(CopyOverReaders) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  Copy4(&s[t], &x[t]);
  Commit();
  Wait<0>();
  __syncthreads();
  const float value = s[63 - t];
  if (!kBug) __syncthreads();
  Copy4(&s[t], &x[64 + t]);
  Commit();
  Wait<0>();
  y[t] = 2 + value - static_cast<float>(63 - t);
}

// ---- Inline assembly ----

// Without the clobber nvcc does not know that a store is read before the next one,
PLANTED(LoadWithoutClobber) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  float value;
  s[t] = 2;
  if (kBug) asm("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(SharedAddress(&s[t])));
  if (!kBug) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(SharedAddress(&s[t])) : "memory");
  }
  s[t] = 3;
  y[t] = value;
  if (x[t] < 0) y[t] = s[t];
}

// .. nor, unless it is volatile, that an atomic whose result is not used does anything,
PLANTED(AtomicNotVolatile) {
  __shared__ unsigned counts[64];
  const unsigned t = threadIdx.x;
  counts[t] = 1;
  unsigned old;
  if (kBug) asm("atom.shared.add.u32 %0, [%1], 1;" : "=r"(old) : "r"(SharedAddress(&counts[t])));
  if (!kBug) {
    asm volatile("atom.shared.add.u32 %0, [%1], 1;"
                 : "=r"(old)
                 : "r"(SharedAddress(&counts[t]))
                 : "memory");
  }
  y[t] = counts[t];
}

// .. or a store.
PLANTED(StoreNotVolatile) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 1;
  unsigned done;
  if (kBug) {
    asm("st.shared.f32 [%1], %2; mov.u32 %0, 1;"
        : "=r"(done)
        : "r"(SharedAddress(&s[t])), "f"(2.0f));
  } else {
    asm volatile("st.shared.f32 [%1], %2; mov.u32 %0, 1;"
                 : "=r"(done)
                 : "r"(SharedAddress(&s[t])), "f"(2.0f)
                 : "memory");
  }
  y[t] = s[t];
}

// A load by way of the cache that takes memory to be constant.
PLANTED(ReadOnlyLoadOfWhatIsWritten) {
  const unsigned t = threadIdx.x;
  x[t] = 2;
  __syncthreads();
  y[t] = kBug ? __ldg(&x[63 - t]) : x[63 - t];
}

// ---- Alignment ----

PLANTED(MisalignedVector) {
  const float4 value = *reinterpret_cast<const float4*>(x + (kBug ? 1 : 4));
  y[threadIdx.x] = (value.x + value.y + value.z + value.w) * 0 + 2;
}

PLANTED(MisalignedSharedVector) {
  __shared__ __align__(16) float s[132];
  const unsigned t = threadIdx.x;
  *reinterpret_cast<float2*>(s + 2 * t + (kBug ? 1 : 2)) = make_float2(x[t], 2);
  y[t] = s[2 * t + (kBug ? 2 : 3)];
}

PLANTED(MisalignedMatrixRow) {
  __shared__ __align__(16) uint32_t s[128];
  const unsigned t = threadIdx.x;
  s[t] = s[64 + t] = 0;
  __syncthreads();
  y[t] = 2 + static_cast<float>(LoadMatrix(s + (t % 8) * (kBug ? 5 : 4)));
}

PLANTED(MisalignedCopy) {
  __shared__ float2 s[64];
  const unsigned t = threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(SharedAddress(&s[t])),
               "l"(x + 2 * t + (kBug ? 1 : 0))
               : "memory");
  Commit();
  Wait<0>();
  y[t] = 2 + s[t].x * 0;
}

// ---- What was never written ----

PLANTED(LastElementNeverWritten) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  if (t < (kBug ? 63 : 64)) s[t] = 2;
  __syncthreads();
  y[t] = s[63 - t];
}

PLANTED(CounterNeverZeroed) {
  __shared__ unsigned count;
  const unsigned t = threadIdx.x;
  if (!kBug && t == 0) count = 0;
  __syncthreads();
  y[t] = atomicAdd(&count, 1u) < 64 ? 2 : 1;
}

PLANTED(MatrixRowNeverWritten) {
  __shared__ __align__(16) uint32_t s[32];
  const unsigned t = threadIdx.x;
  if (t < (kBug ? 28 : 32)) s[t] = 0;
  __syncthreads();
  y[t] = 2 + static_cast<float>(LoadMatrix(s + (t % 8) * 4));
}

// ---- Who takes part ----

PLANTED(MatrixProductOfHalfAWarp) {
  const unsigned t = threadIdx.x;
  float d[4] = {2, 2, 2, 2};
  if (!kBug || t % 32 < 16) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4}, {%4}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(0));
  }
  y[t] = d[0];
}

PLANTED(BarrierForTooManyThreads) {
  BarSync(1, kBug ? 96 : 64);
  y[threadIdx.x] = 2;
}

PLANTED(TwoNamedBarriers) {
  BarSync(kBug ? 1 + static_cast<int>(threadIdx.x / 32) : 1, 64);
  y[threadIdx.x] = 2;
}

PLANTED(SharedPastEnd) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = 2;
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(SharedAddress(s + t) + (kBug && t == 63 ? 4 : 0)),
               "f"(2.0f)
               : "memory");
  y[t] = 2;
}
