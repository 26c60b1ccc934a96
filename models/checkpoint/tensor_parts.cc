#include "models/checkpoint/tensor_parts.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <iomanip>
#include <optional>
#include <queue>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::models {
namespace {

constexpr int kFormat = 2;  // 1 has no strides
constexpr int64_t kMaxParts = 1'000'000;

// "name[begin:end]" or "name[begin:end:run:stride]".
struct PartName {
  std::string name;
  int64_t begin = 0, end = 0;
  int64_t run = 0, stride = 0;  // equal: contiguous

  static PartName Of(const std::string& name, int64_t first, int64_t count) {
    return {name, first, first + count, count, count};
  }
  int64_t runs() const { return stride == 0 ? 0 : (end - begin - run) / stride + 1; }
  int64_t count() const { return runs() * run; }
  std::string Text() const {
    const std::string strides = run == stride ? "" : StrCat(":", run, ":", stride);
    return StrCat(name, "[", begin, ":", end, strides, "]");
  }

  // Appends elements that follow in the file, if they lie as those before do.
  bool Append(int64_t first, int64_t count) {
    if (run != stride) {
      if (count != run || first != begin + runs() * stride) return false;
    } else if (first == end) {
      run = stride = run + count;
    } else {
      if (count != run || first < end) return false;
      stride = first - begin;
    }
    end = first + count;
    return true;
  }

  static std::optional<PartName> Parse(const std::string& text) {
    const size_t bracket = text.rfind('[');
    if (bracket == std::string::npos || !text.ends_with(']')) return {};
    std::vector<int64_t> numbers;
    const char *at = text.data() + bracket + 1, *const end = text.data() + text.size() - 1;
    for (;; ++at) {
      int64_t number = 0;
      const auto [next, error] = std::from_chars(at, end, number);
      if (error != std::errc() || number < 0) return {};
      numbers.push_back(number);
      at = next;
      if (at == end) break;
      if (*at != ':') return {};
    }
    if (numbers.size() != 2 && numbers.size() != 4) return {};
    const int64_t length = numbers[1] - numbers[0];
    PartName part{text.substr(0, bracket), numbers[0], numbers[1], length, length};
    if (numbers.size() == 4) std::tie(part.run, part.stride) = std::pair(numbers[2], numbers[3]);
    const bool fits = length == 0
                          ? part.run == part.stride
                          : part.run > 0 && part.stride >= part.run && part.stride <= part.end &&
                                length >= part.run && (length - part.run) % part.stride == 0;
    return fits ? std::optional(part) : std::nullopt;
  }
};

DType ParseDType(const std::string& name, const std::string& source) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (SafetensorsName(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  throw InputError(StrCat(source, ": ", Quoted(name), " is not a dtype"));
}

// A shape whose number of elements can be counted.
Shape ParseShape(const std::vector<int64_t>& sizes, const std::string& where) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel)) {
      throw InputError(StrCat(where, ": the shape has a negative size or too many elements"));
    }
  }
  if (sizes.size() > Shape::kMaxDims) {
    throw InputError(StrCat(where, ": the shape has ", sizes.size(), " dimensions, at most ",
                            Shape::kMaxDims, " are supported"));
  }
  return Shape(std::span<const int64_t>(sizes));
}

}  // namespace

std::string PartFile(const std::string& kind, int64_t part, int64_t parts) {
  std::ostringstream out;
  out << kind << ".part-" << std::setfill('0') << std::setw(5) << part << "-of-" << std::setw(5)
      << parts << ".safetensors";
  return std::move(out).str();
}

std::string PartsIndex(int64_t parts,
                       const std::map<std::string, std::vector<PartTensor>>& tensors) {
  Json index = {{"format", kFormat}, {"parts", parts}};
  for (const auto& [kind, list] : tensors) {
    index[kind] = Json::object();
    for (const PartTensor& t : list) {
      index[kind][t.name] = {{"dtype", SafetensorsName(t.dtype)},
                             {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())}};
    }
  }
  return index.dump(1) + "\n";
}

