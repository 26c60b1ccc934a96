#include "dist/shard/shard_unit.h"

#include <array>
#include <cmath>
#include <utility>

#include "core/meta_memory.h"
#include "core/slots.h"
#include "dist/data_parallel/gradient_buckets.h"
#include "dist/data_parallel/loop_checks.h"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::dist {
namespace {

// The shapes that the cuts give, without a range.
std::vector<Shape> ShapesOf(std::span<const std::shared_ptr<Parameter>> parameters) {
  std::vector<Shape> shapes;
  for (const auto& p : parameters) {
    shapes.push_back(ShardLayout{.cuts = p->layout().cuts}.PartShape(p->logical_shape()));
  }
  return shapes;
}

// The sizes of the largest part of each parameter, which is the first. Ranges of these are alike on
// tensor-parallel ranks whose parts of a vocabulary are not, so that they can compare what they
// share.
std::vector<int64_t> LargestParts(std::span<const std::shared_ptr<Parameter>> parameters) {
  std::vector<int64_t> numels;
  for (const auto& p : parameters) {
    std::vector<ShardCut> cuts = p->layout().cuts;
    for (ShardCut& cut : cuts) cut.part = 0;
    numels.push_back(ShardLayout{.cuts = cuts}.PartShape(p->logical_shape()).numel());
  }
  return numels;
}

}  // namespace

Tensor WithoutMemory(const Shape& shape, DType dtype) {
  return Tensor::FromStorage(Storage::Reserve(shape.numel() * SizeOf(dtype), kMeta), dtype, shape);
}

ShardUnit::ShardUnit(std::vector<std::shared_ptr<Parameter>> parameters, ProcessGroup* group,
                     int64_t multiple, const std::shared_ptr<MeshParts>& parts,
                     FlatExchange& exchange, BackwardObserver* observer)
    : parameters_(std::move(parameters)),
      shapes_(ShapesOf(parameters_)),
      rank_(RankIn(group)),
      trainable_(parameters_.at(0)->trainable()),
      observer_(observer),
      layout_(std::make_shared<FlatLayout>(
          PlanFlat(LargestParts(parameters_), SizeOf(group), multiple))) {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const std::optional<ShardRange>& before = parameters_[p]->layout().range;
    const ShardRange range = RangeOf(p);
    if (before) {
      LS_CHECK(
          before->axis == range.axis && before->begin == range.begin && before->end == range.end,
          "the parameter '", parameters_[p]->name(),
          "' is used by two modules that are sharded by themselves, which would cut it "
          "differently: keep its uses apart (ShardOptions::separate_uses)");
      continue;
    }
    exchange.Add(*parameters_[p], layout_, p, group);
    parameters_[p]->SetLayout({.cuts = parameters_[p]->layout().cuts, .range = range}, parts);
  }
}

ShardUnit::ShardUnit(const std::shared_ptr<Parameter>& weight,
                     const std::shared_ptr<Parameter>& gradient_holder, int64_t ranks, int64_t rank,
                     int64_t multiple, BackwardObserver* observer)
    : parameters_{weight},
      shapes_{gradient_holder->part().shape()},
      rank_(rank),
      trainable_(true),
      gradient_holder_(gradient_holder),
      observer_(observer),
      layout_(
          std::make_shared<FlatLayout>(PlanFlat(std::array{shapes_[0].numel()}, ranks, multiple))) {
  gradient_holder_->SetLayout({.range = RangeOf(0)});
  gradient_holder_->SetValue(
      WithoutMemory(gradient_holder_->part().shape(), gradient_holder_->part().dtype()));
}

ShardUnit::~ShardUnit() {
  for (const auto& leaf : leaves_) leaf->RemoveObserver(observer_);
}

std::string ShardUnit::Describe(const char* what) const {
  const size_t others = parameters_.size() - 1;
  return StrCat("the ", what, " of '",
                (gradient_holder_ ? gradient_holder_ : parameters_[0])->name(), "'",
                others > 0 ? StrCat(" and ", others, " more") : "");
}

// ---- Weights ----

void ShardUnit::BuildApart() {
  const DType dtype = parameters_[0]->part().dtype();
  if (!leaves_.empty() && gradient_holder_->part().dtype() == dtype) return;
  gradient_holder_->SetValue(WithoutMemory(gradient_holder_->part().shape(), dtype));
  wholes_.clear();
  shards_.clear();
  slices_ = {WithoutMemory(shapes_[0], dtype)};
  leaves_ = {LeafOf(slices_[0], gradient_holder_->name())};
}

