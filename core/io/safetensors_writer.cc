#include "core/io/safetensors_writer.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep {
namespace {

constexpr size_t kMaxHeaderBytes = 100'000'000;

// In the order of the reference implementation's enum, by which it sorts: narrow before wide.
constexpr std::pair<DType, std::string_view> kNames[] = {
    {DType::kBool, "BOOL"},      {DType::kU8, "U8"},   {DType::kF8E5M2, "F8_E5M2"},
    {DType::kF8E4M3, "F8_E4M3"}, {DType::kU16, "U16"}, {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},      {DType::kI32, "I32"}, {DType::kF32, "F32"},
    {DType::kF64, "F64"},        {DType::kI64, "I64"},
};
static_assert(std::size(kNames) == kNumDTypes);

size_t Rank(DType dtype) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i].first == dtype) return i;
  }
  LS_INVARIANT(false, "a dtype without a safetensors name");
}

std::string JsonString(std::string_view text) {
  const std::string json = Json(text).dump();
  LS_CHECK(Json::parse(json) == text, "safetensors: ", Quoted(text), " is not valid UTF-8");
  return json;
}

int64_t ByteCount(const SafetensorsItem& item) {
  int64_t bytes = SizeOf(item.dtype);
  for (const int64_t size : item.shape) {
    LS_CHECK(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), "safetensors: tensor ",
             Quoted(item.name), " has a shape with a negative size or too many elements");
  }
  return bytes;
}

void AppendTensor(const SafetensorsItem& item, int64_t begin, int64_t end, std::string* json) {
  *json += StrCat(json->size() > 1 ? "," : "", JsonString(item.name), ":{\"dtype\":\"",
                  SafetensorsName(item.dtype), "\",\"shape\":[");
  for (size_t i = 0; i < item.shape.size(); ++i) *json += StrCat(i > 0 ? "," : "", item.shape[i]);
  *json += StrCat("],\"data_offsets\":[", begin, ",", end, "]}");
}

}  // namespace

std::string_view SafetensorsName(DType dtype) { return kNames[Rank(dtype)].second; }

SafetensorsItem SafetensorsItem::Of(std::string name, const Tensor& tensor) {
  LS_CHECK(tensor.defined(), "safetensors: tensor ", Quoted(name), " is undefined");
  return Of(std::move(name), tensor.dtype(), tensor.shape(), [tensor] { return tensor; });
}

SafetensorsItem SafetensorsItem::Of(std::string name, DType dtype, const Shape& shape,
                                    std::function<Tensor()> make) {
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = {shape.begin(), shape.end()},
          .bytes = {},
          .produce = [make = std::move(make)] { return make().Detach().To(kCpu).Contiguous(); }};
}

std::string SafetensorsHeader(std::span<const SafetensorsItem> items,
                              const std::map<std::string, std::string>& metadata,
                              std::vector<size_t>* order) {
  order->resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) (*order)[i] = i;
  std::sort(order->begin(), order->end(), [&](size_t a, size_t b) {
    const size_t rank_a = Rank(items[a].dtype), rank_b = Rank(items[b].dtype);
    return std::tie(rank_b, items[a].name) < std::tie(rank_a, items[b].name);
  });

  std::map<std::string, std::string> all_metadata = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) all_metadata[key] = value;
  std::string json = "{\"__metadata__\":{";
  for (const auto& [key, value] : all_metadata) {
    json += StrCat(json.back() == '{' ? "" : ",", JsonString(key), ":", JsonString(value));
  }
  json += "}";

  std::vector<std::string_view> names;
  int64_t begin = 0;
  for (const size_t i : *order) {
    const SafetensorsItem& item = items[i];
    LS_CHECK(item.name != "__metadata__", "safetensors: a tensor must not be named __metadata__");
    names.push_back(item.name);
    int64_t end = 0;
    LS_CHECK(!__builtin_add_overflow(begin, ByteCount(item), &end),
             "safetensors: the tensors take more than 2^63 bytes");
    AppendTensor(item, begin, end, &json);
    begin = end;
  }
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  LS_CHECK(twin == names.end(), "safetensors: two tensors are named ", Quoted(*twin));

  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  LS_CHECK(json.size() <= kMaxHeaderBytes, "safetensors: names, shapes and metadata take ",
           json.size(), " bytes, but the format allows at most ", kMaxHeaderBytes);
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i));
  return length + json;
}

void WriteSafetensors(FileWriter& out, std::span<const SafetensorsItem> items,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<size_t> order;
  const std::string header = SafetensorsHeader(items, metadata, &order);
  int64_t total = static_cast<int64_t>(header.size());
  for (const SafetensorsItem& item : items) total += ByteCount(item);
  out.ExpectBytes(out.bytes() + total);
  out.Write(header);
  for (const size_t i : order) {
    const SafetensorsItem& item = items[i];
    const Tensor made = item.produce ? item.produce() : Tensor();
    const std::span<const std::byte> bytes =
        item.produce ? std::span(static_cast<const std::byte*>(made.raw_data()),
                                 static_cast<size_t>(made.bytes()))
                     : item.bytes;
    LS_CHECK(static_cast<int64_t>(bytes.size()) == ByteCount(item), "safetensors: tensor ",
             Quoted(item.name), " has ", bytes.size(), " bytes, but its dtype and shape need ",
             ByteCount(item));
    out.Write(bytes);
  }
}

}  // namespace lockstep
