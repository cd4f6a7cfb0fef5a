// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace aisp::base {

// Raw deflate (RFC 1951), which browsers decode. The same bytes for the same text everywhere: files that hold it can be compared,
// and no library's version is a part of them.
std::string deflated(std::string_view text);

std::string base64(std::string_view bytes);

}  // namespace aisp::base
