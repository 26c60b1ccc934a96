#include "core/autograd/offload.h"

#include <bit>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/offload/host_copies.h"
#include "core/stream.h"

namespace lockstep {

// The copies, and the host memory that only they use. A block is given to the next copy at once:
// that comes after the device's work so far, which has waited for those before it.
struct Offloader::State {
  // Memory of the host, and its size: at least what was asked for.
  struct Block {
    int64_t bytes = 0;
    std::shared_ptr<void> memory{};
  };

  std::multimap<int64_t, std::shared_ptr<void>> free;  // by size
  int64_t host_bytes = 0, kept_host_bytes = 0;
  std::weak_ptr<OffloadScope::Part> last;
  std::optional<HostCopies> copies;  // destroyed first

  HostCopies& CopiesOf(Device device) {
    if (!copies || copies->device() != device) copies.emplace(device);
    return *copies;
  }
  // The smallest free block that is large enough. Where there are only smaller ones, shapes vary,
  // as those of pairs of texts do: new blocks are then powers of two, so that few are too small for
  // what comes later.
  Block Take(int64_t bytes, Device device) {
    host_bytes += bytes;
    if (const auto it = free.lower_bound(bytes); it != free.end()) {
      auto taken = free.extract(it);
      return {taken.key(), std::move(taken.mapped())};
    }
    const auto size =
        free.empty() ? bytes : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
    kept_host_bytes += size;
    return {size, device.is_meta() ? PlannedHostMemory(size)
                                   : GetStreamBackend(device.type).AllocateHost(size, device)};
  }
  void Give(int64_t bytes, Block block) {
    host_bytes -= bytes;
    if (block.memory) free.emplace(block.bytes, std::move(block.memory));
  }
};

// One storage.
struct OffloadScope::Item {
  std::shared_ptr<Part> part;
  Storage storage;  // on the device; undefined while only the host has it
  uint64_t version;
  bool on_host = false;
  int64_t bytes = storage.bytes();
  Offloader::State::Block host{};

  bool overwritten() const { return storage.version() != version; }
  ~Item();
};

// What a node has of it.
struct OffloadScope::Saved {
  std::shared_ptr<Item> item;
  DType dtype;
  Shape shape;
  int64_t offset;
  const char* what;

  Tensor Unpack() const;
};

struct OffloadScope::Part {
  explicit Part(std::shared_ptr<Offloader::State> offloader)
      : state(std::move(offloader)), before(state->last) {}

  std::shared_ptr<Offloader::State> state;
  std::weak_ptr<Part> before;
  const uint64_t first_serial = Storage::NextSerial();
  std::unordered_map<uint64_t, std::weak_ptr<Item>> items;  // by the storage's serial
  Device device;
  bool away = false;        // from the device
  HostCopies::Done copied;  // null once the device's work waits for it

  using Items = std::vector<std::shared_ptr<Item>>;
  // Those that some node still has, except `except`.
  template <class F>
  Items Live(const F& except) const {
    Items live;
    for (const auto& [serial, weak] : items) {
      auto item = weak.lock();
      if (item && !except(*item)) live.push_back(std::move(item));
    }
    return live;
  }

  static std::vector<HostCopies::Copy> CopiesOf(const Items& items) {
    std::vector<HostCopies::Copy> copies;
    for (const auto& item : items) {
      copies.push_back({item->host.memory.get(), item->storage.data(), item->bytes});
    }
    return copies;
  }
  // The device's work from now on comes after the copies.
  void Await() {
    if (copied) state->CopiesOf(device).Await(copied);
  }

  void CopyAway() {
    const Items moved = Live([](const Item& i) { return i.on_host || i.overwritten(); });
    for (const auto& item : moved) {
      item->host = state->Take(item->bytes, device);
      item->on_host = true;
    }
    if (!moved.empty()) copied = state->CopiesOf(device).ToHost(CopiesOf(moved), "activations");
  }
  // What has been overwritten stays, for the error in backward.
  void Release() {
    Await();
    away = true;
    const auto stays = [](const Item& i) { return !i.on_host || i.overwritten(); };
    for (const auto& item : Live(stays)) item->storage = Storage();
  }
  void Fetch() {
    if (!std::exchange(away, false)) return;
    const Items back = Live([](const Item& i) { return i.storage.defined(); });
    for (const auto& item : back) {
      item->storage = Storage::Allocate(item->bytes, device);
      item->version = item->storage.version();
    }
    if (!back.empty()) copied = state->CopiesOf(device).ToDevice(CopiesOf(back), "activations");
  }
};

OffloadScope::Item::~Item() {
  try {
    part->Await();
  } catch (const Error&) {
    // The device has failed, and copies nothing any more.
  }
  if (on_host) part->state->Give(bytes, std::move(host));
}

Tensor OffloadScope::Saved::Unpack() const {
  Part& part = *item->part;
  part.Fetch();
  part.Await();
  if (const auto before = part.before.lock()) before->Fetch();
  if (item->overwritten()) {
    throw Error(StrCat("backward needs ", what,
                       " as it was in forward, but it has been overwritten "
                       "since: run backward before writing to it, or write to a Clone()"));
  }
  return Tensor::FromStorage(item->storage, dtype, shape, offset);
}

Offloader::Offloader() : state_(std::make_shared<State>()) {}
Offloader::~Offloader() = default;
int64_t Offloader::host_bytes() const { return state_->host_bytes; }
int64_t Offloader::kept_host_bytes() const { return state_->kept_host_bytes; }

OffloadScope::OffloadScope(const Offloader& offloader)
    : part_(std::make_shared<Part>(offloader.state_)) {
  if (const auto before = part_->before.lock()) before->CopyAway();
  hooks_.emplace(
      [part = part_](const Tensor& t, const char* what) {
        const Storage& storage = t.storage();
        if (storage.serial() < part->first_serial || storage.is_slice() || t.device().is_cpu() ||
            t.bytes() < kMinBytes || !t.is_contiguous()) {
          return std::any(SavedTensor(t, what));
        }
        part->device = t.device();
        std::weak_ptr<Item>& known = part->items[storage.serial()];
        std::shared_ptr<Item> item = known.lock();
        if (!item) {
          item = std::make_shared<Item>(Item{part, storage, storage.version()});
          known = item;
        }
        if (item->overwritten()) return std::any(SavedTensor(t, what));
        return std::any(Saved{item, t.dtype(), t.shape(), t.offset(), what});
      },
      [](const std::any& packed) {
        if (const auto* saved = std::any_cast<Saved>(&packed)) return saved->Unpack();
        return std::any_cast<const SavedTensor&>(packed).Unpack();
      });
}

OffloadScope::~OffloadScope() = default;

void OffloadScope::Finish() {
  if (const auto before = part_->before.lock()) before->Release();
  part_->state->last = part_;
}

}  // namespace lockstep
