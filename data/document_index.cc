#include "data/document_index.h"

#include "core/error.h"

namespace lockstep::data {

std::string IndexPathOf(const std::string& token_file) {
  const bool suffixed = token_file.ends_with(".bin");
  return token_file.substr(0, token_file.size() - (suffixed ? 4 : 0)) + ".idx";
}

DocumentIndex::DocumentIndex(std::string path, int64_t tokens, std::span<const FileContent> known)
    : file_(std::move(path)), content_(StampOf(file_.path(), StrCat("of ", tokens))) {
  const std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() % sizeof(uint64_t) != 0) {
    throw InputError(
        StrCat(file_.path(), ": ", bytes.size(), " bytes are not a whole number of ",
               "uint64 positions: the file is truncated, or not an index of documents"));
  }
  starts_ = {reinterpret_cast<const uint64_t*>(bytes.data()), bytes.size() / sizeof(uint64_t)};
  if (FindContent(known, bytes, nullptr, &content_)) return;
  for (size_t i = 0; i < starts_.size(); ++i) {
    if (starts_[i] >= static_cast<uint64_t>(tokens) || (i > 0 && starts_[i] <= starts_[i - 1])) {
      throw InputError(StrCat(file_.path(), ": document ", i, " begins at token ", starts_[i],
                              i > 0 ? StrCat(", the one before at ", starts_[i - 1]) : "",
                              ", and the token file has ", tokens,
                              " tokens: this index is damaged, or belongs to another file"));
    }
  }
}

}  // namespace lockstep::data
