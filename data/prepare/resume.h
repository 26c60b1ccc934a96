// What a call of Prepare finds in its folder: nothing, its own work, or something else.
#pragma once

#include <string>
#include <vector>

#include "data/prepare/manifest.h"

namespace lockstep::data {

// The folder that a call works in.
class OutFolder {
 public:
  // Makes it and its parents if they are missing.
  explicit OutFolder(std::string path);

  // Removes the files that `prepare` made (token files only if they are unfinished or in the
  // manifest) and then the folders that the constructor made, if they are empty. The lock's file is
  // removed only with its folder. For a refused call, which holds the lock.
  void TakeBack(const Manifest& manifest) const;

 private:
  const std::string path_;
  std::vector<std::string> made_;  // folders, each below the next one
  bool had_tokenizer_ = false;     // which `prepare` had not made
};

// `manifest` is what a call would begin the folder with. If the folder has been begun with the same
// options, sources and tokenizer, takes over its manifest, with the shards that are finished, and
// returns true. False if there are no shards yet: then the folder is begun with this call's
// options, whatever those of an earlier one were. InputError, which says what differs, for a folder
// that was made from something else, lacks files that its manifest lists, or holds token files
// without a manifest. Reads standard input to its end, if a finished folder was made from it.
bool Resume(const std::string& folder, Manifest* manifest);

// Compares the files of a finished folder with the hashes of their bytes in its manifest.
// InputError if one has changed.
void VerifyHashes(const std::string& folder, const Manifest& manifest);

}  // namespace lockstep::data