// The leaf of a whole weight, in whose graph it then is.
std::shared_ptr<Leaf> ShardUnit::LeafOf(Tensor& whole, const std::string& name) const {
  auto leaf = std::make_shared<Leaf>(whole);
  leaf->set_name(name);
  if (observer_ != nullptr) leaf->AddObserver(observer_);
  whole.set_autograd(Edge::To(leaf));
  return leaf;
}

void ShardUnit::Build() {
  const Tensor& first = parameters_[0]->part();
  const Device device = parameters_[0]->device();
  if (weights_.defined() && weights_.dtype() == first.dtype() && weights_.device() == device) {
    return;
  }
  for (const auto& p : parameters_) {
    LS_CHECK(p->part().dtype() == first.dtype() && p->device() == device,
             "parameters that are gathered together are of one dtype on one device, but '",
             parameters_[0]->name(), "' is ", first.Describe(), " and '", p->name(), "' ",
             p->part().Describe(),
             ": give the module of one of them a unit of its own (ShardOptions::unit), or make the "
             "model FullyShard after Materialize");
    (void)SumDType(*p);  // throws where the user asked for another
  }
  const int64_t bytes = layout_->numel() * SizeOf(first.dtype());
  weights_ =
      Tensor::FromStorage(Storage::Reserve(bytes, device), first.dtype(), {layout_->numel()});
  slices_.clear();
  leaves_.clear();
  wholes_.clear();
  shards_.clear();
  gathered_.clear();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Tensor slice = SliceOf(weights_, layout_->offsets[p], shapes_[p]);
    if (trainable_) leaves_.push_back(LeafOf(slice, parameters_[p]->name()));
    slices_.push_back(std::move(slice));
  }
}

// Whether the memory holds the parts as they are now, or will.
bool ShardUnit::IsCurrent() const {
  if (gathered_.empty() || weights_.storage().released()) return false;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Storage& part = parameters_[p]->part().storage();
    if (!part.SameBlock(gathered_[p].storage) || part.version() != gathered_[p].version) {
      return false;
    }
  }
  return true;
}

Tensor ShardUnit::Mine(size_t p) const {
  const ShardRange range = RangeOf(p);
  return weights_.Slice(0, layout_->offsets[p] + range.begin, layout_->offsets[p] + range.end);
}

WorkPtr ShardUnit::StartGather(ProcessGroup* group) {
  if (gradient_holder_) {
    BuildApart();
    return nullptr;
  }
  for (const auto& p : parameters_) CheckTrainable(*p, trainable_, "FullyShard");
  Build();
  if (IsCurrent()) return nullptr;
  {
    const MetaMemoryLabel label("gathers");
    weights_.storage().Materialize();
  }
  const std::vector<Seen> before = std::exchange(gathered_, {});  // until the gather has begun
  std::vector<Seen> seen;
  std::vector<HostCopies::Copy> from_host;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor part = parameters_[p]->part().Detach();
    if (part.numel() > 0 && parameters_[p]->on_host() && !part.device().is_meta()) {
      from_host.push_back({part.raw_data(), Mine(p).raw_data(), part.bytes()});
    } else if (part.numel() > 0) {
      Mine(p).CopyFrom(part);
    }
    seen.push_back({part.storage(), part.storage().version()});
    // To code that saved the weights as they were, they are overwritten.
    const bool changed = !before.empty() && (!before[p].storage.SameBlock(part.storage()) ||
                                             before[p].version != seen[p].version);
    if (changed) slices_[p].storage().BumpVersion();
  }
  written_.clear();
  for (const Tensor& slice : slices_) {
    written_.push_back({slice.storage(), slice.storage().version()});
  }
  std::optional<StreamGuard> after_copies;
  if (!from_host.empty()) {
    const Device device = weights_.device();
    if (!copies_ || copies_->device() != device) copies_.emplace(device);
    arriving_ = copies_->ToDevice(from_host, "weights");
    // The ranks exchange them next, whatever the device computes meanwhile.
    after_copies.emplace(copies_->to_device());
  }
  if (group) {
    const int64_t shard = layout_->shard;
    gathering_ = group->AllGather(weights_.Slice(0, rank_ * shard, (rank_ + 1) * shard), weights_,
                                  Describe("weights"));
  }
  gathered_ = std::move(seen);
  return gathering_;
}

