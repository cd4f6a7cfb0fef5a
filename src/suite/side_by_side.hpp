// SPDX-License-Identifier: Apache-2.0
// Pairs of two executables in one run: for each pair their children take turns, old, new, new, old, so that what the machine does
// meanwhile meets both alike, and both are seen in two processes.
//   RUN/results.jsonl                                  this executable's first process
//   RUN/confirmation_side_by_side/results.jsonl        its second
//   RUN/against/...                                    the same of the other executable
#pragma once
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "base/system/files.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "run/wire/handshake.hpp"

namespace aisp::suite {

inline constexpr const char* against_folder = "against";
// Returns the folder of the second process of the side in `folder`.
std::filesystem::path second_process(const std::filesystem::path& folder);

// One child: its executable, and the folder of its log and its profiles.
struct Side {
  std::filesystem::path executable;
  std::filesystem::path folder;
};
using Measure = std::function<evidence::PairResult(const Side& side)>;

class SideBySide {
 public:
  // `manifest`: of the run in `folder`. Throws base::Error if its folders cannot be written.
  SideBySide(run::Counterpart other, const std::filesystem::path& folder, const evidence::Manifest& manifest);

  // Returns the first result of this executable and keeps the others. A target that the other executable lacks is measured once.
  // Thread-safe; throws base::Error if the disk is full.
  evidence::PairResult measure(const std::string& target, const Measure& child);

 private:
  struct Place {
    Side side;
    base::AppendFile log;
  };
  static Place opened(const std::filesystem::path& executable, const std::filesystem::path& folder,
                      const evidence::Manifest& manifest);
  void keep(Place& place, const Measure& child);

  run::Counterpart other_;
  Side own_;
  Place own_again_, other_first_, other_again_;
  std::mutex mutex_;
};

}  // namespace aisp::suite
