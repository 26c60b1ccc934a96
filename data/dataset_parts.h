// What dataset.cc opens: data sets of texts (text_dataset.cc) and of token files
// (token_dataset.cc). Internal to OpenDataset, which documents the errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/prepare/manifest.h"
#include "data/text/require_text.h"

namespace lockstep::data {

// Advice to the user of train_gpt on JSONL in a file whose name does not say so
// (TextOptions::type_advice).
inline constexpr TypeAdvice kTypeAdvice = {
    .rows = "let the name of its file end in .jsonl to take the texts of its rows",
    .text = "let the name end in .txt to take it as it is"};

// `name`: the text's, for messages.
Dataset FromText(std::string_view text, const std::string& name, const DatasetOptions& options);
// JSONL, several files, or compressed ones: their tokens are kept in memory (2 bytes each, or 4 if
// there are ids above 65,535), while their text passes through; only a char tokenizer, which is
// made from all of it, holds it as long as it encodes. Each document has the tokens around it that
// `prepare` writes in llm.c's format (MarksOf). A text file that is larger than a document may be
// is read in pieces.
Dataset FromDocuments(const DatasetOptions& options);
// Files of a finished folder of `prepare` have that folder's tokenizer.
Dataset FromTokenFiles(const std::vector<std::string>& paths, const DatasetOptions& options);
// Whether `prepare` made any of these token files, that is, whether the manifest in its folder
// lists it.
bool ListedByManifest(const std::vector<std::string>& paths);
// A folder that `prepare` made.
Dataset FromPrepared(const Manifest& manifest, const DatasetOptions& options);

// Throws InputError if there are too few tokens for a window of training, or for validation.
void CheckSizes(const Dataset& dataset, const DatasetOptions& options);
// The end of an error: the model has fewer tokens than `needed`, and how it gets more.
std::string TooMany(int64_t needed, const DatasetOptions& options);
// Throws InputError for a token that is not in the model's vocabulary, if that is known.
void CheckVocabulary(int32_t largest, const DatasetOptions& options);
// nanoGPT's split: the first int(n * 0.9) of n.
int64_t TrainCount(int64_t n, double val_fraction);
// Moves the last val_fraction of the training tokens to validation.
void HoldOut(double val_fraction, Dataset* dataset);
// Makes both streams know where documents begin, by the token that separates them, unless they know
// it already. `unknown` is what to say, and to do, if there is no such token.
void SeparateDocuments(Dataset* dataset, std::optional<int32_t> token, Separator place,
                       const std::string& unknown);
}  // namespace lockstep::data
