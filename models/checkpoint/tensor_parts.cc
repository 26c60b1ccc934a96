#include "models/checkpoint/tensor_parts.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::models {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr int64_t kMaxParts = 1'000'000;

// "name[begin:end]".
struct PartName {
  std::string name;
  int64_t begin = 0, end = 0;

  std::string Text() const { return StrCat(name, "[", begin, ":", end, "]"); }

  static std::optional<PartName> Parse(const std::string& text) {
    const size_t bracket = text.rfind('['), colon = text.find(':', bracket);
    if (bracket == std::string::npos || colon == std::string::npos || !text.ends_with(']')) {
      return {};
    }
    PartName part{.name = text.substr(0, bracket)};
    const auto number = [&](size_t from, size_t to, int64_t* value) {
      const auto [end, error] = std::from_chars(text.data() + from, text.data() + to, *value);
      return error == std::errc() && end == text.data() + to;
    };
    if (!number(bracket + 1, colon, &part.begin) ||
        !number(colon + 1, text.size() - 1, &part.end) || part.begin < 0 || part.end < part.begin) {
      return {};
    }
    return part;
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
  return DumpJson(index, 1) + "\n";
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
  const auto add = [&](int64_t i, int64_t first, int64_t count) {
    items->push_back(SafetensorsItem::Of(PartName{name, first, first + count}.Text(),
                                         kept.Slice(0, i - begin, i - begin + count)));
  };
  parameter.layout().ForEachRun(parameter.logical_shape(), begin, end, add);
}

bool TensorParts::Exist(const std::string& folder) {
  return PathExists(JoinPath(folder, kPartsIndex));
}

TensorParts TensorParts::Open(const std::string& folder, const std::string& kind) {
  TensorParts parts;
  if (Exist(folder)) {
    parts.source_ = JoinPath(folder, kPartsIndex);
    parts.ReadIndex(folder, kind);
    for (const SafetensorsFile& file : parts.files_) {
      for (const SafetensorsEntry& entry : file.entries()) parts.AddEntry(entry);
    }
    parts.CheckRanges();
    return parts;
  }
  parts.source_ = JoinPath(folder, kind + ".safetensors");
  parts.files_.push_back(SafetensorsFile::Open(parts.source_));
  for (const SafetensorsEntry& entry : parts.files_[0].entries()) {
    const Shape shape = ParseShape(entry.shape, StrCat(parts.source_, ": ", Quoted(entry.name)));
    parts.tensors_[entry.name] = {entry.dtype(), shape, {{0, shape.numel(), &entry}}};
  }
  return parts;
}

void TensorParts::ReadIndex(const std::string& folder, const std::string& kind) {
  const Json index = ParseJson(ReadFile(source_), source_);
  try {
    if (const int64_t format = IntegerOf(index.at("format")); format != kFormat) {
      throw InputError(StrCat(source_, ": format ", format, ", this program reads ", kFormat));
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
      files_.push_back(SafetensorsFile::Open(JoinPath(folder, PartFile(kind, part, parts))));
    }
  } catch (const Json::exception& error) {
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
  if (entry.shape != std::vector<int64_t>{part->end - part->begin} ||
      part->end > whole.shape.numel()) {
    fail("does not have the elements that its name gives, of ", whole.shape.numel());
  }
  if (part->begin < part->end) whole.ranges.push_back({part->begin, part->end, &entry});
}

void TensorParts::CheckRanges() {
  for (auto& [name, whole] : tensors_) {
    std::ranges::sort(whole.ranges, {}, &Range::begin);
    int64_t reached = 0;
    const auto expect = [&](int64_t begin) {
      if (begin == reached) return;
      throw InputError(StrCat(source_, ": elements [", std::min(begin, reached), ", ",
                              std::max(begin, reached), ") of ", Quoted(name),
                              begin > reached ? " are in no part" : " are in two parts"));
    };
    for (const Range& range : whole.ranges) {
      expect(range.begin);
      reached = range.end;
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

// Elements [first, first + count), which the caller has checked.
void TensorParts::Copy(const Whole& from, int64_t first, int64_t count, std::byte* to) {
  const int64_t size = SizeOf(from.dtype);
  auto range =
      std::ranges::upper_bound(from.ranges, first, {}, [](const Range& r) { return r.end; });
  while (count > 0) {
    const int64_t n = std::min(count, range->end - first);
    std::memcpy(to, range->entry->bytes.data() + (first - range->begin) * size,
                static_cast<size_t>(n * size));
    to += n * size;
    first += n;
    count -= n;
    ++range;
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
  const Tensor part = Tensor::Empty(parameter.layout().PartShape(shape), from.dtype);
  auto* to = static_cast<std::byte*>(part.raw_data());
  const auto copy = [&](int64_t i, int64_t first, int64_t count) {
    Copy(from, first, count, to + i * SizeOf(from.dtype));
  };
  parameter.layout().ForEachRun(shape, 0, part.numel(), copy);
  return part;
}

}  // namespace lockstep::models
