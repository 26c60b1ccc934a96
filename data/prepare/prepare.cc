#include "data/prepare/prepare.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/file_lock.h"
#include "core/io/sha256.h"
#include "core/thread_pool.h"
#include "data/prepare/ordered_workers.h"
#include "data/prepare/resume.h"
#include "data/prepare/shard_stream.h"
#include "data/text/text_files.h"
#include "data/text/text_parts.h"
#include "data/tokenizer/document_marks.h"

namespace lockstep::data {
namespace {

// Enough that a batch costs more than handing it over.
constexpr int64_t kBatchBytes = int64_t{1} << 18;
constexpr size_t kBatchDocuments = 4096;
// Beside four for each thread: work for the encoders while reader or writer wait for disk or a
// core. More would not be in the processor's caches any longer when their turn comes.
constexpr int64_t kBatchesInFlight = 8;

struct NumberedDocument {
  RawDocument raw;
  int64_t number = 0;
};

// How far the reader was when it had read a batch.
struct ReaderState {
  int64_t open_file = 0, bytes_of_open_file = 0;
  std::string sha256_of_open_file;   // of these bytes
  std::vector<SourceFile> finished;  // since the last batch
};

struct Batch {
  std::vector<NumberedDocument> documents;
  ReaderState reader;
};

struct EncodedBatch {
  std::vector<EncodedDocument> documents;
  std::vector<int32_t> tokens;  // of all documents
  ReaderState reader;
};

TokenFormat FormatOf(const PrepareOptions& options) {
  const int64_t vocab_size = options.tokenizer->vocab_size();
  if (!options.nanogpt) {
    return vocab_size <= 65536 ? TokenFormat::kLlmcGpt2 : TokenFormat::kLlmcLlama3;
  }
  if (vocab_size > 65536) {
    throw InputError(StrCat("nanoGPT's format has 16 bits per token, too few for the ", vocab_size,
                            " tokens of this tokenizer; use --format=llmc"));
  }
  return TokenFormat::kNanoGpt;
}

void CheckOptions(const PrepareOptions& options) {
  LS_CHECK(options.tokenizer != nullptr && !options.out_dir.empty() && !options.name.empty(),
           "Prepare needs a tokenizer, an out_dir and a name");
  LS_CHECK(options.val_fraction >= 0 && options.val_fraction < 1,
           "val_fraction=", options.val_fraction, ": expected 0 <= val_fraction < 1");
  LS_CHECK(options.shard_tokens >= 0 && options.shard_tokens <= INT32_MAX,
           "shard_tokens=", options.shard_tokens, ": expected 0 to ", INT32_MAX);
  if (options.name.find_first_of("/*?[") != std::string::npos || options.name.starts_with('.')) {
    throw InputError(StrCat("name=", options.name, ": expected the beginning of a file name"));
  }
  if (options.shard_tokens == 0 && (!options.nanogpt || options.val_shard)) {
    throw InputError(
        "shard_tokens=0, one file for all, is only for --format=nanogpt without "
        "val_shard; use another number, such as 100000000");
  }
}

// In which stream a document is: 0, or 1 for validation.
int StreamOf(const PrepareOptions& options, int64_t document) {
  if (options.val_shard) return 0;
  const double fraction = options.val_fraction;
  return std::floor(static_cast<double>(document + 1) * fraction) >
                 std::floor(static_cast<double>(document) * fraction)
             ? 1
             : 0;
}

std::pair<std::string, Split> ShardName(const PrepareOptions& options, int stream, int64_t number) {
  const bool val = options.val_shard ? number == 0 : stream == 1;
  const char* const split = val ? "val" : "train";
  char digits[32];
  std::snprintf(digits, sizeof(digits), "_%06lld", static_cast<long long>(number));
  return {StrCat(options.nanogpt ? "" : options.name + "_", split,
                 options.shard_tokens == 0 ? "" : digits, ".bin"),
          val ? Split::kVal : Split::kTrain};
}

std::string TextOfUnit(DocumentUnit unit) {
  return unit == DocumentUnit::kFile ? "file" : unit == DocumentUnit::kLine ? "line" : "paragraph";
}

SourceFile SourceOf(const std::string& path) {
  if (path == "-") return {path, 0, ""};
  struct stat status;
  if (stat(path.c_str(), &status) != 0) ThrowIoError("stat", path, errno);
  const timespec& time = status.st_mtim;
  return {path, status.st_size, "", int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec};
}

Manifest NewManifest(const PrepareOptions& options, const std::vector<std::string>& files,
                     const std::string& tokenizer_json) {
  Manifest manifest;
  manifest.options = {
      {"type", options.text.type},
      {"document", TextOfUnit(options.text.unit)},
      {"field", options.text.field},
      {"format", std::string(Name(FormatOf(options)))},
      {"name", options.name},
      {"shard_tokens", StrCat(options.shard_tokens)},
      {"val_fraction", options.val_shard ? "" : StrCat(options.val_fraction)},
      {"val_shard", options.val_shard ? "true" : "false"},
  };
  // Folders of earlier versions, which cut text in other places, are not gone on with.
  if (options.text.type != "jsonl" && options.text.unit != DocumentUnit::kFile) {
    manifest.options["line_ends"] = "\\n or \\r\\n";
  }
  // They repaired these, and dropped a byte-order mark.
  if (options.text.type != "jsonl" && options.text.any_bytes) {
    manifest.options["malformed_utf8"] = "as it is";
  }
  const DocumentMarks marks = MarksOf(*options.tokenizer, options.nanogpt);
  // Earlier versions put no such token before a document.
  if (!marks.before.empty() && marks.before.front() != options.tokenizer->end_of_text()) {
    manifest.options["begin_of_text"] = StrCat(marks.before.front());
  }
  manifest.tokenizer = options.tokenizer->name();
  manifest.origin = options.tokenizer_origin;
  manifest.tokenizer_sha256 = Sha256Of(tokenizer_json);
  manifest.vocab_size = options.tokenizer->vocab_size();
  manifest.end_of_text = options.tokenizer->end_of_text();
  for (const std::string& file : files) manifest.sources.push_back(SourceOf(file));
  manifest.next.resize(options.val_shard || options.val_fraction == 0 ? 1 : 2);
  return manifest;
}

void Encode(NumberedDocument document, const std::vector<std::string>& files,
            const PrepareOptions& options, const DocumentMarks& marks, EncodedBatch* batch) {
  const bool first = document.raw.first(), last = document.raw.last;
  EncodedDocument encoded{.at = document.raw.position, .document = document.number, .last = last};
  const DocumentText text = TextOf(std::move(document.raw), files, options.text);
  encoded.bytes = static_cast<int64_t>(text.text.size());
  encoded.bad_utf8 = text.bad_utf8;
  std::vector<int32_t>& tokens = batch->tokens;
  const size_t begin = tokens.size();
  if (first) tokens.insert(tokens.end(), marks.before.begin(), marks.before.end());
  const size_t text_begin = tokens.size();
  if (first) {
    options.tokenizer->EncodeTo(text.text, &tokens);
  } else {
    options.tokenizer->EncodeRestTo(text.text, &tokens);
  }
  if (tokens.size() == text_begin && first && last) {
    tokens.resize(begin);  // an empty document has no end, either
  } else if (last) {
    tokens.insert(tokens.end(), marks.after.begin(), marks.after.end());
  }
  encoded.tokens = static_cast<int64_t>(tokens.size() - begin);
  batch->documents.push_back(encoded);
}

int64_t BytesOf(std::span<const SourceFile> sources) {
  int64_t sum = 0;
  for (const SourceFile& source : sources) sum += source.bytes;
  return sum;
}

// Before they are made; that of sources of unknown size is not known then.
void CheckFileCount(const PrepareOptions& options, int64_t files) {
  constexpr int64_t kMost = 10'000, kSmall = 1'000'000;
  if (files <= kMost || options.shard_tokens >= kSmall || options.shard_tokens == 0) return;
  throw InputError(StrCat("shard_tokens=", options.shard_tokens, " makes ", files, " token files ",
                          "or more, and as many indexes: use more tokens per file, such as "
                          "--shard_tokens=100000000"));
}

// How many files there will be at least, by the size of the sources, of which a token seldom has
// more than 8 bytes.
int64_t FewestFiles(const PrepareOptions& options, const Manifest& manifest) {
  return BytesOf(manifest.sources) / 8 / std::max<int64_t>(1, options.shard_tokens);
}

// One run over the sources that are not finished.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const std::vector<std::string>& files,
              Manifest* manifest)
      : options_(options), files_(files), manifest_(*manifest) {
    for (size_t i = 0; i < manifest_.next.size(); ++i) {
      const auto stream = static_cast<int>(i);
      ShardStream::Options stream_options{
          .folder = options.out_dir,
          .format = FormatOf(options),
          .shard_tokens = options.shard_tokens,
          .name = [&options, stream](int64_t n) { return ShardName(options, stream, n); },
          .on_finished = [this](ShardInfo shard) { OnFinished(std::move(shard)); }};
      streams_.emplace_back(std::move(stream_options), ShardsOf(stream), manifest_.next[i]);
    }
  }

