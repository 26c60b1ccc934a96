// Collectives as rings, and the arithmetic of reductions. As in the real library, the order in
// which three or more ranks are summed depends on the position in the buffer and is always the
// same.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "float_types.h"
#include "nccl_comm.h"

namespace cudasim::runtime {
namespace {

// How an element is stored, and the type of its arithmetic.
template <typename T>
struct Plain {
  using Stored = T;
  static T Load(T x) { return x; }
  static T Store(T x) { return x; }
};
struct Bf16 {
  using Stored = uint16_t;
  static float Load(uint16_t x) { return FromBf16(x); }
  static uint16_t Store(float x) { return ToBf16(x); }
};
struct Half {
  using Stored = uint16_t;
  static float Load(uint16_t x) { return FromHalf(x); }
  static uint16_t Store(float x) { return ToHalf(x); }
};

template <typename F>
void Dispatch(ncclDataType_t type, F f) {
  switch (type) {
    case ncclInt8:
      return f(Plain<int8_t>());
    case ncclUint8:
      return f(Plain<uint8_t>());
    case ncclInt32:
      return f(Plain<int32_t>());
    case ncclUint32:
      return f(Plain<uint32_t>());
    case ncclInt64:
      return f(Plain<int64_t>());
    case ncclUint64:
      return f(Plain<uint64_t>());
    case ncclFloat16:
      return f(Half());
    case ncclFloat32:
      return f(Plain<float>());
    case ncclFloat64:
      return f(Plain<double>());
    case ncclBfloat16:
      return f(Bf16());
    default:
      return;  // Refused before.
  }
}

// Integers wrap around.
template <typename T>
T Apply(ncclRedOp_t op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    const auto ua = static_cast<uint64_t>(static_cast<Unsigned>(a));
    const auto ub = static_cast<uint64_t>(static_cast<Unsigned>(b));
    if (op == ncclProd) return static_cast<T>(ua * ub);
    if (op == ncclSum || op == ncclAvg) return static_cast<T>(ua + ub);
  } else {
    if (op == ncclProd) return a * b;
    if (op == ncclSum || op == ncclAvg) return a + b;
  }
  return op == ncclMax ? std::max(a, b) : std::min(a, b);
}

// The ring, and buffers split into one part per rank.
class Ring {
 public:
  Ring(Mesh* mesh, const Call& call)
      : mesh_(mesh), call_(call), what_(Describe(call)), size_(SizeOf(call.type)) {}

  int Wrap(int rank) const { return (rank % ranks() + ranks()) % ranks(); }
  int rank() const { return mesh_->rank(); }
  int ranks() const { return mesh_->ranks(); }

  ncclResult_t Step(char* out, size_t out_count, char* in, size_t in_count) {
    std::vector<Transfer> transfers;
    transfers.push_back({Wrap(rank() + 1), out, out_count * size_, true, what_});
    transfers.push_back({Wrap(rank() - 1), in, in_count * size_, false, what_});
    return mesh_->Exchange(std::move(transfers));
  }

  // Afterwards, this rank has the reduction of part `rank + shift`.
  template <typename Begin>
  ncclResult_t ReduceParts(char* data, Begin begin, int shift) {
    std::vector<char> received;
    for (int step = 0; step < ranks() - 1; ++step) {
      const int out = Wrap(rank() + shift - 1 - step);
      const int in = Wrap(out - 1);
      const size_t in_count = begin(in + 1) - begin(in);
      received.resize(in_count * size_);
      const auto result =
          Step(data + begin(out) * size_, begin(out + 1) - begin(out), received.data(), in_count);
      if (result != ncclSuccess) return result;
      Combine(call_.type, call_.op, received.data(), in_count, data + begin(in) * size_);
    }
    return ncclSuccess;
  }

  // Every rank begins with part `rank + shift`.
  template <typename Begin>
  ncclResult_t GatherParts(char* data, Begin begin, int shift) {
    for (int step = 0; step < ranks() - 1; ++step) {
      const int out = Wrap(rank() + shift - step);
      const int in = Wrap(out - 1);
      const auto result = Step(data + begin(out) * size_, begin(out + 1) - begin(out),
                               data + begin(in) * size_, begin(in + 1) - begin(in));
      if (result != ncclSuccess) return result;
    }
    return ncclSuccess;
  }

  ncclResult_t Move(int peer, char* data, bool send) {
    return mesh_->Exchange({{peer, data, call_.count * size_, send, what_}});
  }

