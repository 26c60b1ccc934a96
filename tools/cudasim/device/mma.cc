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
  MmaType type;
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
};

float Low(MmaType type, uint32_t pair) {
  const auto bits = static_cast<uint16_t>(pair);
  return type == MmaType::kBf16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}
float High(MmaType type, uint32_t pair) { return Low(type, pair >> 16); }

void RequireWholeWarp(const LaneCalls& calls, const char* name) {
  if (calls.present != 0xffffffffu) {
    Report(Bug::kMissingLanes,
           Text() << name << " at " << calls.where << " needs all 32 lanes of the warp");
  }
}

void CompleteMma(const LaneCalls& calls) {
  RequireWholeWarp(calls, "mma");
  float a[16][16], b[16][8], acc[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& call = *static_cast<const MmaCall*>(calls.payload[lane]);
    const int group = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = group + 8 * (i % 2), column = 2 * t + 8 * (i / 2);
      a[row][column] = Low(call.type, call.a[i]);
      a[row][column + 1] = High(call.type, call.a[i]);
      acc[group + 8 * (i / 2)][2 * t + i % 2] = call.c[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + 8 * i][group] = Low(call.type, call.b[i]);
      b[2 * t + 8 * i + 1][group] = High(call.type, call.b[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) {
        // The product of two 16-bit numbers is exact in f32: fused or not, the bits are the same.
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
  MmaCall call{type, d, a, b, c};
  Collective("mma", 0xffffffffu, &CompleteMma, &call, where);
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
