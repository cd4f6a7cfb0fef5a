// SPDX-License-Identifier: Apache-2.0
// Which variant this process runs, in a page that may be shared with the process that started it: after a crash or a kill that
// one can still say whose fault it was. To note it costs a copy of a few bytes, so it is done before every execution.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace aisp::pair {

inline constexpr std::size_t running_variant_bytes = 256;

// From now on in the file at `path`, which has that many bytes. False when it cannot be mapped; it is noted in this process then.
bool share_running_variant(const std::string& path);

void note_running_variant(std::string_view name);  // empty: none
std::string running_variant();

// Noted for as long as it lives.
class RunningVariant {
 public:
  explicit RunningVariant(std::string_view name) { note_running_variant(name); }
  ~RunningVariant() { note_running_variant({}); }
  RunningVariant(const RunningVariant&) = delete;
  RunningVariant& operator=(const RunningVariant&) = delete;
};

// Such a page, seen by the process that made it.
class RunningVariantPage {
 public:
  RunningVariantPage();  // without a page where there is no memory for it: path() and name() are empty then
  ~RunningVariantPage();
  RunningVariantPage(const RunningVariantPage&) = delete;
  RunningVariantPage& operator=(const RunningVariantPage&) = delete;

  std::string path() const;  // under which a child finds it while this lives
  std::string name() const;

 private:
  int descriptor_ = -1;
  char* page_ = nullptr;
};

}  // namespace aisp::pair