 private:
  Mesh* mesh_;
  const Call& call_;
  std::string what_;
  size_t size_;
};

ncclResult_t AllReduce(Mesh* mesh, const Call& call) {
  Ring ring(mesh, call);
  const size_t bytes = call.count * SizeOf(call.type);
  auto* const data = static_cast<char*>(call.receive);
  if (bytes > 0 && call.send != call.receive) std::memmove(data, call.send, bytes);
  const auto begin = [&](int part) {
    return call.count * static_cast<size_t>(part) / static_cast<size_t>(ring.ranks());
  };
  ncclResult_t result = ring.ReduceParts(data, begin, 0);
  if (result != ncclSuccess) return result;
  const int own = ring.rank();
  if (call.op == ncclAvg) {
    Average(call.type, ring.ranks(), begin(own + 1) - begin(own),
            data + begin(own) * SizeOf(call.type));
  }
  return ring.GatherParts(data, begin, 0);
}

ncclResult_t ReduceScatter(Mesh* mesh, const Call& call) {
  Ring ring(mesh, call);
  const size_t part = call.count * SizeOf(call.type);
  const auto* const from = static_cast<const char*>(call.send);
  std::vector<char> data(from, from + part * ring.ranks());
  const auto begin = [&](int index) { return call.count * static_cast<size_t>(index); };
  const ncclResult_t result = ring.ReduceParts(data.data(), begin, 0);
  if (result != ncclSuccess || part == 0) return result;
  char* const own = data.data() + ring.rank() * part;
  if (call.op == ncclAvg) Average(call.type, ring.ranks(), call.count, own);
  std::memcpy(call.receive, own, part);
  return result;
}

ncclResult_t AllGather(Mesh* mesh, const Call& call) {
  Ring ring(mesh, call);
  const size_t part = call.count * SizeOf(call.type);
  auto* const data = static_cast<char*>(call.receive);
  if (part > 0) std::memmove(data + ring.rank() * part, call.send, part);
  const auto begin = [&](int index) { return call.count * static_cast<size_t>(index); };
  return ring.GatherParts(data, begin, 0);
}

ncclResult_t Broadcast(Mesh* mesh, const Call& call) {
  Ring ring(mesh, call);
  const size_t bytes = call.count * SizeOf(call.type);
  auto* const data = static_cast<char*>(call.receive);
  const int position = ring.Wrap(ring.rank() - call.root);
  if (position == 0 && bytes > 0 && call.send != call.receive) {
    std::memmove(data, call.send, bytes);
  }
  if (position > 0) {
    const auto result = ring.Move(ring.Wrap(ring.rank() - 1), data, false);
    if (result != ncclSuccess) return result;
  }
  if (position == ring.ranks() - 1) return ncclSuccess;
  return ring.Move(ring.Wrap(ring.rank() + 1), data, true);
}

ncclResult_t Reduce(Mesh* mesh, const Call& call) {
  Ring ring(mesh, call);
  const size_t bytes = call.count * SizeOf(call.type);
  const auto* const from = static_cast<const char*>(call.send);
  std::vector<char> data(from, from + bytes);
  const int position = ring.Wrap(ring.rank() - call.root);
  if (position < ring.ranks() - 1) {
    std::vector<char> received(bytes);
    const auto result = ring.Move(ring.Wrap(ring.rank() + 1), received.data(), false);
    if (result != ncclSuccess) return result;
    Combine(call.type, call.op, received.data(), call.count, data.data());
  }
  if (position > 0) return ring.Move(ring.Wrap(ring.rank() - 1), data.data(), true);
  if (call.op == ncclAvg) Average(call.type, ring.ranks(), call.count, data.data());
  if (bytes > 0) std::memcpy(call.receive, data.data(), bytes);
  return ncclSuccess;
}

}  // namespace

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

std::string Describe(const Call& call) {
  const char* const kKinds[] = {"all_reduce", "reduce",    "broadcast", "reduce_scatter",
                                "all_gather", "send/recv", "send/recv"};
  const char* const kTypes[] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
  const char* const kOps[] = {"sum", "prod", "max", "min", "avg"};
  std::string text = kKinds[call.kind];
  text += " of " + std::to_string(call.count) + " " + kTypes[call.type];
  const bool reduces = call.kind == Call::kAllReduce || call.kind == Call::kReduce ||
                       call.kind == Call::kReduceScatter;
  if (reduces) text += std::string(" ") + kOps[call.op];
  if (call.kind == Call::kReduce || call.kind == Call::kBroadcast) {
    text += " root " + std::to_string(call.root);
  }
  return text;
}

void Combine(ncclDataType_t type, ncclRedOp_t op, const char* from, size_t count, char* into) {
  Dispatch(type, [&](auto element) {
    using Element = decltype(element);
    typename Element::Stored a;
    typename Element::Stored b;
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(&a, from + i * sizeof(a), sizeof(a));
      std::memcpy(&b, into + i * sizeof(b), sizeof(b));
      b = Element::Store(Apply(op, Element::Load(a), Element::Load(b)));
      std::memcpy(into + i * sizeof(b), &b, sizeof(b));
    }
  });
}

void Average(ncclDataType_t type, int ranks, size_t count, char* values) {
  Dispatch(type, [&](auto element) {
    using Element = decltype(element);
    typename Element::Stored a;
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(&a, values + i * sizeof(a), sizeof(a));
      const auto sum = Element::Load(a);
      using Value = std::remove_const_t<decltype(sum)>;
      a = Element::Store(static_cast<Value>(sum / static_cast<Value>(ranks)));
      std::memcpy(values + i * sizeof(a), &a, sizeof(a));
    }
  });
}

ncclResult_t RunCollective(Mesh* mesh, const Call& call) {
  switch (call.kind) {
    case Call::kAllReduce:
      return AllReduce(mesh, call);
    case Call::kReduce:
      return Reduce(mesh, call);
    case Call::kBroadcast:
      return Broadcast(mesh, call);
    case Call::kReduceScatter:
      return ReduceScatter(mesh, call);
    case Call::kAllGather:
      return AllGather(mesh, call);
    default:
      return ncclInternalError;
  }
}

}  // namespace cudasim::runtime
