// Raw text to token files: what `prepare` (tools/prepare_main.cc) does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/prepare/manifest.h"
#include "data/text/document_reader.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

struct PrepareProgress {
  DocumentCounts counts;  // all that have been written or were found finished
  int64_t tokens = 0;
  int64_t new_tokens = 0;                          // those that this call has written
  int64_t source_bytes = 0, all_source_bytes = 0;  // read, and in all; 0: not known
};

struct PrepareOptions {
  std::vector<std::string> paths;  // as for ListTextFiles
  TextOptions text;                // any_bytes follows from the tokenizer
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string tokenizer_origin = {};  // how the user named it, for the manifest
  std::string out_dir;
  // llm.c's format, with 16 bits per token for vocabularies of up to 65,536 and else 32, and an
  // end-of-text token before each document; or nanoGPT's, always with 16 bits, and one after each.
  // With a tokenizer that puts a bos before texts, documents have both (MarksOf).
  bool nanogpt = false;
  // llm.c: files are called NAME_train_000000.bin and NAME_val_000000.bin.
  std::string name = "tokens";
  // Tokens in each file but the last; documents may straddle files. 0: one file, only for nanoGPT.
  int64_t shard_tokens = 100'000'000;
  // In [0, 1). Document i, counted from 0, is for validation where floor((i + 1) f) > floor(i f):
  // every 100th one for 0.01.
  double val_fraction = 0.01;
  // Instead of val_fraction: the first shard is for validation, as in llm.c.
  bool val_shard = false;
  int threads = 0;  // 0: NumThreads()
  // Called from one other thread, until Prepare returns.
  std::function<void(const PrepareProgress&)> progress = {};
};

struct PrepareResult {
  Manifest manifest;
  bool was_complete = false;  // nothing was left to do
};

// Writes token files, an index of documents beside each (data/document_index.h),
// tokenizer.json and manifest.json into out_dir. All bytes depend on options and sources only, not
// on threads. Memory does not grow with the sources or shards: it is that of the tokenizer and some
// tens of MiB, up to 60 more for each thread (its cache of words and its JSON parser), or a few
// times the largest document; text files that are one document are encoded in pieces, unless the
// tokenizer needs the whole (EncodesInParts).
//
// After a crash at any time the same call continues after the last finished shards, and writes the
// same bytes in the end; the sources must not have changed: their sizes and modification times are
// compared, and where only a time differs, the hash of what had been read of the source. It does
// not continue from standard input; a finished folder is then compared with the hash of the new
// input. A folder with shards that were made with other options, sources or another tokenizer, or
// that no manifest lists, is an InputError, and so is one in which another process works. Also
// throws InputError for unusable options and text (TextOf), and IoError. Where it throws before the
// folder has a shard, it removes what it has made (OutFolder::TakeBack).
PrepareResult Prepare(const PrepareOptions& options);

}  // namespace lockstep::data
