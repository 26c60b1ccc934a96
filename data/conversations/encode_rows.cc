#include "data/conversations/encode_rows.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/thread_pool.h"
#include "data/conversations/conversation.h"
#include "data/permutation.h"
#include "data/text/text_files.h"

namespace lockstep::data {

RowSplit SplitRows(int64_t rows, double val_fraction) {
  LS_CHECK(rows >= 0 && val_fraction >= 0 && val_fraction < 1, "cannot hold out ", val_fraction,
           " of ", rows, " rows: expected 0 <= val_fraction < 1");
  std::vector<bool> held_out(static_cast<size_t>(rows));
  if (val_fraction > 0 && rows >= 2) {
    const int64_t wanted = std::llround(val_fraction * static_cast<double>(rows));
    const Permutation permutation(/*seed=*/0, /*stream=*/0, rows);
    for (int64_t i = 0; i < std::clamp<int64_t>(wanted, 1, rows - 1); ++i) {
      held_out[static_cast<size_t>(permutation(i))] = true;
    }
  }
  RowSplit split;
  for (int64_t row = 0; row < rows; ++row) {
    (held_out[static_cast<size_t>(row)] ? split.val : split.train).push_back(row);
  }
  return split;
}

namespace {

// Lines that are encoded at a time, by all threads.
constexpr size_t kLinesAtOnce = 512, kBytesAtOnce = size_t{16} << 20;

struct Line {
  std::string text, place;
};

}  // namespace

int64_t EncodeRows(const std::string& path,
                   const std::function<EncodedRow(const OrderedJson&, const std::string&)>& encode,
                   const std::function<void(EncodedRow, const std::string&)>& append) {
  ConversationReader reader(ListTextFiles(std::vector{path}));
  std::vector<Line> lines;
  const auto flush = [&] {
    std::vector<EncodedRow> encoded(lines.size());
    std::vector<std::exception_ptr> errors(lines.size());
    ParallelFor(std::ssize(lines), 4, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        try {
          encoded[i] = encode(ParseRow(lines[i].text, lines[i].place), lines[i].place);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      }
    });
    for (size_t i = 0; i < lines.size(); ++i) {
      if (errors[i]) std::rethrow_exception(errors[i]);
      append(std::move(encoded[i]), lines[i].place);
    }
    lines.clear();
  };
  size_t bytes = 0;
  for (Line line; reader.NextLine(&line.text, &line.place);) {
    bytes += line.text.size();
    lines.push_back(std::move(line));
    if (lines.size() < kLinesAtOnce && bytes < kBytesAtOnce) continue;
    flush();
    bytes = 0;
  }
  flush();
  return reader.bad_utf8();
}

std::shared_ptr<const Tokenizer> TokenizerForChat(const DatasetOptions& options) {
  if (options.loaded_tokenizer) return options.loaded_tokenizer;
  if (!options.tokenizer.empty() && options.tokenizer != "char") {
    return MakeTokenizer(options.tokenizer, "");
  }
  const std::string why = options.no_tokenizer.empty() ? "" : StrCat(options.no_tokenizer, "; ");
  throw InputError(StrCat(why, options.path,
                          ": conversations need a tokenizer whose special tokens ",
                          "the chat template writes: start from a model's folder (--init_from=), ",
                          "or name a tokenizer's with --data.tokenizer="));
}

}  // namespace lockstep::data
