#include "data/mixture_dataset.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/sha256.h"
#include "data/dataset_parts.h"
#include "data/mixture.h"
#include "data/tokenizer/tokenizer_difference.h"

namespace lockstep::data {
namespace {

using Sources = std::vector<std::shared_ptr<const TokenSource>>;

// Sources one after the other, each of which begins a window. A window's last target, where it
// would be the first token of the next source, and what fills windows up are not learnt.
class WindowAligned : public TokenSource {
 public:
  WindowAligned(Sources parts, int64_t block_size) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      begins_.push_back(size_);
      size_ += (part->size() - 1 + block_size - 1) / block_size * block_size;
    }
    ++size_;  // the last window's last target
  }

  int64_t size() const override { return size_; }
  bool has_loss_mask() const override { return true; }
  bool has_documents() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part->has_documents(); });
  }

 private:
  // Calls f(part, offset in it, out) for what there is of parts in the range, and fills the rest
  // with 0.
  template <class F>
  void ForParts(int64_t offset, std::span<int32_t> out, const F& f) const {
    std::ranges::fill(out, 0);
    const int64_t end = offset + std::ssize(out);
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int64_t next = i + 1 < parts_.size() ? begins_[i + 1] : size_;
      const int64_t from = std::max(offset, begins_[i]);
      const int64_t to = std::min({end, next, begins_[i] + parts_[i]->size()});
      if (from >= to) continue;
      f(*parts_[i], from - begins_[i],
        out.subspan(static_cast<size_t>(from - offset), static_cast<size_t>(to - from)));
    }
  }

  void DoRead(int64_t offset, std::span<int32_t> out) const override {
    ForParts(offset, out,
             [](const TokenSource& part, int64_t at, std::span<int32_t> to) { part.Read(at, to); });
  }
  void DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const override {
    ForParts(offset, out, [](const TokenSource& part, int64_t at, std::span<int32_t> to) {
      part.ReadDocumentStarts(at, to);
    });
  }
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override {
    ForParts(offset, out, [](const TokenSource& part, int64_t at, std::span<int32_t> to) {
      part.ReadLossMask(at, to);
      if (at == 0) to[0] = 0;
    });
  }

  const Sources parts_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

Dataset OpenSource(const DatasetOptions& source,
                   const std::function<Dataset(const DatasetOptions& source)>& open) {
  try {
    return open(source);
  } catch (const InputError& error) {
    throw InputError(StrCat("data.mix: ", error.what()));
  }
}

// Token files first: unless the options name a tokenizer, that of theirs is that of texts, too.
std::vector<Dataset> OpenSources(const DatasetOptions& options,
                                 const std::vector<MixtureItem>& items,
                                 const std::function<Dataset(const DatasetOptions& source)>& open) {
  std::vector<Dataset> parts(items.size());
  DatasetOptions source = options;
  source.mix.clear();
  for (const bool tokens : {true, false}) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (HoldsTokenFiles(items[i].path) != tokens) continue;
      source.path = items[i].path;
      parts[i] = OpenSource(source, open);
      const Tokenizer* tokenizer = parts[i].tokenizer.get();
      if (!tokens && !source.loaded_tokenizer && tokenizer && tokenizer->name() == "char") {
        throw InputError(StrCat("data.mix: ", items[i].path, " would have a vocabulary of its own ",
                                "(data.tokenizer=char); name one for all sources, such as "
                                "--data.tokenizer=byte"));
      }
    }
    const auto known =
        std::ranges::find_if(parts, [](const Dataset& part) { return part.tokenizer != nullptr; });
    if (options.tokenizer.empty() && !source.loaded_tokenizer && known != parts.end()) {
      source.loaded_tokenizer = known->tokenizer;
    }
  }
  return parts;
}

}  // namespace

Dataset OpenMixture(const DatasetOptions& options,
                    const std::function<Dataset(const DatasetOptions& source)>& open) {
  Dataset all;
  all.name = StrCat("the mixture ", options.mix);
  all.val_has_files = true;
  Sources train, val;
  Sha256 hash, older_hash;
  const std::vector<MixtureItem> items = ParseMixture(options.mix);
  const std::vector<Dataset> parts = OpenSources(options, items, open);
  for (size_t i = 0; i < items.size(); ++i) {
    const MixtureItem& item = items[i];
    const Dataset& part = parts[i];
    if (all.tokenizer && part.tokenizer) {
      if (const auto other = DifferenceOf(*part.tokenizer, *all.tokenizer); !other.empty()) {
        throw InputError(StrCat("data.mix: ", item.path, " has another tokenizer than ",
                                all.mixture_paths.front(), ": ", other,
                                "; prepare both with the same one"));
      }
    }
    CheckSizes(part, options);
    if (all.tokenizer == nullptr) all.tokenizer = part.tokenizer;
    all.vocab_size = std::max(all.vocab_size, part.vocab_size);
    if (all.note.empty()) all.note = part.note;
    all.mixture.push_back({part.train->size(), item.weight});
    all.mixture_paths.push_back(item.path);
    train.push_back(part.train);
    if (part.val) val.push_back(part.val);
    all.val_has_files = all.val_has_files && part.val_has_files;
    const std::string& older = part.files.empty() ? part.fingerprint : part.older_fingerprint;
    for (auto& [sum, of] : {std::pair(&hash, &part.fingerprint), {&older_hash, &older}}) {
      const std::string identity = StrCat(*of, ":", item.weight, "\n");
      sum->Update(std::as_bytes(std::span(identity)));
    }
    all.files.insert(all.files.end(), part.files.begin(), part.files.end());
  }
  all.fingerprint = hash.HexDigest();
  all.older_fingerprint = older_hash.HexDigest();
  all.train = std::make_shared<TokenConcatenation>(std::move(train));
  if (val.empty()) return all;
  if (all.train->has_loss_mask()) {
    all.val = std::make_shared<WindowAligned>(std::move(val), options.block_size);
  } else {
    all.val = std::make_shared<TokenConcatenation>(std::move(val));
  }
  return all;
}

}  // namespace lockstep::data
