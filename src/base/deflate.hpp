// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace aisp::base {

// Raw deflate (RFC 1951), which browsers decode, by libdeflate.
std::string deflated(std::string_view text);

// Decodes raw deflate; throws std::runtime_error where it is damaged or bytes are left over.
std::string inflated(std::string_view bytes);

std::string base64(std::string_view bytes);

}  // namespace aisp::base
