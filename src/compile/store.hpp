// SPDX-License-Identifier: Apache-2.0
// Compiled code, in memory and on disk, so that the same text is compiled once.
#pragma once
#include <aisp/compiled.hpp>
#include <aisp/library.hpp>

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace aisp::compile {

// A hash of all that decides what a compiler makes, each part set off from the next.
std::string key_of(std::initializer_list<std::string_view> parts);

class Store {
 public:
  // An empty folder: only in memory.
  explicit Store(std::filesystem::path folder) : folder_{std::move(folder)} {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Returns the code kept under the key; otherwise calls `make`, keeps its code and adds the time it took. A damaged file counts
  // as none. Several threads may make different things at once.
  CompiledCode get(const std::string& key, const std::function<CompiledCode()>& make);

  std::filesystem::path file(const std::string& key) const { return folder_ / (key + ".code"); }

 private:
  std::filesystem::path folder_;
  std::mutex mutex_;
  std::map<std::string, CompiledCode> kept_;
};

// That of this process, in aisp's cache.
std::shared_ptr<Store> common_store();

// Code shared by NVRTC and nvJitLink: their target architecture, and messages about their failures.

// "what: the log's first error", and below it all of the log.
std::string failure_text(std::string_view what, std::string_view log);

// "sm_90a" of 90: with the features of that architecture alone, where there are such.
std::string architecture_name(int sm);
int current_sm();  // compute capability of the current GPU, times ten

// Tells updates of a library apart that have the same version number.
std::string stamp_of(const SharedLibrary& library);

}  // namespace aisp::compile