  void Run() {
    const ShardStart first = First();
    TextOptions text = options_.text;
    if (EncodesInParts(*options_.tokenizer)) text.piece_bytes = kBatchBytes;
    DocumentReader reader(files_, text, first.at);
    next_source_ = first.at.file;
    source_bytes_ = BytesOf(std::span(manifest_.sources).first(next_source_));
    Feed(&reader, first.document);
    const ShardStart end{reader.position(), number_};
    for (ShardStream& stream : streams_) stream.Finish(end);
    for (size_t i = 0; i < streams_.size(); ++i) AddEmpty(static_cast<int>(i));
  }

 private:
  int64_t ShardsOf(int stream) const {
    if (streams_count() == 1) return static_cast<int64_t>(manifest_.shards.size());
    const Split split = stream == 1 ? Split::kVal : Split::kTrain;
    return std::ranges::count(manifest_.shards, split, &ShardInfo::split);
  }
  size_t streams_count() const { return manifest_.next.size(); }

  // The first document that some stream still needs.
  ShardStart First() const {
    return *std::ranges::min_element(manifest_.next, {}, &ShardStart::document);
  }

  EncodedBatch EncodeAll(Batch batch) const {
    EncodedBatch encoded{.documents = {}, .tokens = {}, .reader = std::move(batch.reader)};
    encoded.documents.reserve(batch.documents.size());
    size_t bytes = 0;
    for (const NumberedDocument& document : batch.documents) bytes += document.raw.bytes.size();
    encoded.tokens.reserve(bytes / 2);
    for (NumberedDocument& document : batch.documents) {
      Encode(std::move(document), files_, options_, marks_, &encoded);
    }
    return encoded;
  }