void AddPart(const std::string& name, const Parameter& parameter, const Tensor& part, PartCopy copy,
             const std::function<Tensor(const Tensor&)>& keep,
             std::vector<SafetensorsItem>* items) {
  const int64_t numel = part.numel();
  const Tensor flat = part.Detach().View({numel});
  const int64_t begin = numel * copy.index / copy.count,
                end = numel * (copy.index + 1) / copy.count;
  if (begin == end) return;
  const Tensor kept = keep(flat.Slice(0, begin, end));
  std::optional<PartName> open;
  int64_t done = 0;
  const auto add = [&] {
    items->push_back(SafetensorsItem::Of(open->Text(), kept.Slice(0, done, done + open->count())));
    done += open->count();
  };
  const auto append = [&](int64_t, int64_t first, int64_t count) {
    if (open && open->Append(first, count)) return;
    if (open) add();
    open = PartName::Of(name, first, count);
  };
  parameter.layout().ForEachRun(parameter.logical_shape(), begin, end, append);
  add();
}

std::string TensorOfItem(const std::string& item) { return item.substr(0, item.rfind('[')); }

void PutItem(const std::string& item, const Tensor& part, const Tensor& whole) {
  const auto name = PartName::Parse(item);
  const bool fits = name && part.dtype() == whole.dtype() && name->count() == part.numel() &&
                    name->end <= whole.numel();
  if (!fits) throw InputError(StrCat(Quoted(item), " is no part of a tensor ", whole.Describe()));
  const int64_t size = SizeOf(part.dtype());
  const auto* from = static_cast<const std::byte*>(part.raw_data());
  auto* const to = static_cast<std::byte*>(whole.raw_data());
  for (int64_t first = name->begin; first < name->end; first += name->stride) {
    std::copy_n(from, name->run * size, to + first * size);
    from += name->run * size;
  }
}

bool TensorParts::Exist(const std::string& folder) {
  return PathExists(JoinPath(folder, kPartsIndex));
}

TensorParts TensorParts::Open(const std::string& folder, const std::string& kind) {
  TensorParts parts;
  if (Exist(folder)) {
    parts.source_ = JoinPath(folder, kPartsIndex);
    parts.ReadIndex(folder, kind);
    for (const SafetensorsFile& file : *parts.files_) {
      for (const SafetensorsEntry& entry : file.entries()) parts.AddEntry(entry);
    }
    parts.CheckRanges();
    return parts;
  }
  parts.source_ = JoinPath(folder, kind + ".safetensors");
  parts.files_->push_back(SafetensorsFile::Open(parts.source_));
  for (const SafetensorsEntry& entry : parts.files_->front().entries()) {
    const Shape shape = ParseShape(entry.shape, StrCat(parts.source_, ": ", Quoted(entry.name)));
    parts.tensors_[entry.name] = {
        entry.dtype(), shape, {{0, shape.numel(), std::max<int64_t>(shape.numel(), 1), 1, &entry}}};
  }
  return parts;
}

void TensorParts::ReadIndex(const std::string& folder, const std::string& kind) {
  const Json index = ParseJson(ReadFile(source_), source_);
  try {
    if (const int64_t format = IntegerOf(index.at("format")); format < 1 || format > kFormat) {
      throw InputError(StrCat(source_, ": format ", format, ", this program reads 1 to ", kFormat));
    }
    const int64_t parts = IntegerOf(index.at("parts"));
    if (parts < 1 || parts > kMaxParts) {
      throw InputError(StrCat(source_, ": \"parts\" is ", parts, ", not a number of files"));
    }
    for (const auto& [name, tensor] : index.at(kind).items()) {
      const std::string where = StrCat(source_, ": ", Quoted(name));
      tensors_[name] = {
          ParseDType(tensor.at("dtype"), where), ParseShape(tensor.at("shape"), where), {}};
    }
    for (int64_t part = 0; part < parts; ++part) {
      files_->push_back(SafetensorsFile::Open(JoinPath(folder, PartFile(kind, part, parts))));
    }
  } catch (const JsonError& error) {
    throw InputError(StrCat(source_, ": damaged: ", error.what()));
  }
}

void TensorParts::AddEntry(const SafetensorsEntry& entry) {
  const auto fail = [&](const auto&... what) {
    throw InputError(StrCat(*entry.source, ": tensor ", Quoted(entry.name), " ", what...));
  };
  const auto part = PartName::Parse(entry.name);
  const auto it = part ? tensors_.find(part->name) : tensors_.end();
  if (it == tensors_.end()) fail("is no part of a tensor that ", source_, " lists");
  Whole& whole = it->second;
  if (entry.dtype() != whole.dtype) fail("is not ", whole.dtype, ", as ", source_, " says");
  if (entry.shape != std::vector<int64_t>{part->count()} || part->end > whole.shape.numel()) {
    fail("does not have the elements that its name gives, of ", whole.shape.numel());
  }
  if (part->begin == part->end) return;
  whole.ranges.push_back({part->begin, part->run, part->stride, part->runs(), &entry});
}

