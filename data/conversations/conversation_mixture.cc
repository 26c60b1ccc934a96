#include "data/conversations/conversation_mixture.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/error.h"
#include "data/mixture_dataset.h"

namespace lockstep::data {
namespace {

// A source as one document.
class OneDocument : public TokenSource {
 public:
  explicit OneDocument(std::shared_ptr<const TokenSource> source) : source_(std::move(source)) {}
  int64_t size() const override { return source_->size(); }

 private:
  std::span<const uint64_t> document_starts() const override { return kStarts; }
  void DoRead(int64_t offset, std::span<int32_t> out) const override { source_->Read(offset, out); }

  static constexpr std::array<uint64_t, 1> kStarts = {0};
  const std::shared_ptr<const TokenSource> source_;
};

void Add(const ConversationCounts& part, ConversationCounts* all) {
  all->conversations += part.conversations;
  all->too_long += part.too_long;
  all->not_learnt += part.not_learnt;
  all->empty += part.empty;
  all->rows += part.rows;
  all->tokens += part.tokens;
  all->learnt += part.learnt;
  all->most_tokens = std::max(all->most_tokens, part.most_tokens);
}

}  // namespace

Dataset OpenDocuments(const DatasetOptions& options) {
  Dataset dataset = OpenDataset(options);
  for (auto* stream : {&dataset.train, &dataset.val}) {
    if (*stream == nullptr || (*stream)->has_documents()) continue;
    *stream = std::make_shared<OneDocument>(*stream);
  }
  return dataset;
}

ConversationDataset OpenConversationMixture(
    const DatasetOptions& options, const ConversationOptions& conversation_options,
    const std::function<bool(const std::string& path)>& is_conversations) {
  ConversationCounts counts;
  std::shared_ptr<const Tokenizer> with_template;
  std::string notes;
  Dataset all = OpenMixture(options, [&](const DatasetOptions& source) {
    if (is_conversations(source.path)) {
      ConversationDataset part = OpenConversations(source, conversation_options);
      Add(part.counts, &counts);
      with_template = part.dataset.tokenizer;
      notes += (notes.empty() ? "" : "\n") + part.dataset.note;
      return std::move(part.dataset);
    }
    return OpenDocuments(source);
  });
  if (with_template != nullptr) {
    all.tokenizer = std::move(with_template);
    all.note = std::move(notes);
  }
  return {std::move(all), counts};
}

std::shared_ptr<const TokenSource> ConversationRows(const Dataset& dataset) {
  int64_t begin = 0;
  for (const MixtureStream& stream : dataset.mixture) {
    // Only the first token of rows is not learnt.
    if (dataset.train->CountLearnt(begin, 1) == 0) {
      return std::make_shared<TokenSlice>(dataset.train, begin, begin + stream.num_tokens);
    }
    begin += stream.num_tokens;
  }
  return dataset.train;
}

}  // namespace lockstep::data