  // This thread reads, others encode, and one writes, so that each may take as long as encoding a
  // batch takes all encoders together.
  void Feed(DocumentReader* reader, int64_t number) {
    const int threads = options_.threads > 0 ? options_.threads : NumThreads();
    OrderedWorkers<Batch, EncodedBatch> encoders(
        threads, [this](Batch batch) { return EncodeAll(std::move(batch)); });
    OrderedWorkers<EncodedBatch, void> writer(1, [this](EncodedBatch batch) { Write(batch); });
    const int64_t most_in_flight = (kBatchesInFlight + 4 * threads) * kBatchBytes;
    std::deque<int64_t> bytes_in_flight;
    int64_t in_flight = 0;
    const auto finish_oldest = [&] {
      while (encoders.size() > 0 && writer.size() < 2) writer.Push(encoders.Pop());
      writer.Pop();
      in_flight -= bytes_in_flight.front();
      bytes_in_flight.pop_front();
    };
    Batch batch;
    int64_t bytes = 0;
    size_t finished = 0;  // of the reader's files, those that batches have told of
    const auto push = [&] {
      // One large document at a time.
      while (!bytes_in_flight.empty() && in_flight + bytes > most_in_flight) finish_oldest();
      bytes_in_flight.push_back(bytes);
      in_flight += bytes;
      batch.reader = {reader->position().file,
                      reader->bytes_of_open_file(),
                      reader->sha256_of_open_file(),
                      {reader->finished().begin() + finished, reader->finished().end()}};
      finished = reader->finished().size();
      encoders.Push(std::exchange(batch, {}));
      bytes = 0;
    };
    bool last = true;
    for (NumberedDocument next; reader->Next(&next.raw); number += last) {
      last = next.raw.last;
      if (number < begin_[StreamOf(options_, number)].document) continue;
      next.number = number;
      // What a document occupies besides its text counts too.
      bytes += static_cast<int64_t>(next.raw.bytes.size() + sizeof(NumberedDocument));
      batch.documents.push_back(std::move(next));
      if (bytes >= kBatchBytes || batch.documents.size() >= kBatchDocuments) push();
    }
    number_ = number;
    push();
    while (!bytes_in_flight.empty()) finish_oldest();
  }

  void Write(const EncodedBatch& batch) {
    NoteSources(batch.reader);
    std::span<const int32_t> rest = batch.tokens;
    for (const EncodedDocument& document : batch.documents) {
      streams_[StreamOf(options_, document.document)].Add(document, rest.first(document.tokens));
      rest = rest.subspan(document.tokens);
    }
    if (options_.progress) options_.progress(Progress(batch.reader));
  }

  PrepareProgress Progress(const ReaderState& reader) const {
    PrepareProgress progress{.counts = manifest_.counts(),
                             .tokens = manifest_.tokens(),
                             .source_bytes = source_bytes_ + reader.bytes_of_open_file,
                             .all_source_bytes = all_source_bytes_};
    for (const ShardStream& stream : streams_) {
      progress.counts += stream.open_counts();
      progress.tokens += stream.open_tokens();
    }
    progress.new_tokens = progress.tokens - tokens_before_;
    return progress;
  }

