#include "cudasim/mma.h"

#include <cmath>
#include <cstring>

#include "block_runner.h"
#include "cudasim/float_formats.h"
#include "cudasim/sync.h"
#include "race.h"
#include "report.h"

namespace cudasim {
namespace {

struct MmaCall {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
};

// How numbers lie in a register of a fragment.
struct Bf16Pair {
  static constexpr int kNumbers = 2;
  static float Number(uint32_t bits, int i) {
    return Bf16ToFloat(static_cast<uint16_t>(bits >> (16 * i)));
  }
};
struct HalfPair {
  static constexpr int kNumbers = 2;
  static float Number(uint32_t bits, int i) {
    return HalfToFloat(static_cast<uint16_t>(bits >> (16 * i)));
  }
};
struct Tf32 {
  static constexpr int kNumbers = 1;
  static float Number(uint32_t bits, int) { return FloatFromBits(bits & 0xffffe000u); }
};

void RequireWholeWarp(const LaneCalls& calls, const char* name) {
  if (calls.present != 0xffffffffu) {
    Report(Bug::kMissingLanes,
           Text() << name << " at " << calls.where << " needs all 32 lanes of the warp");
  }
}

template <class Register>
void CompleteMma(const LaneCalls& calls) {
  RequireWholeWarp(calls, "mma");
  constexpr int kNumbers = Register::kNumbers, kHalf = 4 * kNumbers, kDepth = 2 * kHalf;
  float a[16][kDepth], b[kDepth][8], acc[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& call = *static_cast<const MmaCall*>(calls.payload[lane]);
    const int group = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < kNumbers; ++j) {
        a[group + 8 * (i % 2)][kNumbers * t + j + kHalf * (i / 2)] = Register::Number(call.a[i], j);
      }
      acc[group + 8 * (i / 2)][2 * t + i % 2] = call.c[i];
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < kNumbers; ++j) {
        b[kNumbers * t + j + kHalf * i][group] = Register::Number(call.b[i], j);
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      for (int column = 0; column < 8; ++column) {
        // The product of two such numbers is exact in f32: fused or not, the bits are the same.
        acc[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& call = *static_cast<const MmaCall*>(calls.payload[lane]);
    const int group = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) call.d[i] = acc[group + 8 * (i / 2)][2 * t + i % 2];
  }
}

struct LoadMatrixCall {
  int count;
  bool transposed;
  uint32_t* result;
  const void* row;
};

void CompleteLoadMatrix(const LaneCalls& calls) {
  RequireWholeWarp(calls, "ldmatrix");
  const int count = static_cast<const LoadMatrixCall*>(calls.payload[0])->count;
  for (int matrix = 0; matrix < count; ++matrix) {
    uint16_t m[8][8];
    for (int row = 0; row < 8; ++row) {
      const auto& call = *static_cast<const LoadMatrixCall*>(calls.payload[8 * matrix + row]);
      std::memcpy(m[row], call.row, sizeof(m[row]));
    }
    for (int lane = 0; lane < 32; ++lane) {
      const auto& call = *static_cast<const LoadMatrixCall*>(calls.payload[lane]);
      const int i = lane / 4, j = 2 * (lane % 4);
      const uint32_t low = call.transposed ? m[j][i] : m[i][j];
      const uint32_t high = call.transposed ? m[j + 1][i] : m[i][j + 1];
      call.result[matrix] = high << 16 | low;
    }
  }
}

// Checks a row that ldmatrix reads on behalf of the lane that passes its address.
void CheckRow(const void* row, Where where) {
  BlockRunner* runner = BlockRunner::Current();
  std::string array;
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    Report(Bug::kMisaligned,
           Text() << "ldmatrix at " << where << ": row " << row << " is not aligned to 16 bytes");
  }
  if (!runner->shared().InBounds(row, 16, &array)) {
    Report(Bug::kOutOfBounds,
           Text() << "ldmatrix at " << where << " reads 16 bytes outside of " << array);
  }
}

}  // namespace

void MmaM16N8K16(MmaType type, float d[4], const uint32_t a[4], const uint32_t b[2],
                 const float c[4], Where where) {
  MmaCall call{d, a, b, c};
  Collective("mma", 0xffffffffu,
             type == MmaType::kBf16 ? &CompleteMma<Bf16Pair> : &CompleteMma<HalfPair>, &call,
             where);
}

void MmaM16N8K8(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                Where where) {
  MmaCall call{d, a, b, c};
  Collective("mma", 0xffffffffu, &CompleteMma<Tf32>, &call, where);
}

void LoadMatrix(int count, bool transposed, uint32_t* result, const void* row, Where where) {
  if (static_cast<int>(LaneNumber()) < 8 * count) {
    CheckRow(row, where);
    RaceNoteRead(row, 16);
  }
  LoadMatrixCall call{count, transposed, result, row};
  Collective("ldmatrix", 0xffffffffu, &CompleteLoadMatrix, &call, where);
}

}  // namespace cudasim