void ShardUnit::Await() {
  if (arriving_) copies_->Await(arriving_);
  if (!gathering_) return;
  try {
    std::exchange(gathering_, nullptr)->Wait();
  } catch (...) {
    gathered_.clear();
    throw;
  }
}

void ShardUnit::Show(size_t by) {
  if (!shown_by_) shown_by_ = by;
  for (size_t p = 0; p < parameters_.size(); ++p) Used(p).Show(slices_[p]);
}

void ShardUnit::Hide(size_t by) {
  if (shown_by_ != by) return;
  shown_by_.reset();
  for (size_t p = 0; p < parameters_.size(); ++p) Used(p).Hide();
}

void ShardUnit::Release() {
  Await();
  if (shown_by_) return;
  if (weights_.defined() && !weights_.storage().released()) weights_.storage().Release();
}

void ShardUnit::KeepWritten() {
  if (gradient_holder_) return;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const uint64_t version = slices_[p].storage().version();
    if (version == written_[p].version) continue;
    parameters_[p]->part().Detach().CopyFrom(Mine(p));
    written_[p].version = version;
  }
}

// ---- Gradients ----

const Tensor& ShardUnit::Buffer(std::vector<Tensor>& buffers, int64_t i, int64_t numel,
                                bool released) {
  const auto at = static_cast<size_t>(i);
  if (buffers.size() <= at) buffers.resize(at + 1);
  if (!buffers[at].defined()) {
    const DType dtype = SumDType(*parameters_[0]);
    const int64_t bytes = numel * SizeOf(dtype);
    const Device device = parameters_[0]->device();
    const MetaMemoryLabel label("gradients");
    const Storage storage =
        released ? Storage::Reserve(bytes, device) : Storage::Allocate(bytes, device);
    buffers[at] = Tensor::FromStorage(storage, dtype, {numel});
  }
  return buffers[at];
}

void ShardUnit::WriteTo(int64_t buffer) {
  buffer_ = buffer;
  destinations_.clear();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    destinations_.push_back(SliceOf(whole(buffer), layout_->offsets[p], shapes_[p]));
    leaves_[p]->SetDestination(destinations_[p]);
  }
}

void ShardUnit::TakeGradients() {
  const MetaMemoryLabel label("buckets");
  whole(buffer_).storage().Materialize();
}

void ShardUnit::FillAbsent(const Leaf& leaf) const {
  for (size_t p = 0; p < leaves_.size(); ++p) {
    if (leaves_[p].get() == &leaf && !leaf.grad().defined()) destinations_[p].Fill(0);
  }
}

const Parameter* ShardUnit::WithGradient() const {
  for (const auto& p : parameters_) {
    if (!gradient_holder_ && p->grad().defined()) return p.get();
  }
  return nullptr;
}

void ShardUnit::NoteSquares(std::span<const int64_t> buffers, bool afresh) {
  std::vector<Tensor> grads;
  int64_t chunks = 0;
  for (const int64_t buffer : buffers) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      grads.push_back(SliceOf(whole(buffer), layout_->offsets[p], {numel(p)}));
      chunks += GradNormChunks(numel(p));
    }
  }
  const Device device = parameters_[0]->device();
  const Stream stream = CurrentStream(device);
  const Tensor sums = Tensor::Empty({chunks}, DType::kF64, device);
  grad_norm_square_sums(stream, grads, sums);
  if (afresh) {
    earlier_squares_ = std::exchange(squares_, sums);
  } else {
    accumulate_slot(stream, sums, squares_);
  }
}

bool ShardUnit::WasNonFinite(const Parameter& parameter, int64_t ago) const {
  const Tensor& squares = ago == 0 ? squares_ : earlier_squares_;
  if (!squares.defined()) return false;
  const std::vector<double> sums = squares.ToVector<double>();
  for (size_t chunk = 0; chunk < sums.size();) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      for (int64_t n = GradNormChunks(numel(p)); n > 0; --n, ++chunk) {
        if (parameters_[p].get() == &parameter && !std::isfinite(sums[chunk])) return true;
      }
    }
  }
  return false;
}

void ShardUnit::ShareGradients(int64_t buffer) {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const ShardRange range = RangeOf(p);
    const int64_t begin = layout_->offsets[p] + range.begin - rank_ * layout_->shard;
    const int64_t numel = range.end - range.begin;
    Used(p).leaf().ShareGrad(SliceOf(shard(buffer), numel > 0 ? begin : 0, {numel}));
  }
}

}  // namespace lockstep::dist
