// Tensors whose elements are split across several files.
//
// A checkpoint that n ranks wrote together has, beside an index, a safetensors file of each rank's
// weights and one of its optimizer state:
//
//   parts.json                                 {"format": 2, "parts": 4, "model": {"wte.weight":
//                                              {"dtype": "F32", "shape": [50257, 768]}, ...},
//                                              "optimizer": {...}}
//   model.part-00000-of-00004.safetensors      "wte.weight[0:9649344]", ...
//   optimizer.part-00000-of-00004.safetensors  "wte.weight.exp_avg[0:9649344]", ...
//
// An entry "name[begin:end]" is one-dimensional: these elements, in row-major order, of the tensor
// that the index describes. For a matrix whose columns are cut it is "name[begin:end:run:stride]":
// from begin on, `run` elements every `stride`, up to end. Names are those of Gpt's parameters,
// whatever the ranks were, so any other ranks read the ranges that they need.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "core/io/safetensors_writer.h"
#include "core/parameter.h"

namespace lockstep::models {

inline constexpr char kPartsIndex[] = "parts.json";

// "model.part-00000-of-00004.safetensors"
std::string PartFile(const std::string& kind, int64_t part, int64_t parts);

// This rank's index among the ranks that hold the same elements; each of them writes one share.
struct PartCopy {
  int64_t index = 0, count = 1;
};

// What the index says about a tensor.
struct PartTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};
// The index: tensors by kind.
std::string PartsIndex(int64_t parts,
                       const std::map<std::string, std::vector<PartTensor>>& tensors);

// Adds this rank's share of a tensor that is cut like the parameter; `part` is what the rank holds
// of it. `keep` makes the tensor that will be written.
void AddPart(const std::string& name, const Parameter& parameter, const Tensor& part, PartCopy copy,
             const std::function<Tensor(const Tensor&)>& keep, std::vector<SafetensorsItem>* items);
// The tensor whose part an item is that AddPart has added.
std::string TensorOfItem(const std::string& item);
// Copies the elements of such an item to where they belong in the whole tensor. Both are contiguous
// and on the CPU. Throws InputError if they do not fit.
void PutItem(const std::string& item, const Tensor& part, const Tensor& whole);

// Reads from mapped files, and only what is needed. Copies share the mappings.
class TensorParts {
 public:
  // Whether the folder has an index.
  static bool Exist(const std::string& folder);
  // The tensors of a kind in all of a folder's parts; without an index, those of
  // "kind.safetensors". InputError if elements are missing, in two parts, or of the wrong dtype;
  // IoError for missing files.
  static TensorParts Open(const std::string& folder, const std::string& kind);

  std::vector<std::string> names() const;
  bool Has(const std::string& name) const { return tensors_.contains(name); }
  // InputErrors if there is no such tensor.
  DType dtype(const std::string& name) const { return Get(name).dtype; }
  // All of it, on the CPU.
  Tensor Read(const std::string& name) const;
  // This rank's part of a tensor that is shaped and cut like the parameter, on the CPU. Do not
  // write to it: if it lies in one piece in a file, it is the mapped file's memory. InputError if
  // it is shaped differently.
  Tensor ReadPart(const std::string& name, const Parameter& parameter) const;

 private:
  // `runs` runs of `run` elements, `stride` apart.
  struct Range {
    int64_t begin = 0, run = 0, stride = 0, runs = 1;
    const SafetensorsEntry* entry = nullptr;

    // The run with the element, or -1.
    int64_t RunOf(int64_t element) const {
      const int64_t at = element - begin;
      return at >= 0 && at / stride < runs && at % stride < run ? at / stride : -1;
    }
  };
  struct Whole {
    DType dtype = DType::kF32;
    Shape shape;
    std::vector<Range> ranges;  // together, each element once
  };

  void ReadIndex(const std::string& folder, const std::string& kind);
  void AddEntry(const SafetensorsEntry& entry);
  void CheckRanges();
  const Whole& Get(const std::string& name) const;
  // Where element `first` is, and how many of the `most` elements from it on follow there.
  static std::span<const std::byte> PieceAt(const Whole& from, int64_t first, int64_t most);
  static void Copy(const Whole& from, int64_t first, int64_t count, std::byte* to);

  std::string source_;
  // Shared with the tensors that are their memory.
  std::shared_ptr<std::vector<SafetensorsFile>> files_ =
      std::make_shared<std::vector<SafetensorsFile>>();
  std::map<std::string, Whole> tensors_;
};

}  // namespace lockstep::models
