#include "models/train/elastic/state_copies.h"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <set>
#include <sstream>
#include <utility>

#include "core/round_up.h"
#include "dist/control/socket.h"
#include "dist/groups/agreement.h"

namespace lockstep::models {
namespace {

constexpr int64_t kAlignment = 64;
constexpr char kModel[] = "model.", kBuffer[] = "buffer.", kOptimizer[] = "optimizer.";

// A tensor of the state, as far as this rank has it.
struct StateTensor {
  std::string name;
  const Parameter* parameter;  // that it is cut like; null: it is whole
  Tensor part;
};

// As in checkpoints, the buffers are those of ranks with the first part.
std::vector<StateTensor> StateOf(const Gpt& model, const optim::Optimizer& optimizer, int part) {
  std::vector<StateTensor> state;
  for (const auto& [name, p] : model.NamedParameters()) {
    state.push_back({kModel + name, p.get(), p->value()});
  }
  optimizer.ForEachState([&](const std::string& name, const Parameter& p, const Tensor& tensor) {
    state.push_back({kOptimizer + name, &p, tensor});
  });
  if (part != 0) return state;
  for (const auto& [name, buffer] : model.NamedBuffers()) {
    state.push_back({kBuffer + name, nullptr, buffer});
  }
  return state;
}

Tensor AsBytes(const Tensor& x) {
  return Tensor::FromStorage(x.storage(), DType::kU8, {x.bytes()});
}

// Bytes [offset, offset + ...) as a tensor of one dimension.
Tensor PieceOf(const Tensor& bytes, int64_t offset, DType dtype, int64_t count) {
  return Tensor::FromStorage(bytes.storage().Slice(offset, count * SizeOf(dtype)), dtype, {count});
}

// The distance between ranks that pass on their parts and those that get them: so that as many of
// them as possible are on different hosts.
int BestDistance(const std::vector<std::string>& hosts) {
  const int size = static_cast<int>(hosts.size());
  int best = 1, most = -1;
  for (int distance = 1; distance < size; ++distance) {
    int apart = 0;
    for (int r = 0; r < size; ++r) apart += hosts[r] != hosts[(r + distance) % size];
    if (apart > most) best = distance;
    most = std::max(most, apart);
  }
  return best;
}

}  // namespace

std::vector<dist::HeldParts> StateCopies::held() const {
  std::vector<dist::HeldParts> held;
  for (const Version& v : versions_) {
    if (v.held.step >= 0) held.push_back(v.held);
  }
  return held;
}

int64_t StateCopies::step() const {
  return std::max(versions_[0].held.step, versions_[1].held.step);
}

// ---- Going on ----

const TrainerState* StateCopies::Agree(dist::ProcessGroup* group, int64_t began,
                                       std::string* lost) {
  state_.reset();
  chosen_.clear();
  confirmed_ = -1;
  // Of each version: epoch, step, the number of parts, and the two that it may have.
  std::vector<int64_t> mine = {began};
  for (const Version& v : versions_) {
    const std::vector<int>& parts = v.held.parts;
    mine.insert(mine.end(), {v.held.epoch, v.held.step, v.held.of, parts.empty() ? -1 : parts[0],
                             parts.size() < 2 ? -1 : parts[1]});
  }
  std::vector<std::vector<int64_t>> all = {mine};
  if (group != nullptr) all = dist::GatherValues(*group, mine);
  std::vector<std::vector<dist::HeldParts>> held;
  dist::HeldParts newest;
  for (const auto& values : all) {
    began = std::max(began, values[0]);
    held.emplace_back();
    for (size_t i = 1; i < values.size(); i += 5) {
      dist::HeldParts h{values[i], values[i + 1], static_cast<int>(values[i + 2]), {}};
      for (const int64_t part : {values[i + 3], values[i + 4]}) {
        if (part >= 0) h.parts.push_back(static_cast<int>(part));
      }
      if (std::pair(h.step, h.epoch) > std::pair(newest.step, newest.epoch)) newest = h;
      if (h.step >= 0) held.back().push_back(std::move(h));
    }
  }
  const auto version = dist::NewestWhole(held);
  if (!version) {
    for (Version& v : versions_) v.held.step = -1;
    if (newest.step <= began) return nullptr;
    std::set<int> gone;
    for (int part = 0; part < newest.of; ++part) gone.insert(part);
    for (const dist::HeldParts& h : held | std::views::join) {
      if (h.step != newest.step || h.epoch != newest.epoch) continue;
      for (const int part : h.parts) gone.erase(part);
    }
    *lost = StrCat("the state after step ", newest.step, " is lost: all processes that had part ",
                   *gone.begin() + 1, " of its ", newest.of, " parts have ended");
    return nullptr;
  }
  std::string text;
  for (int i = 0; i < 2; ++i) {
    const Version& v = versions_[i];
    if (dist::StateVersion(v.held.step, v.held.epoch) != *version) continue;
    confirmed_ = i;
    text = ToJson(v.state);
    for (const auto& [name, piece] : v.pieces)
      chosen_.emplace(TensorOfItem(name), std::pair(name, piece));
  }
  if (group != nullptr) {
    // The first that has it; all would say the same.
    bool first = !text.empty();
    for (int r = 0; r < group->rank(); ++r) {
      for (const dist::HeldParts& h : held[static_cast<size_t>(r)]) {
        first &= dist::StateVersion(h.step, h.epoch) != *version;
      }
    }
    for (const std::string& t : dist::GatherTexts(*group, first ? text : "")) {
      if (!t.empty()) text = t;
    }
  }
  state_ = ParseTrainerState(text, "another process");
  return &*state_;
}

// A rank that has elements of it has them right, and all others zeros, so that the largest of each
// byte is right.
Tensor StateCopies::Whole(dist::ProcessGroup* group, const std::string& name, DType dtype,
                          const Shape& shape) const {
  const Tensor whole = Tensor::Zeros(shape, dtype);
  const auto [begin, end] = chosen_.equal_range(name);
  for (auto it = begin; it != end; ++it) PutItem(it->second.first, it->second.second, whole);
  if (group != nullptr && whole.numel() > 0) {
    group->AllReduce(AsBytes(whole), dist::ReduceOp::kMax, StrCat("the parts of '", name, "'"))
        ->Wait();
  }
  return whole;
}

void StateCopies::Load(dist::ProcessGroup* group, Gpt& model) const {
  for (const auto& [name, p] : model.NamedParameters()) {
    const Tensor value = p->value().Detach();
    value.CopyFrom(p->PartOf(Whole(group, kModel + name, value.dtype(), p->logical_shape())));
  }
  for (const auto& [name, buffer] : model.NamedBuffers()) {
    buffer.CopyFrom(Whole(group, kBuffer + name, buffer.dtype(), buffer.shape()));
  }
}

void StateCopies::Load(dist::ProcessGroup* group, optim::Optimizer& optimizer) const {
  NamedTensors state;
  optimizer.ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
    state.emplace_back(name,
                       p.PartOf(Whole(group, kOptimizer + name, part.dtype(), p.logical_shape())));
  });
  optimizer.LoadState(state);
}

