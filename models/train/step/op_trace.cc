#include "models/train/step/op_trace.h"

#include "core/autograd/node.h"
#include "dist/fingerprint.h"
#include "models/report/fingerprints.h"

namespace lockstep::models {
namespace {

std::vector<const Tensor*> Pointers(std::span<const Tensor> tensors) {
  std::vector<const Tensor*> all;
  for (const Tensor& x : tensors) all.push_back(&x);
  return all;
}

// Other calls carry times and decisions of the loop.
bool IsOfTensors(const dist::Collective& call) {
  return IsFloating(call.dtype) && call.dtype != DType::kF64;
}

}  // namespace

OpTrace::OpTrace(TracedOps traced, std::string folder, int64_t rank,
                 std::vector<std::shared_ptr<Parameter>> parameters, ForwardPlace& place)
    : traced_(std::move(traced)),
      folder_(std::move(folder)),
      rank_(rank),
      parameters_(std::move(parameters)),
      place_(place) {
  if (keeps_modules()) place.AddOnEnd([this](const std::string& path) { OnModule(path); });
}

void OpTrace::Keep(const std::string& name, const Tensor& x) {
  const NoGrad no_grad;
  if (x.defined()) kept_.push_back(SafetensorsItem::Of(name, x.Detach().Contiguous().Clone()));
}

void OpTrace::OnModule(const std::string& path) {
  // The whole model and its unnamed parts have the path "".
  if (observes() && !path.empty()) {
    Keep(StrCat("activations.", micro_batch_, ".", path), last_);
  }
}

OpEvent& OpTrace::Add(const char* kind, std::string name, std::string module) {
  const int64_t at = count_++;
  events_.push_back({.kind = kind,
                     .key = StrCat(at),
                     .name = std::move(name),
                     .module = std::move(module),
                     .at = at});
  return events_.back();
}

void OpTrace::AddTensor(OpEvent& event, bool in, const Tensor& x) {
  auto& list = in ? event.in : event.out;
  if (!x.defined()) {
    list.push_back("none");
    return;
  }
  const NoGrad no_grad;
  const Tensor host = x.Detach().Contiguous().To(kCpu);
  list.push_back(ToHex(dist::Fingerprint(host)));
  if (!in && list.size() == 1) event.of = StrCat(x.dtype(), x.shape());
  if (event.key == traced_.event) Keep(StrCat(in ? "in." : "out.", list.size() - 1), host);
}

void OpTrace::AddTensors(OpEvent& event, bool in, std::span<const Tensor* const> tensors) {
  for (const Tensor* const x : tensors) AddTensor(event, in, *x);
}

void OpTrace::BeginStep(int64_t step) {
  if (step != traced_.step) return;
  for (const auto& p : parameters_) {
    AddTensor(Add("start", p->name(), ""), false, p->value());
    if (keeps_modules()) Keep("weights." + p->name(), p->value());
  }
  numbers_.clear();
  observe_.emplace(this);
  observe_calls_.emplace(this);
}

void OpTrace::OnBatch(const data::Batch& batch) {
  if (!observes()) return;
  micro_batch_ = batch.micro_batch;
  OpEvent& event = Add("data", StrCat("micro-batch ", batch.micro_batch), "");
  const Shape shape = {batch.rows, batch.cols};
  for (const auto* tokens : {&batch.inputs, &batch.targets}) {
    const Tensor x = Tensor::FromVector<int32_t>(*tokens, shape);
    AddTensor(event, false, x);
    const char* const what = tokens == &batch.inputs ? ".inputs" : ".targets";
    if (keeps_modules()) Keep(StrCat("data.", batch.micro_batch, what), x);
  }
}

void OpTrace::OnForward(const Node* node, std::span<const Tensor* const> inputs,
                        std::span<Tensor* const> outputs) {
  // Held until the next operation, which so cannot write in its place; the bits are the same.
  if (keeps_modules()) last_ = outputs.back()->Detach();
  // Null: a part of another operation, of a forward that runs again with a node, or of frozen
  // weights; nothing tells these apart.
  if (node == nullptr) return;
  modules_[node->sequence()] = place_.path();
  OpEvent& event = Add("op", node->name(), place_.path());
  AddTensors(event, true, inputs);
  AddTensors(event, false, std::vector<const Tensor*>(outputs.begin(), outputs.end()));
}

void OpTrace::OnBackward(const Node& node, std::span<const Tensor> of_outputs) {
  backwards_.push_back(events_.size());
  OpEvent& event = Add("backward", node.name(), modules_[node.sequence()]);
  AddTensors(event, true, Pointers(of_outputs));
}

void OpTrace::OnGradients(const Node&, std::span<const Tensor> of_inputs) {
  if (backwards_.empty()) return;
  OpEvent& event = events_[backwards_.back()];
  event.at = count_++;  // what it gives is there now, after the forwards that it has run again
  AddTensors(event, false, Pointers(of_inputs));
  backwards_.pop_back();
}

void OpTrace::OnRandom(uint64_t seed, uint64_t site) {
  Add("random", "the seed and the site", place_.path()).in = {ToHex(seed), ToHex(site)};
}

void OpTrace::OnCall(const std::string& group, const dist::Collective& call,
                     const std::string& purpose, const Tensor& input) {
  if (!IsOfTensors(call)) return;
  const std::lock_guard lock(mutex_);
  dist::Collective of_step = call;
  of_step.sequence = NumberOf(group, call);
  const std::string key = StrCat(group, "#", of_step.sequence);
  OpEvent& event = calls_[key];
  event = {
      .kind = "collective", .key = key, .name = dist::Describe(of_step, purpose), .at = count_};
  AddTensor(event, true, input);
}

void OpTrace::OnResult(const std::string& group, const dist::Collective& call,
                       const Tensor& output) {
  if (!IsOfTensors(call)) return;
  const std::lock_guard lock(mutex_);
  AddTensor(calls_[StrCat(group, "#", NumberOf(group, call))], false, output);
}

int64_t OpTrace::NumberOf(const std::string& group, const dist::Collective& call) {
  auto& of_group = numbers_[group];
  return of_group.try_emplace(call.sequence, std::ssize(of_group) + 1).first->second;
}

void OpTrace::BeforeUpdate() {
  if (!observes()) return;
  for (const auto& p : parameters_) {
    AddTensor(Add("gradient", p->name(), ""), false, p->grad());
    if (keeps_modules()) Keep("gradients." + p->name(), p->grad());
  }
}

void OpTrace::EndStep() {
  if (!observes()) return;
  observe_.reset();
  observe_calls_.reset();
  last_ = Tensor();
  std::map<std::string, std::string> gradients;
  for (const OpEvent& e : events_) {
    if (e.kind == "gradient") gradients[e.name] = e.out[0];
  }
  for (const auto& p : parameters_) {
    OpEvent& event = Add("update", p->name(), "");
    event.in = {gradients[p->name()]};
    AddTensor(event, false, p->value());
  }
  std::string lines;
  for (const OpEvent& e : events_) lines += ToJson(e) + "\n";
  for (const auto& [key, e] : calls_) lines += ToJson(e) + "\n";
  WriteFileAtomically(JoinPath(folder_, OpEventsFile(traced_.step, rank_)), lines);
  if (!traced_.event.empty()) {
    ReplaceFile(JoinPath(folder_, OpTensorsFile(traced_.step, rank_)),
                [&](FileWriter& file) { WriteSafetensors(file, kept_); });
  }
  done_ = true;
}

}  // namespace lockstep::models
