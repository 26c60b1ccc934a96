// Opens the data set that the data.* options name: token streams for training and validation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/file_content.h"
#include "data/sampler.h"
#include "data/token_source.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

struct SharedDatasets;

struct DatasetOptions {
  // A file of text or JSONL, also compressed (data/text), a token file (*.bin), a pattern of such
  // files, a folder of texts or token files, or one that `prepare` made, with its tokenizer. If
  // empty, the embedded corpus.
  std::string path;
  // Instead of path: a mixture of such paths, as for ParseMixture.
  std::string mix = {};
  // JSONL: the field with the text.
  std::string field = "text";
  // As for MakeTokenizer. If empty: for token files that of the `prepare` that made them, else
  // none; for text char or, in a mixture with such files, their tokenizer.
  std::string tokenizer;
  // Replaces `tokenizer`, if set: the tokenizer of a checkpoint, or of token files that are mixed
  // with texts.
  std::shared_ptr<const Tokenizer> loaded_tokenizer;
  // If neither is set, for a model that is trained already: why its tokenizer is missing. Text then
  // makes no new vocabulary, but causes an InputError that begins with this.
  std::string no_tokenizer = {};
  // In [0, 1): the fraction of the data, in characters (bytes for the byte tokenizer, tokens for
  // token files), held out at its end for validation. Ignored for files whose names tell the split.
  double val_fraction = 0.1;
  // Whether windows will say where documents begin (Batch::first_key): then both streams must know.
  bool document_mask = false;
  // Tokens in a window: training needs at least block_size + 1 tokens.
  int64_t block_size = 1;
  // The size of the model's vocabulary, or 0 if unknown. All tokens must be below it.
  int64_t vocab_size = 0;
  // Whether it belongs to a model that is trained already, so that no option changes it.
  bool trained = false;
  // What is known about token files and their indexes: those that have these stamps are not read.
  std::vector<FileContent> known_files = {};
  // How processes share what one of them encodes (shared_datasets.h); null: they do not.
  std::shared_ptr<SharedDatasets> shared = {};
};

// Validation tokens that have a name of their own.
struct ValidationPart {
  std::string name;  // the path
  std::shared_ptr<const TokenSource> tokens;
};

struct Dataset {
  // Null for token files without data.tokenizer that `prepare` has not made, or if the vocabulary
  // of the one it names is missing: training needs only the ids.
  std::shared_ptr<const Tokenizer> tokenizer;
  // With document_mask, both streams has_documents().
  std::shared_ptr<const TokenSource> train;
  // data.mix: what `train` consists of, and the paths. Empty otherwise.
  std::vector<MixtureStream> mixture = {};
  std::vector<std::string> mixture_paths = {};
  std::shared_ptr<const TokenSource> val;  // null if nothing is held out
  // What `val` consists of: those of a mixture's sources, or the files that OpenValidation was
  // given. Empty otherwise.
  std::vector<ValidationPart> val_parts = {};
  // Whether there are files for validation, so that val_fraction has no effect; for a mixture,
  // whether all of its sources have some.
  bool val_has_files = false;
  // The tokenizer's vocabulary size; for token files without one, the largest token + 1.
  int64_t vocab_size = 0;
  // What the user should know: if samples cannot be shown as text, how they will look and how to
  // change that; how much of the text was malformed. Else empty.
  std::string note;
  // "the embedded corpus", or the path.
  std::string name;
  // The SHA-256 of the text, or of token files and their indexes. It does not depend on paths.
  std::string fingerprint;
  // What earlier versions used instead for token files: the SHA-256 of each one's token count and
  // its first and last 64 KiB.
  std::string older_fingerprint = {};
  // The same of the files that OpenValidation was given; empty without any.
  std::string val_fingerprint = {};
  // Token files and their indexes, in the order of the fingerprint; those of OpenValidation last.
  std::vector<FileContent> files = {};
};

// Whether a path names token files or a folder of them; and whether `prepare` made any of these, so
// that their tokenizer is next to them. InputError for a malformed manifest.
bool HoldsTokenFiles(const std::string& path);
bool HoldsPreparedFiles(const std::string& path);
// Whether any of the files that OpenDataset reads for a path is JSONL. Throws what OpenDataset
// does.
bool HoldsJsonLines(const std::string& path);

// Samples of the training stream, in the mixture's proportions if it is one.
Sampler MakeSampler(const Dataset& dataset, Order order, uint64_t seed, int64_t block_size);

// Reads the whole text, or checks all tokens of token files. Throws InputError or IoError that says
// what is missing, empty, too small, malformed or outside the vocabulary, or where document_mask
// lacks documents, and how to fix it.
Dataset OpenDataset(const DatasetOptions& options);

}  // namespace lockstep::data
