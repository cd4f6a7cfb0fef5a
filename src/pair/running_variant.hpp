// SPDX-License-Identifier: Apache-2.0
// Notes the variant that this process runs in a page that may be shared with the process that started it, which can then name the
// culprit after a crash or a kill. It costs a copy of a few bytes, so it is done before every execution.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace aisp::pair {

inline constexpr std::size_t running_variant_bytes = 256;

// Maps the file at `path`, which has that many bytes, for later notes. Returns false if it cannot; notes then stay in this
// process.
bool share_running_variant(const std::string& path);

void note_running_variant(std::string_view name);  // empty: none
std::string running_variant();

// Notes a variant as long as it lives.
class RunningVariant {
 public:
  explicit RunningVariant(std::string_view name) { note_running_variant(name); }
  ~RunningVariant() { note_running_variant({}); }
  RunningVariant(const RunningVariant&) = delete;
  RunningVariant& operator=(const RunningVariant&) = delete;
};

// The page in the process that made it.
class RunningVariantPage {
 public:
  RunningVariantPage();  // without a page if there is no memory for it: path() and name() are empty then
  ~RunningVariantPage();
  RunningVariantPage(const RunningVariantPage&) = delete;
  RunningVariantPage& operator=(const RunningVariantPage&) = delete;

  std::string path() const;  // where a child finds it while this lives
  std::string name() const;

 private:
  int descriptor_ = -1;
  char* page_ = nullptr;
};

}  // namespace aisp::pair