// ---- Copying ----

StateCopies::InWorld StateCopies::Enter(dist::ProcessGroup* group, int64_t epoch,
                                        const std::vector<int>& parts) {
  chosen_.clear();
  group_ = group;
  epoch_ = epoch;
  const int rank = dist::RankIn(group), size = dist::SizeOf(group);
  of_ = *std::ranges::max_element(parts) + 1;
  part_ = parts[static_cast<size_t>(rank)];
  next_ = previous_ = -1;
  index_.reset();
  if (size > 1 && of_ == size) {
    const int distance = BestDistance(dist::GatherTexts(*group, dist::HostName()));
    next_ = (rank + distance) % size;
    previous_ = (rank + size - distance) % size;
    others_part_ = parts[static_cast<size_t>(previous_)];
  }
  return InWorld(this);
}

void StateCopies::Leave::operator()(StateCopies* copies) const noexcept {
  constexpr std::chrono::seconds kPatience(5);
  if (copies->work_.valid()) {
    const bool ended = copies->work_.wait_for(kPatience) == std::future_status::ready;
    if (!ended && copies->group_ != nullptr)
      copies->group_->Abort("its world ended while it copied its state");
    try {
      copies->Complete();
    } catch (const std::exception&) {  // the version before is complete
    }
  }
  copies->group_ = nullptr;
}

