#include "optim/host_updates.h"

#include <algorithm>
#include <utility>

#include "core/round_up.h"

namespace lockstep::optim {
namespace {

constexpr int64_t kAlignment = 256;        // of a tensor in a buffer, in bytes
constexpr int64_t kLeastPieces = 8;        // of an update
constexpr int64_t kLeastBuffer = 1 << 20;  // unless fewer bytes are needed
constexpr int64_t kLeastElements = 1024;   // pieces of a tensor are multiples, but the last

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kAlignment); }

// The tensors that the call has on the host.
std::vector<Tensor*> OnHost(const UpdateCall& call, UpdateTensors& t) {
  std::vector<Tensor*> all;
  if (call.values_on_host) all.push_back(&t.value);
  if (!call.states_on_host) return all;
  for (Tensor& state : t.states) all.push_back(&state);
  if (t.master.defined()) all.push_back(&t.master);
  if (t.average.defined()) all.push_back(&t.average);
  return all;
}

// How many bytes of a buffer this many elements take.
int64_t BufferBytes(const UpdateCall& call, const UpdateTensors& t, int64_t elements) {
  UpdateTensors copy = t;
  int64_t bytes = 0;
  for (const Tensor* x : OnHost(call, copy)) bytes += Aligned(elements * SizeOf(x->dtype()));
  return bytes;
}

// Elements [begin, end) of all tensors.
UpdateTensors Part(const UpdateTensors& t, int64_t begin, int64_t end) {
  UpdateTensors p =
      WithTensors(t, [&](const Tensor& x) { return x.View({x.numel()}).Slice(0, begin, end); });
  p.place.skip += begin;
  return p;
}

}  // namespace

bool UpdateCall::needs_host() const {
  return values_on_host || (states_on_host && std::ranges::any_of(tensors, [](const auto& t) {
                              return !t.states.empty() || t.master.defined() || t.average.defined();
                            }));
}

// Buffers are for more than a few pieces: else the two could take more memory than they save.
int64_t HostUpdates::BufferBytesFor(std::span<const UpdateCall> calls) const {
  int64_t moved = 0;
  for (const UpdateCall& call : calls) {
    for (const UpdateTensors& t : call.tensors) moved += BufferBytes(call, t, t.value.numel());
  }
  return std::min(buffer_bytes_, std::max(kLeastBuffer, moved / kLeastPieces));
}

// What is updated at once.
struct HostUpdates::Piece {
  const UpdateCall* call;
  std::vector<UpdateTensors> tensors{};
  int64_t bytes = 0;  // of a buffer
};

// A piece on the device.
struct HostUpdates::Loaded {
  std::vector<UpdateTensors> tensors{};
  std::vector<HostCopies::Copy> copies{};
  HostCopies::Done arrived{};
};

std::vector<HostUpdates::Piece> HostUpdates::Cut(std::span<const UpdateCall> calls) const {
  const int64_t buffer_bytes = BufferBytesFor(calls);
  std::vector<Piece> pieces;
  for (const UpdateCall& call : calls) {
    pieces.push_back({&call});
    const auto add = [&](const UpdateTensors& t, int64_t bytes) {
      pieces.back().tensors.push_back(t);
      pieces.back().bytes += bytes;
    };
    for (const UpdateTensors& t : call.tensors) {
      const int64_t numel = t.value.numel();
      // A rank without a part of a parameter takes part in gathering it.
      if (numel == 0 && !call.elementwise) add(t, 0);
      for (int64_t begin = 0; begin < numel;) {
        int64_t count = numel - begin;
        const int64_t room = buffer_bytes - pieces.back().bytes;
        if (call.elementwise && BufferBytes(call, t, count) > room) {
          const int64_t per_element = BufferBytes(call, t, kAlignment) / kAlignment;
          count = std::min(count, room / per_element / kLeastElements * kLeastElements);
        }
        const bool fits = count > 0 && BufferBytes(call, t, count) <= room;
        if (!fits && !pieces.back().tensors.empty()) {
          pieces.push_back({&call});
          continue;
        }
        // A piece that is alone is as large as it must be.
        if (count == 0) count = std::min(numel - begin, kLeastElements);
        add(call.elementwise ? Part(t, begin, begin + count) : t, BufferBytes(call, t, count));
        begin += count;
        // Plans have tensors of terabytes, whose pieces in between are alike.
        if (t.value.device().is_meta() && pieces.back().tensors.size() == 1) {
          begin += std::max<int64_t>((numel - begin - 1) / count - 1, 0) * count;
        }
      }
    }
    if (pieces.back().tensors.empty()) pieces.pop_back();
  }
  return pieces;
}

HostUpdates::Loaded HostUpdates::Load(const Piece& piece, const Tensor& buffer, Event* after) {
  Loaded loaded{.tensors = piece.tensors};
  int64_t offset = 0;
  for (UpdateTensors& t : loaded.tensors) {
    for (Tensor* x : OnHost(*piece.call, t)) {
      const Tensor host = std::exchange(
          *x,
          Tensor::FromStorage(buffer.storage().Slice(offset, x->bytes()), x->dtype(), x->shape()));
      offset += Aligned(host.bytes());
      if (!host.device().is_meta()) {
        loaded.copies.push_back({host.raw_data(), x->raw_data(), host.bytes()});
      }
    }
  }
  loaded.arrived = copies_.ToDevice(loaded.copies, "optimizer", after);
  return loaded;
}

void HostUpdates::Run(std::span<const UpdateCall> calls) {
  // They will be written. Empty ones count, too: ranks find out alike that weights have changed.
  for (const UpdateCall& call : calls) {
    for (UpdateTensors t : call.tensors) {
      for (const Tensor* x : OnHost(call, t)) x->storage().BumpVersion();
    }
  }
  const std::vector<Piece> pieces = Cut(calls);
  if (pieces.empty()) return;
  const Device device = copies_.device();
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes = std::max(bytes, piece.bytes);
  std::vector<Tensor> buffers;
  for (size_t i = 0; i < std::min<size_t>(pieces.size(), 2); ++i) {
    buffers.push_back(Tensor::Empty({bytes}, DType::kU8, device));
    if (!device.is_cuda()) continue;
    // Where an update throws, the copies may be under way.
    buffers[i].storage().RecordUse(copies_.to_device());
    buffers[i].storage().RecordUse(copies_.to_host());
  }
  HostCopies::Done returned;  // of the piece before
  Loaded next = Load(pieces[0], buffers[0], nullptr);
  for (size_t i = 0; i < pieces.size(); ++i) {
    Loaded now = std::move(next);
    // Into the buffer of the piece before.
    if (i + 1 < pieces.size()) next = Load(pieces[i + 1], buffers[(i + 1) % 2], returned.get());
    copies_.Await(now.arrived);
    {
      const ComputeSpan span(device, "update");
      pieces[i].call->update(now.tensors);
    }
    returned = copies_.ToHost(now.copies, "optimizer");
  }
  copies_.Await(returned);
}

}  // namespace lockstep::optim
