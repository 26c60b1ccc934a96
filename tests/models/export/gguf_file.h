// A reader of GGUF files, independent of their writer: from the format's specification.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "core/io/file.h"

namespace lockstep::test {

struct GgufFile {
  using Value = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>,
                             std::vector<float>, std::vector<int32_t>>;
  struct Tensor {
    std::vector<uint64_t> sizes;  // fastest first
    uint32_t type = 0;
    uint64_t offset = 0;  // from the start of the file
    std::string bytes;

    // As numbers.
    std::vector<float> Floats() const {
      std::vector<float> out;
      const auto each = [&]<class T>(T) {
        for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
          T value;
          std::memcpy(&value, &bytes[i], sizeof value);
          out.push_back(static_cast<float>(value));
        }
      };
      if (type == 0) each(float{});
      if (type == 1) each(F16{});
      if (type == 30) each(BF16{});
      if (type == 8) {
        for (size_t i = 0; i < bytes.size(); i += 34) {
          F16 scale;
          std::memcpy(&scale, &bytes[i], sizeof scale);
          for (size_t k = 0; k < 32; ++k) {
            out.push_back(static_cast<float>(scale) *
                          static_cast<float>(static_cast<int8_t>(bytes[i + 2 + k])));
          }
        }
      }
      return out;
    }
  };

  std::map<std::string, Value> metadata;
  std::map<std::string, Tensor> tensors;

  explicit GgufFile(const std::string& path) : file_(ReadFile(path)) {
    Require(Take<uint32_t>() == 0x46554747 && Take<uint32_t>() == 3, "magic and version");
    const auto tensor_count = Take<uint64_t>(), pairs = Take<uint64_t>();
    for (uint64_t i = 0; i < pairs; ++i) {
      const std::string key = Text();
      Require(metadata.emplace(key, ReadValue(Take<uint32_t>())).second, key);
    }
    for (uint64_t i = 0; i < tensor_count; ++i) {
      const std::string name = Text();
      Tensor t;
      for (uint32_t n = Take<uint32_t>(); n > 0; --n) t.sizes.push_back(Take<uint64_t>());
      t.type = Take<uint32_t>();
      t.offset = Take<uint64_t>();
      Require(t.offset % 32 == 0 && tensors.emplace(name, t).second, name);
    }
    const uint64_t data = (at_ + 31) / 32 * 32;
    uint64_t end = data;
    for (auto& [name, t] : tensors) {
      uint64_t bytes = t.type == 0 ? 4 : t.type == 8 ? 34 : 2;
      for (const uint64_t size : t.sizes) bytes *= size;
      if (t.type == 8) bytes /= 32;
      t.offset += data;
      Require(t.offset + bytes <= file_.size(), name);
      t.bytes = file_.substr(t.offset, bytes);
      end = std::max(end, (t.offset + bytes + 31) / 32 * 32);
    }
    Require(end == file_.size(), "the end");
  }

  template <class T>
  T Get(const std::string& key) const {
    const auto it = metadata.find(key);
    Require(it != metadata.end() && std::holds_alternative<T>(it->second), key);
    return std::get<T>(it->second);
  }
  bool Has(const std::string& key) const { return metadata.contains(key); }

 private:
  static void Require(bool ok, const std::string& what) {
    if (!ok) throw std::runtime_error("GGUF: " + what);
  }
  template <class T>
  T Take() {
    Require(at_ + sizeof(T) <= file_.size(), "cut short");
    T value;
    std::memcpy(&value, &file_[at_], sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string Text() {
    const auto size = Take<uint64_t>();
    Require(size <= file_.size() - at_, "cut short");
    at_ += size;
    return file_.substr(at_ - size, size);
  }
  Value ReadValue(uint32_t type) {
    if (type == 4) return Take<uint32_t>();
    if (type == 6) return Take<float>();
    if (type == 7) return Take<uint8_t>() != 0;
    if (type == 8) return Text();
    Require(type == 9, "type of a value");
    const auto of = Take<uint32_t>();
    const auto count = Take<uint64_t>();
    const auto all = [&]<class T>(const auto& take, T values) {
      for (uint64_t i = 0; i < count; ++i) values.push_back(take());
      return values;
    };
    if (of == 8) return all([&] { return Text(); }, std::vector<std::string>());
    if (of == 6) return all([&] { return Take<float>(); }, std::vector<float>());
    Require(of == 5, "type of an array");
    return all([&] { return Take<int32_t>(); }, std::vector<int32_t>());
  }

  const std::string file_;
  uint64_t at_ = 0;
};

}  // namespace lockstep::test