void StateCopies::CopyOwn(Version& version, const Gpt& model,
                          const optim::Optimizer& optimizer) const {
  const std::vector<StateTensor> state = StateOf(model, optimizer, part_);
  int64_t bytes = 0;
  for (const StateTensor& t : state) bytes += RoundUp(t.part.bytes(), kAlignment);
  if (!version.own.defined() || version.own.bytes() != bytes) {
    version.own = Tensor();
    const auto memory = GetStreamBackend(device_.type).AllocateHost(bytes, device_);
    version.own =
        Tensor::FromStorage(Storage::Wrap(memory.get(), bytes, kCpu, memory), DType::kU8, {bytes});
  }
  int64_t at = 0;
  const auto keep = [&](const Tensor& x) {
    const Tensor kept = PieceOf(version.own, at, x.dtype(), x.numel());
    const Stream stream = CurrentStream(x.device());
    GetStreamBackend(x.device().type).CopyToHost(kept.raw_data(), x.raw_data(), x.bytes(), stream);
    if (!x.device().is_cpu()) x.storage().RecordUse(stream);
    at += RoundUp(x.bytes(), kAlignment);
    return kept;
  };
  std::vector<SafetensorsItem> items;
  for (const auto& [name, parameter, part] : state) {
    const int64_t n = part.numel();
    if (parameter != nullptr) {
      AddPart(name, *parameter, part, {}, keep, &items);
    } else if (n > 0) {
      items.push_back(
          SafetensorsItem::Of(StrCat(name, "[0:", n, "]"), keep(part.Detach().View({n}))));
    }
  }
  version.pieces.clear();
  for (const SafetensorsItem& item : items) version.pieces.emplace_back(item.name, item.produce());
}

void StateCopies::Copy(const TrainerState& state, const Gpt& model,
                       const optim::Optimizer& optimizer) {
  Complete();
  Version& version = versions_[confirmed_ == 0 ? 1 : 0];
  version.held = {};
  version.state = state;
  CopyOwn(version, model, optimizer);
  copied_.Record(CurrentStream(device_));
  copying_ = &version;
  work_ = std::async(std::launch::async, [this, &version] {
    copied_.Synchronize();
    if (passes_on()) PassOn(version);
  });
}

// What the others have is said once in a world: the names, dtypes, sizes and places of the pieces.
void StateCopies::Meet(const Version& version) {
  using enum dist::Transfer::Direction;
  std::ostringstream lines;
  lines << version.own.bytes() << "\n";
  const auto* const begin = static_cast<const std::byte*>(version.own.raw_data());
  for (const auto& [name, piece] : version.pieces) {
    lines << name << " " << static_cast<int>(piece.dtype()) << " " << piece.numel() << " "
          << static_cast<const std::byte*>(piece.raw_data()) - begin << "\n";
  }
  std::string mine = std::move(lines).str();
  const Tensor size = Tensor::FromVector<int64_t>({std::ssize(mine)}, {1});
  const Tensor others_size = Tensor::Zeros({1}, DType::kI64);
  group_->Exchange({{kSend, size, next_}, {kReceive, others_size, previous_}}, "sizes of parts")
      ->Wait();
  const auto text_of = [](std::string& text) {
    const std::shared_ptr<void> outlives(std::shared_ptr<void>(), text.data());
    return Tensor::FromStorage(Storage::Wrap(text.data(), std::ssize(text), kCpu, outlives),
                               DType::kU8, {std::ssize(text)});
  };
  std::string others(static_cast<size_t>(others_size.data<int64_t>()[0]), ' ');
  group_
      ->Exchange({{kSend, text_of(mine), next_}, {kReceive, text_of(others), previous_}},
                 "names of parts")
      ->Wait();
  index_ = others;
}

void StateCopies::PassOn(Version& version) {
  using enum dist::Transfer::Direction;
  if (!index_) Meet(version);
  std::istringstream lines(*index_);
  int64_t bytes = 0;
  lines >> bytes;
  if (!version.other.defined() || version.other.bytes() != bytes) {
    version.other = Tensor();
    version.other = Tensor::Empty({bytes}, DType::kU8);
  }
  std::string name;
  for (int64_t dtype = 0, count = 0, at = 0; lines >> name >> dtype >> count >> at;) {
    version.pieces.emplace_back(name, PieceOf(version.other, at, static_cast<DType>(dtype), count));
  }
  group_
      ->Exchange({{kSend, version.own, next_}, {kReceive, version.other, previous_}},
                 "parts of the state")
      ->Wait();
}

void StateCopies::Complete() {
  if (!work_.valid()) return;
  work_.get();
  copying_->held = {.epoch = epoch_, .step = copying_->state.step, .of = of_, .parts = {part_}};
  if (passes_on()) copying_->held.parts.push_back(others_part_);
}

void StateCopies::Confirm() {
  if (!work_.valid()) return;
  Complete();
  if (group_ != nullptr) group_->Barrier()->Wait();
  confirmed_ = static_cast<int>(copying_ - versions_.data());
}

}  // namespace lockstep::models
