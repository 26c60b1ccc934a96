// Servers that speak S3, for tests: programs of Python.
#pragma once

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/system/environment.h"
#include "models/store/http_client.h"
#include "models/store/object_store.h"
#include "tests/subprocess.h"

namespace lockstep::test {

inline constexpr char kFolderOfServers[] = "tests/models/store/";

// A program that prints a line once it serves.
class PythonServer {
 public:
  explicit PythonServer(const std::vector<std::string>& arguments) : process_(arguments) {
    process_.WaitForOutput("\n");
    std::istringstream line(process_.output());
    for (std::string word; line >> word;) words_.push_back(word);
    if (words_.empty()) throw Error(StrCat("the server has ended: ", process_.Wait()));
  }

  const std::string& word(size_t i) const { return words_.at(i); }
  const std::string& port() const { return words_.at(0); }
  std::string url() const { return "http://127.0.0.1:" + port(); }

 private:
  Subprocess process_;
  std::vector<std::string> words_;
};

// What a program finds in its environment to use a server there.
inline Environment S3Environment(const std::string& url, const std::string& key = "AKIDTEST",
                                 const std::string& secret = "secretOfTests") {
  return {{"AWS_ENDPOINT_URL", url},
          {"AWS_ACCESS_KEY_ID", key},
          {"AWS_SECRET_ACCESS_KEY", secret},
          {"AWS_REGION", "us-east-1"},
          {"NO_PROXY", "127.0.0.1"}};
}

// s3_faults.py, which fails as it is told to.
class FaultyS3 : public PythonServer {
 public:
  // `upstream`: the port of a server to which it hands requests on.
  explicit FaultyS3(const std::string& upstream = "") : PythonServer(Command(upstream)) {}

  void FailNext(const std::vector<std::string>& faults) {
    Json list = Json::array();
    for (const std::string& f : faults) {
      list.push_back(f.empty() ? Json() : Json(f));
    }
    Post("/_faults", list.dump());
  }
  void FailAtRandom(int of_a_thousand) { Post("/_random", std::to_string(of_a_thousand)); }
  void Clear() { Post("/_clear", ""); }
  // [[method, path, {headers}], ...]
  Json Log() { return Json::parse(Post("/_log", "")); }

 private:
  static std::vector<std::string> Command(const std::string& upstream) {
    std::vector<std::string> all = {"/usr/bin/env", "python3",
                                    StrCat(kFolderOfServers, "s3_faults.py")};
    if (!upstream.empty()) all.push_back(upstream);
    return all;
  }
  std::string Post(const std::string& path, const std::string& body) {
    return models::HttpClient()
        .Send({.method = "POST",
               .url = url() + path,
               .body = std::as_bytes(std::span(body)),
               .direct = true})
        .body;
  }
};

// Where tests look for moto: LOCKSTEP_MOTO, or where tools/setup --dev installs it.
inline std::string MotoPython() {
  const passwd* const user = getpwuid(getuid());
  return JoinPath(EnvironmentVariable("LOCKSTEP_MOTO")
                      .value_or(StrCat(user ? user->pw_dir : "", "/.cache/lockstep-moto")),
                  "bin/python");
}

// moto_server.py: the words are the port, a key and its secret, and those of a user without
// permissions. Null, having said so, if there is no moto.
inline std::unique_ptr<PythonServer> StartMoto() {
  if (access(MotoPython().c_str(), X_OK) != 0) {
    std::cerr << "there is no " << MotoPython() << ": tools/setup --dev installs moto\n";
    return nullptr;
  }
  return std::make_unique<PythonServer>(
      std::vector<std::string>{MotoPython(), StrCat(kFolderOfServers, "moto_server.py")});
}

// Waits for nothing between attempts, and takes small parts.
inline models::StoreOptions QuickStore(const Environment& environment) {
  return {.attempts = 4,
          .backoff = std::chrono::milliseconds(1),
          .part_bytes = 1000,
          .environment = environment};
}

}  // namespace lockstep::test
