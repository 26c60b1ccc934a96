#include "data/mixture_dataset.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "data/dataset_parts.h"
#include "data/mixture.h"
#include "data/token_shards.h"
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

// Returns f(), whose errors name the option.
template <class F>
auto Named(const char* option, const F& f) {
  try {
    return f();
  } catch (const InputError& error) {
    throw InputError(StrCat(option, ": ", error.what()));
  }
}

// Makes all->val of all->val_parts.
void JoinValidation(bool masked, int64_t block_size, Dataset* all) {
  Sources parts;
  for (const ValidationPart& part : all->val_parts) parts.push_back(part.tokens);
  if (parts.empty()) return;
  if (masked) {
    all->val = std::make_shared<WindowAligned>(std::move(parts), block_size);
  } else {
    all->val = std::make_shared<TokenConcatenation>(std::move(parts));
  }
}

// The files that OpenValidation is given.
std::vector<std::string> FilesOf(const std::string& paths) {
  std::vector<std::string> files;
  for (size_t begin = 0; begin <= paths.size();) {
    const size_t end = std::min(paths.find(',', begin), paths.size());
    for (std::string& path : ExpandPattern(paths.substr(begin, end - begin))) {
      if (IsDirectory(path)) {
        throw InputError(StrCat(path, " is a folder: name the files in it, as in ",
                                "--data.val_path='", JoinPath(path, "*.bin"), "'"));
      }
      if (std::ranges::find(files, path) != files.end()) {
        throw InputError(StrCat(path, " is there twice"));
      }
      files.push_back(std::move(path));
    }
    begin = end + 1;
  }
  return files;
}

// For a data set whose files tell by their names that some are for validation: says how to name
// only the others, where one pattern does.
[[noreturn]] void RefuseOthers(const DatasetOptions& options, const Dataset& dataset) {
  std::vector<std::string> paths, train;
  for (const FileContent& file : dataset.files) {
    if (file.path.ends_with(".bin")) paths.push_back(file.path);
  }
  const std::vector<Split> splits = SplitsOf(paths);
  std::string held_out = dataset.name;
  for (size_t i = 0; i < paths.size(); ++i) {
    splits[i] == Split::kVal ? void(held_out = paths[i]) : train.push_back(paths[i]);
  }
  std::ranges::sort(train);
  std::string pattern = train.empty() ? "" : train[0];
  if (train.size() > 1) {
    const auto [end, other] = std::ranges::mismatch(train.front(), train.back());
    pattern = std::string(train.front().begin(), end) + "*.bin";
  }
  const bool one_does = options.mix.empty() && !train.empty() && ExpandPattern(pattern) == train;
  throw InputError(
      StrCat("data.val_path: ", dataset.name, " has files for validation, by their names (",
             held_out, "): leave data.val_path out, or name only files to train on",
             one_does ? StrCat(", --data.path='", pattern, "'") : " in data.path or data.mix"));
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
      parts[i] = Named("data.mix", [&] { return open(source); });
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
  Sources train;
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
    if (part.val) all.val_parts.push_back({item.path, part.val});
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
  JoinValidation(all.train->has_loss_mask(), options.block_size, &all);
  return all;
}

void OpenValidation(const std::string& paths, const DatasetOptions& options,
                    const std::function<Dataset(const DatasetOptions& file)>& open,
                    Dataset* dataset) {
  if (dataset->val != nullptr) RefuseOthers(options, *dataset);
  DatasetOptions file = options;
  file.mix.clear();
  file.val_fraction = 0;
  if (dataset->tokenizer != nullptr) file.loaded_tokenizer = dataset->tokenizer;
  if (dataset->tokenizer == nullptr && file.no_tokenizer.empty()) {
    file.no_tokenizer = StrCat(dataset->name, ": its tokenizer is not known");
  }
  Sha256 hash;
  bool masked = dataset->train->has_loss_mask();
  for (const std::string& path : Named("data.val_path", [&] { return FilesOf(paths); })) {
    file.path = path;
    Dataset part = Named("data.val_path", [&] { return open(file); });
    hash.Update(std::as_bytes(std::span(part.fingerprint)));
    masked |= part.train->has_loss_mask();
    dataset->vocab_size = std::max(dataset->vocab_size, part.vocab_size);
    dataset->files.insert(dataset->files.end(), part.files.begin(), part.files.end());
    dataset->val_parts.push_back({path, std::move(part.train)});
  }
  dataset->val_fingerprint = hash.HexDigest();
  dataset->val_has_files = true;
  JoinValidation(masked, options.block_size, dataset);
}

}  // namespace lockstep::data
