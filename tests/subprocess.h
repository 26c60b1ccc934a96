// Runs the project's programs as a user's shell would.
#pragma once

#include <sys/types.h>

#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace lockstep {

struct Result {
  int exit_code = -1;  // -1 if a signal ended it
  int signal = 0;
  std::string out, err;

  // For the failures of tests.
  friend std::ostream& operator<<(std::ostream& o, const Result& r) {
    return o << "exit code " << r.exit_code << ", signal " << r.signal << ", out:\n"
             << r.out << "err:\n"
             << r.err;
  }
};

// A program that runs until Wait, or is killed by the destructor. `arguments[0]` is its path below
// the runfiles. Its environment is this process's, changed by `environment`.
class Subprocess {
 public:
  explicit Subprocess(const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment = {});
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // Returns once `text` is in what it wrote to stdout, or it has ended.
  void WaitForOutput(const std::string& text);
  void Signal(int number) const;
  // SIGSTOP; returns once it has stopped, or ended.
  void Stop() const;
  pid_t pid() const { return pid_; }
  // What it wrote to stdout, as far as it was read.
  const std::string& output() const { return result_.out; }
  Result Wait();

 private:
  // Reads what there is to read on either pipe; false once both are closed.
  bool ReadSome();

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  Result result_;
};

Result RunProgram(const std::vector<std::string>& arguments,
                  const std::map<std::string, std::string>& environment = {});

}  // namespace lockstep