  // Records which shards are there, so that a later call goes on behind them.
  void OnFinished(ShardInfo shard) {
    manifest_.shards.push_back(std::move(shard));
    for (size_t i = 0; i < streams_.size(); ++i) manifest_.next[i] = streams_[i].next();
    WriteFileAtomically(JoinPath(options_.out_dir, kManifestName), manifest_.ToJson());
  }

  // Adds what is known of the sources that have been read, to their ends or in part.
  void NoteSources(const ReaderState& reader) {
    for (const SourceFile& finished : reader.finished) {
      SourceFile& source = manifest_.sources[next_source_++];
      source.bytes = finished.bytes;
      source.sha256 = finished.sha256;
      source.read_bytes = 0;
      source.empty = finished.empty;
      source_bytes_ += source.bytes;
    }
    if (reader.bytes_of_open_file == 0) return;
    SourceFile& open = manifest_.sources[reader.open_file];
    // An earlier call may have read more of it.
    if (!open.sha256.empty() || open.read_bytes >= reader.bytes_of_open_file) return;
    open.read_bytes = reader.bytes_of_open_file;
    open.read_sha256 = reader.sha256_of_open_file;
  }

  // Empty documents at the end belong to the stream's last shard, or to the last one of all.
  void AddEmpty(int stream) {
    const auto is_its_own = [&](const ShardInfo& shard) {
      return streams_count() == 1 || (shard.split == Split::kVal) == (stream == 1);
    };
    if (manifest_.shards.empty()) return;
    auto shard = std::find_if(manifest_.shards.rbegin(), manifest_.shards.rend(), is_its_own);
    if (shard == manifest_.shards.rend()) shard = manifest_.shards.rbegin();
    shard->counts.empty += streams_[stream].open_counts().empty;
  }

  const PrepareOptions& options_;
  const std::vector<std::string>& files_;
  Manifest& manifest_;
  const DocumentMarks marks_ = MarksOf(*options_.tokenizer, options_.nanogpt);
  std::deque<ShardStream> streams_;
  const std::vector<ShardStart> begin_ = manifest_.next;  // a stream each
  int64_t number_ = 0;                                    // of documents, at the end
  const int64_t tokens_before_ = manifest_.tokens();
  const int64_t all_source_bytes_ = BytesOf(manifest_.sources);
  // The rest is the writer's, until it has ended.
  int64_t next_source_ = 0;   // that will be finished
  int64_t source_bytes_ = 0;  // of those before it
};

}  // namespace

PrepareResult Prepare(const PrepareOptions& given) {
  CheckOptions(given);
  PrepareOptions options = given;
  options.text.any_bytes = options.tokenizer->name() == "byte";
  const std::vector<std::string> files = ListTextFiles(options.paths);
  const std::string tokenizer_json = options.tokenizer->ToJson();
  PrepareResult result{.manifest = NewManifest(options, files, tokenizer_json)};
  Manifest& manifest = result.manifest;
  if (!HasManifest(options.out_dir)) CheckFileCount(options, FewestFiles(options, manifest));
  const OutFolder folder(options.out_dir);
  const FileLock lock(JoinPath(options.out_dir, ".lock"), "prepare\n",
                      std::chrono::milliseconds(0));
  if (lock.state() == FileLock::State::kBusy) {
    throw InputError(StrCat(options.out_dir, ": another process prepares data in this folder"));
  }
  const std::string path = JoinPath(options.out_dir, kManifestName);
  const bool begun = Resume(options.out_dir, &manifest);
  result.was_complete = manifest.complete();
  if (result.was_complete) {
    VerifyHashes(options.out_dir, manifest);
    return result;
  }
  try {
    if (!begun) {
      WriteFileAtomically(JoinPath(options.out_dir, "tokenizer.json"), tokenizer_json);
      WriteFileAtomically(path, manifest.ToJson());
    }
    Preparation(options, files, &manifest).Run();
  } catch (...) {
    if (manifest.shards.empty()) folder.TakeBack(manifest);
    throw;
  }
  if (std::ranges::find(manifest.shards, Split::kTrain, &ShardInfo::split) ==
      manifest.shards.end()) {
    folder.TakeBack(manifest);
    throw InputError(manifest.shards.empty()
                         ? "the sources have no text"
                         : "all tokens fit into the first shard, which is for validation; use a "
                           "smaller --shard_tokens, or --val_fraction instead of --val_shard");
  }
  manifest.next.clear();
  WriteFileAtomically(path, manifest.ToJson());
  return result;
}

}  // namespace lockstep::data
