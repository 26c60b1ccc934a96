#include "models/gpt/hf/bitsandbytes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/gpt/gguf/gguf_file.h"

namespace lockstep::models {
namespace {

constexpr char kState[] = ".quant_state.bitsandbytes__";

[[noreturn]] void Fail(const SafetensorsEntry& entry, const std::string& what) {
  throw InputError(StrCat(*entry.source, ": '", entry.name, "' ", what));
}

// One of the tensors that describe a matrix.
const SafetensorsEntry& Beside(const FindEntry& find, const SafetensorsEntry& matrix,
                               const std::string& name, const char* suffix) {
  const SafetensorsEntry* entry = find(name + suffix);
  if (entry == nullptr) {
    Fail(matrix, StrCat("has 4 bits a weight, but '", name, suffix, "' is missing"));
  }
  return *entry;
}

// Copies an entry's bytes, of this type and number of elements.
void CopyBytes(const SafetensorsEntry& entry, DType dtype, int64_t count, std::byte* to) {
  if (entry.dtype_name != (dtype == DType::kF32 ? "F32" : "U8") ||
      std::ssize(entry.bytes) != count * SizeOf(dtype)) {
    Fail(entry, StrCat("must have ", count, " elements of ", dtype, ", and has ",
                       entry.bytes.size(), " bytes of ", entry.dtype_name));
  }
  std::ranges::copy(entry.bytes, to);
  if (dtype != DType::kF32) return;
  for (int64_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, to + i * SizeOf(dtype), sizeof(value));
    if (!std::isfinite(value)) Fail(entry, StrCat("has ", value, " as element ", i));
  }
}

void CheckCode(const SafetensorsEntry& entry) {
  std::array<float, 16> code{};
  CopyBytes(entry, DType::kF32, std::ssize(code), reinterpret_cast<std::byte*>(code.data()));
  if (code != kNf4Code) Fail(entry, "does not have the values of nf4");
}

void CheckShape(const Fields& f, const Shape& shape) {
  const Json& sizes = f.Array("shape");
  if (sizes.size() == 2 && sizes[0] == shape[0] && sizes[1] == shape[1]) return;
  f.Fail("shape", StrCat("is ", sizes.dump(), ", but this model needs ", shape,
                         ": the model options differ from those of the file"));
}

// Scales of 8 bits, and what they mean.
void CopyNested(const FindEntry& find, const SafetensorsEntry& weight, const std::string& name,
                const Fields& f, const Nf4Matrix& m) {
  f.Expect("nested_blocksize", kNf4Group);
  f.Expect("nested_dtype", "float32");
  const Nf4Matrix::Layout l = m.layout();
  auto* const data = static_cast<std::byte*>(m.data.raw_data());
  CopyBytes(Beside(find, weight, name, ".nested_quant_map"), DType::kF32, 256, data + l.map);
  CopyBytes(Beside(find, weight, name, ".nested_absmax"), DType::kF32, l.groups,
            data + l.group_scales);
  CopyBytes(Beside(find, weight, name, ".absmax"), DType::kU8, l.blocks, data + l.scales);
  if (!f.Has("nested_offset")) f.Fail("nested_offset", "is missing");
  const auto offset = static_cast<float>(f.Number("nested_offset", 0));
  if (!std::isfinite(offset)) f.Fail("nested_offset", "is too large");
  std::memcpy(data + l.offset, &offset, sizeof(offset));
}

}  // namespace

std::optional<Nf4Matrix> ReadBitsAndBytes(const FindEntry& find, const std::string& name,
                                          const Shape& shape) {
  const SafetensorsEntry* const weight = find(name);
  if (weight == nullptr) return {};
  const SafetensorsEntry* const state = find(StrCat(name, kState, "nf4"));
  if (state == nullptr) {
    if (const SafetensorsEntry* fp4 = find(StrCat(name, kState, "fp4"))) {
      Fail(*fp4, "says that the weight is fp4; of 4-bit weights only nf4 is supported");
    }
    if (weight->dtype_name == "U8" || weight->dtype_name == "I8") {
      Fail(*weight, StrCat("has integers, and no '", name, kState,
                           "nf4' says what they mean: of quantised weights only bitsandbytes' nf4 "
                           "is supported"));
    }
    return {};
  }
  const std::string source = StrCat(*state->source, ": '", state->name, "'");
  const std::string text(reinterpret_cast<const char*>(state->bytes.data()), state->bytes.size());
  const Json j = ParseJson(text, source);
  if (!j.is_object()) Fail(*state, "is not a JSON object");
  const Fields f{j, source};
  f.Expect("quant_type", "nf4");
  f.Expect("blocksize", kNf4Block);
  CheckShape(f, shape);
  CheckCode(Beside(find, *weight, name, ".quant_map"));
  const bool nested = find(name + ".nested_absmax") != nullptr;
  Nf4Matrix m = Nf4Matrix::Empty(shape, nested);
  const Nf4Matrix::Layout l = m.layout();
  auto* const data = static_cast<std::byte*>(m.data.raw_data());
  std::fill_n(data, l.codes, std::byte{0});  // what aligns the codes
  CopyBytes(*weight, DType::kU8, (shape.numel() + 1) / 2, data + l.codes);
  if (nested) {
    CopyNested(find, *weight, name, f, m);
  } else {
    CopyBytes(Beside(find, *weight, name, ".absmax"), DType::kF32, l.blocks, data + l.scales);
  }
  return m;
}

std::string BaseIn(const std::string& folder) {
  if (GgufFile::Is(folder)) return "model";
  const std::string file = JoinPath(folder, "config.json");
  const Json j = ParseJson(ReadFile(file), file);
  const Fields f{j, file};
  if (!f.Has("quantization_config")) return "model";
  CheckQuantizationConfig(f);
  const Fields q = f.Object("quantization_config");
  return q.Bool("bnb_4bit_use_double_quant", false) ? "nf4" : "nf4_single";
}

void CheckQuantizationConfig(const Fields& f) {
  if (!f.Has("quantization_config")) return;
  const Fields q = f.Object("quantization_config");
  const std::string method = q.Text("quant_method", "");
  if (method != "bitsandbytes") {
    f.Fail(
        "quantization_config",
        StrCat("has the quant_method \"", method,
               "\"; of quantised weights only those of \"bitsandbytes\" in nf4 are supported: use "
               "the folder of the original weights"));
  }
  if (!q.Bool("load_in_4bit", false) || q.Text("bnb_4bit_quant_type", "fp4") != "nf4") {
    f.Fail(
        "quantization_config",
        "must have \"load_in_4bit\": true and \"bnb_4bit_quant_type\": \"nf4\": other weights of "
        "bitsandbytes are not supported");
  }
}

}  // namespace lockstep::models
