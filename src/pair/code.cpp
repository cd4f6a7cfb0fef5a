// SPDX-License-Identifier: Apache-2.0
#include "pair/code.hpp"

#include <algorithm>

#include "base/deflate.hpp"
#include "pair/registry.hpp"

namespace aisp::pair {
namespace {

// Instructions run on their own generation, of the same or a later minor number; PTX is compiled for any later one.
bool runs_on(const CodeDigest& code, int sm) { return code.sm <= sm && (code.is_ptx || code.sm / 10 == sm / 10); }

}  // namespace

SourceFile::Content SourceFile::content() const {
  const std::string all = base::inflated({begin, end});
  const std::size_t separator = all.find('\0');
  return {all.substr(0, separator), all.substr(separator + 1)};
}

Code code_of(const Entry& entry) {
  const std::span<const Entry> all = registry();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (&all[i] == &entry) return linked_code()[i];
  return {};
}

std::string_view digest_on(const Code& code, int sm) {
  const CodeDigest* chosen = nullptr;
  for (const CodeDigest& candidate : code.digests) {
    if (!runs_on(candidate, sm)) continue;
    const bool better = chosen == nullptr || (chosen->is_ptx && !candidate.is_ptx) ||
                        (chosen->is_ptx == candidate.is_ptx && candidate.sm > chosen->sm);
    if (better) chosen = &candidate;
  }
  if (chosen == nullptr && !code.digests.empty()) chosen = &code.digests.front();
  return chosen == nullptr ? std::string_view{} : chosen->digest;
}

bool has_digest(const Code& code, std::string_view digest) {
  return std::any_of(code.digests.begin(), code.digests.end(),
                     [&](const CodeDigest& candidate) { return candidate.digest == digest; });
}

}  // namespace aisp::pair
