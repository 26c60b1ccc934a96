#include "tools/cudasim/ptx/warp.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "tools/cudasim/ptx/block.h"

namespace cudasim {
namespace ptx {

std::byte* LaneMemory::Reserve(size_t bytes) {
  if (bytes > bytes_ || data_ == nullptr) {
    bytes_ = bytes + 64;
    data_.reset(static_cast<std::byte*>(::operator new (bytes_, std::align_val_t{64})));
    std::memset(data_.get(), 0, bytes_);
  }
  return data_.get();
}

void Warp::SetMask(uint32_t lanes) {
  mask = lanes;
  stuck &= ~lanes;
  if (stuck == 0) wanted = 0;
  partial = lanes != live;
  if (lanes == kAllLanes) return;
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (int v = 0; v < 4; ++v) {
    const __m256i byte = _mm256_set1_epi32(static_cast<int>(lanes >> (8 * v) & 255));
    const __m256i eight = _mm256_cmpeq_epi32(_mm256_and_si256(byte, bits), bits);
    const __m128i low = _mm256_castsi256_si128(eight), high = _mm256_extracti128_si256(eight, 1);
    _mm256_store_si256(reinterpret_cast<__m256i*>(mask32.data()) + v, eight);
    auto* const wide = reinterpret_cast<__m256i*>(mask64.data()) + 2 * v;
    _mm256_store_si256(wide, _mm256_cvtepi32_epi64(low));
    _mm256_store_si256(wide + 1, _mm256_cvtepi32_epi64(high));
    _mm_store_si128(reinterpret_cast<__m128i*>(mask16.data()) + v, _mm_packs_epi32(low, high));
  }
}

void Warp::AddWaiting(Group group) {
  for (Group& known : waiting) {
    if (known.at == group.at) {
      known.mask |= group.mask;
      stuck &= ~known.mask;
      first_waiting = std::min(first_waiting, group.at);
      return;
    }
  }
  waiting.push_back(group);
  if (!IsStuck(group)) first_waiting = std::min(first_waiting, group.at);
}

const Instruction* Warp::NextGroup() {
  const auto first =
      std::min_element(waiting.begin(), waiting.end(), [this](const Group& a, const Group& b) {
        return std::pair(IsStuck(a), a.at) < std::pair(IsStuck(b), b.at);
      });
  const Group group = *first;
  *first = waiting.back();
  waiting.pop_back();
  first_waiting = kAllLanes;
  for (const Group& other : waiting) {
    if (!IsStuck(other)) first_waiting = std::min(first_waiting, other.at);
  }
  SetMask(group.mask);
  return code + group.at;
}

const Instruction* Warp::Yield(const Instruction* at) { return Wait(State::kYielded, at); }

std::string Warp::Message(const Instruction* at, int lane, const std::string& text) const {
  std::string message = block->NameThread(*this, lane) + "\n" + text;
  if (at != nullptr) message += "\nat " + program->Describe(at);
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    message += "\ncalled at " + frame->program->Describe(frame->next - 1);
  }
  if (block->settings().order == Settings::Order::kRandom) {
    message += "\nin this order: CUDASIM_ORDER=random:" + std::to_string(block->settings().seed);
  }
  return message;
}

void Warp::Fail(Bug bug, const Instruction* at, int lane, const std::string& text) const {
  throw Fault(bug, Message(at, lane, text));
}

std::string Program::Describe(const Instruction* instruction) const {
  if (instruction->statement < 0) return name;
  const Statement& statement = body.statements[instruction->statement];
  std::string text = DescribePosition(*module, body, statement.position);
  if (!text.empty()) text += ", ";
  return text + "PTX line " + std::to_string(statement.line) + ": " + std::string(statement.opcode);
}

}  // namespace ptx
}  // namespace cudasim