void TensorParts::CheckRanges() {
  for (const auto& [name, whole] : tensors_) {
    // The runs of all ranges in ascending order: the next of each range.
    using Run = std::pair<int64_t, const Range*>;
    std::priority_queue<Run, std::vector<Run>, std::greater<>> next;
    for (const Range& range : whole.ranges) next.emplace(range.begin, &range);
    int64_t reached = 0;
    const auto expect = [&, &name = name](int64_t begin) {
      if (begin == reached) return;
      throw InputError(StrCat(source_, ": elements [", std::min(begin, reached), ", ",
                              std::max(begin, reached), ") of ", Quoted(name),
                              begin > reached ? " are in no part" : " are in two parts"));
    };
    while (!next.empty()) {
      const auto [begin, range] = next.top();
      next.pop();
      expect(begin);
      reached = begin + range->run;
      const int64_t following = begin + range->stride;
      if (range->RunOf(following) >= 0) next.emplace(following, range);
    }
    expect(whole.shape.numel());
  }
}

std::vector<std::string> TensorParts::names() const {
  std::vector<std::string> names;
  for (const auto& [name, whole] : tensors_) names.push_back(name);
  return names;
}

const TensorParts::Whole& TensorParts::Get(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) return it->second;
  throw InputError(
      StrCat(source_, ": has no tensor ", Quoted(name), " among its ", tensors_.size()));
}

std::span<const std::byte> TensorParts::PieceAt(const Whole& from, int64_t first, int64_t most) {
  const int64_t size = SizeOf(from.dtype);
  const auto range =
      std::ranges::find_if(from.ranges, [&](const Range& r) { return r.RunOf(first) >= 0; });
  const int64_t run = range->RunOf(first), at = first - range->begin - run * range->stride;
  return range->entry->bytes.subspan((run * range->run + at) * size,
                                     std::min(most, range->run - at) * size);
}

// Elements [first, first + count), which the caller has checked.
void TensorParts::Copy(const Whole& from, int64_t first, int64_t count, std::byte* to) {
  while (count > 0) {
    const auto piece = PieceAt(from, first, count);
    std::ranges::copy(piece, to);
    to += piece.size();
    const int64_t n = std::ssize(piece) / SizeOf(from.dtype);
    first += n;
    count -= n;
  }
}

Tensor TensorParts::Read(const std::string& name) const {
  const Whole& from = Get(name);
  const Tensor whole = Tensor::Empty(from.shape, from.dtype);
  Copy(from, 0, whole.numel(), static_cast<std::byte*>(whole.raw_data()));
  return whole;
}

Tensor TensorParts::ReadPart(const std::string& name, const Parameter& parameter) const {
  const Whole& from = Get(name);
  const Shape& shape = parameter.logical_shape();
  if (!(from.shape == shape)) {
    throw InputError(StrCat(source_, ": '", name, "' has shape ", from.shape,
                            ", but this model needs ", shape,
                            ": the model options differ from those of the file"));
  }
  const Shape part_shape = parameter.layout().PartShape(shape);
  const int64_t numel = part_shape.numel(), size = SizeOf(from.dtype);
  if (numel == 0) return Tensor::Empty(part_shape, from.dtype);
  if (const auto run = parameter.layout().RunAt(shape, 0); run.count >= numel) {
    const auto piece = PieceAt(from, run.first, numel);
    const bool aligned = reinterpret_cast<uintptr_t>(piece.data()) % size == 0;
    if (aligned && std::ssize(piece) == numel * size) {
      auto* const data = const_cast<std::byte*>(piece.data());
      return Tensor::FromStorage(Storage::Wrap(data, numel * size, kCpu, files_), from.dtype,
                                 part_shape);
    }
  }
  const Tensor part = Tensor::Empty(part_shape, from.dtype);
  auto* to = static_cast<std::byte*>(part.raw_data());
  parameter.layout().ForEachRun(shape, 0, numel, [&](int64_t i, int64_t first, int64_t count) {
    Copy(from, first, count, to + i * size);
  });
  return part;
}

}  // namespace lockstep::models
